"""A site's own rules: which apps it runs, and how private a run must be. The site's owner writes them, nobody else.

    # policy.toml; the node is started with --node-config 'policy="policy.toml" ...'
    apps = ["0f3c..."]       # digests of apps; the site's log says that of a run which is refused
    minimum-noise = 1.0      # the least noise-multiplier of differential privacy
    maximum-epsilon = 8.0    # over all runs on this site's data, at delta
    delta = 1e-5
    minimum-cohort = 5       # clients in a sum of secure aggregation
    table-sums = false       # tell no counts, sums and words of a table before the first round

What the answers so far have cost is in `budget.json` beside the clients' state, and stays when a run is finished.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedsps.errors import ConfigurationError, unknown
from fedsps.flower.privacy import Privacy, composed
from fedsps.runs.files import read_json, write_json

BUDGET = "budget.json"


class PolicyError(ConfigurationError):
    """A run that this site does not take part in; its words tell nothing of the data, and the server may have them."""


@dataclass(frozen=True)
class Policy:
    """What a site asks of a run; without a file, nothing.

    Attributes:
        apps: digests of the apps that may run; empty allows all.
        minimum_noise: the least noise multiplier; 0 asks for no differential privacy.
        maximum_epsilon: over all runs; 0 is no limit.
        delta: at which epsilon is counted.
        minimum_cohort: the fewest clients in a sum of secure aggregation.
        table_sums: whether the sums of a table may be told.
    """

    apps: tuple[str, ...] = ()
    minimum_noise: float = 0.0
    maximum_epsilon: float = 0.0
    delta: float = 1e-5
    minimum_cohort: int = 0
    table_sums: bool = True

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> "Policy":
        """The policy that the node's configuration names.

        Raises:
            ConfigurationError: the file cannot be read, or says what no policy says: then nothing is run.
        """
        if "policy" not in node_config:
            return cls()
        path = Path(str(node_config["policy"])).expanduser()
        try:
            said = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the policy {path} cannot be read: {error}") from error
        known = {field.name.replace("_", "-"): field for field in fields(cls)}
        for name, value in said.items():
            if name not in known:
                raise unknown(f"rule in {path}", name, known)
            wanted = {"apps": (list,), "table-sums": (bool,)}.get(name, (int, float))
            if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
                raise ConfigurationError(f"{path}: {name} cannot be {value!r}")
        given = {name.replace("-", "_"): value for name, value in said.items()}
        return cls(**given | ({"apps": tuple(map(str, given["apps"]))} if "apps" in given else {}))

    def check(self, app: str, privacy: Privacy | None) -> None:
        """Refuse a run by its app or its settings, before the data are read.

        Args:
            app: its digest, see `versions.of_app`.
            privacy: the run's, if it has any.
        """
        if self.apps and app not in self.apps:
            raise PolicyError(f"the policy of this site does not list the app {app or 'without a file'}")
        if (self.minimum_noise or self.maximum_epsilon) and privacy is None:
            raise PolicyError("the policy of this site asks for differential privacy: set clip-norm, noise-multiplier")
        if privacy is not None and privacy.noise_multiplier < self.minimum_noise:
            raise PolicyError(
                f"the policy of this site asks for a noise-multiplier of {self.minimum_noise:g} or more; the run has "
                f"{privacy.noise_multiplier:g}"
            )

    def check_table(self) -> None:
        """Refuse to tell the sums of a table."""
        if not self.table_sums:
            raise PolicyError(
                "the policy of this site tells no sums of its table: agree on the columns, and set table.columns"
            )

    def check_sum(self, clients: int) -> None:
        """Refuse a sum over too few clients."""
        if clients < self.minimum_cohort:
            raise PolicyError(f"the policy of this site asks for {self.minimum_cohort} clients in a sum, not {clients}")

    def spend(self, folder: Path, privacy: Privacy) -> None:
        """Count one answer, on the disk before it leaves; refuse it if it would cost more than is left.

        Every answer counts, also one that is asked for twice.

        Args:
            folder: where the budget is kept, for all runs.
            privacy: the run's.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / BUDGET
        spent = read_json(path) if path.exists() else {}
        noise = json.dumps(privacy.noise_multiplier)
        after = spent | {noise: int(spent.get(noise, 0)) + 1}
        if self.maximum_epsilon:
            epsilon = composed({float(one): times for one, times in after.items()}, self.delta)
            if epsilon > self.maximum_epsilon:
                raise PolicyError(
                    f"the policy of this site allows epsilon {self.maximum_epsilon:g} at delta {self.delta:g} over all "
                    f"runs; with this answer it would be {epsilon:.4g}"
                )
        write_json(path, after)
