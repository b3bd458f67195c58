"""A site's own rules: what does not meet them is refused by the site, in words, before its data are read."""

import in_process
import pytest
import test_secagg

from fedsps.errors import ConfigurationError, DataError
from fedsps.flower import versions
from fedsps.flower.policy import Policy
from fedsps.flower.privacy import Privacy, composed, epsilon

PRIVATE = {"clip_norm": 0.5, "noise_multiplier": 2.0}


def under(grid, folder, **rules):
    """All nodes of the grid with this policy."""
    path = folder / "policy.toml"
    path.write_text("\n".join(f"{name.replace('_', '-')} = {value}" for name, value in rules.items()), encoding="utf-8")
    app = grid.app

    def call(message, context):
        context.node_config["policy"] = str(path)
        return app(message, context)

    grid.app = call
    return grid


@pytest.mark.parametrize(
    ("rules", "settings", "words"),
    [
        ({"minimum_noise": 1.0}, {}, "the policy of this site asks for differential privacy: set clip-norm"),
        ({"maximum_epsilon": 1.0}, {}, "the policy of this site asks for differential privacy"),
        ({"minimum_noise": 3.0}, PRIVATE, "asks for a noise-multiplier of 3 or more; the run has 2"),
        ({"apps": '["0123"]'}, {}, "the policy of this site does not list the app [0-9a-f]{16}"),
        ({"minimum_nose": 3.0}, {}, "unknown rule in .*: did you mean minimum-noise"),
        ({"apps": 3}, {}, "apps cannot be 3"),
    ],
)
def test_a_run_that_does_not_meet_it_is_refused_in_words(rules, settings, words, tmp_path):
    grid = under(in_process.grid(tmp_path), tmp_path, **rules)
    with pytest.raises(ConfigurationError, match=f"node 100 cannot take part: .*{words}"):
        in_process.run(grid, tmp_path, **settings)
    assert {kind for kind, _ in grid.asked} == {"query"}


def test_a_run_that_meets_it_goes_on(tmp_path):
    app = versions.of_app(in_process.linear)
    grid = under(in_process.grid(tmp_path), tmp_path, apps=f'["{app}"]', minimum_noise=2.0, maximum_epsilon=1e4)
    assert in_process.run(grid, tmp_path, rounds=1, **PRIVATE).history["clients"].tolist() == [5]


def test_the_budget_is_kept_over_runs(tmp_path):
    """Three answers are paid for, over two runs with different seeds."""
    allowed = composed({2.0: 3}, 1e-5) + 1e-9
    grid = under(in_process.grid(tmp_path), tmp_path, maximum_epsilon=allowed)
    assert len(in_process.run(grid, tmp_path, rounds=2, **PRIVATE).history) == 2
    with pytest.raises(
        DataError, match="round 2: 0 of 5 .*client 0: PolicyError: the policy of this site allows epsilon"
    ):
        in_process.run(grid, tmp_path, rounds=2, seed=1, retries=0, **PRIVATE)


def test_what_is_spent_is_the_epsilon_of_all_answers(tmp_path):
    assert composed({2.0: 5}, 1e-5) == pytest.approx(epsilon(5, 7, 7, 2.0, 1e-5))
    policy = Policy()
    for noise in (2.0, 4.0, 2.0):
        policy.spend(tmp_path, Privacy(1.0, noise))
    assert (tmp_path / "budget.json").read_text(encoding="utf-8").split() == ["{", '"2.0":', "2,", '"4.0":', "1", "}"]


def test_a_sum_over_too_few_is_refused_by_the_sites(tmp_path):
    grid = test_secagg.Grid(tmp_path)
    under(grid, tmp_path, minimum_cohort=6)
    with pytest.raises(DataError, match="asks for 6 clients in a sum, not 5"):
        test_secagg.run(grid, tmp_path, rounds=1, retries=0)
    under(grid, tmp_path, minimum_cohort=5)
    assert test_secagg.run(grid, tmp_path, rounds=1, retries=0).history["clients"].tolist() == [5]
