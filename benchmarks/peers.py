"""Milliseconds a round: fedsps, FedJAX, FedLab, pfl, Flower's simulation, and PyTorch by hand, in one run.

    python benchmarks/peers.py [--repeats 7] [--rounds 100] [--write]

Each library has an environment of its own below build/peers, made on the first call; one that does not install, or does
not run, is left out with a note. The work is in benchmarks/peers/workload.py, what a library makes of it in the script
beside it that has its name. All take turns, `repeats` times, each time in a new process; a run's first rounds, which
compile and fill caches, do not count.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page import Section, options

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "peers"
WARM_UP = 5
CHECKED_ROUNDS, TOLERANCE = 20, 1e-5
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
TORCH = next(line for line in CONSTRAINTS if line.startswith("torch=="))
FREE = ("dp-accounting", "absl-py")  # pfl asks for older ones
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
    "FLWR_HOME": str(BUILD / "flower-home"),
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Contestant:
    """One row of the table.

    Attributes:
        name: what the table says.
        script: `benchmarks/peers/SCRIPT_rounds.py`, and the environment `build/peers/SCRIPT`.
        options: of the script.
        installs: the arguments of one call of pip after another; none for what runs in this environment.
        is_fedavg: so that it must end where the exact computation ends.
    """

    name: str
    script: str
    options: tuple[str, ...] = ()
    installs: tuple[tuple[str, ...], ...] = ()
    is_fedavg: bool = True

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return BUILD / self.script / "bin" / "python" if self.installs else Path(sys.executable)

    @property
    def versions(self) -> str:
        """The versions that are pinned, in words."""
        return ", ".join(one.replace("==", " ") for call in self.installs for one in call if "==" in one)


CONTESTANTS = [
    Contestant("fedsps, FedAvg", "fedsps"),
    Contestant("fedsps, FedSPS", "fedsps", ("--fedsps",), is_fedavg=False),
    Contestant("by hand, all at once", "by_hand", ("--fused",)),
    Contestant("by hand, a loop", "by_hand"),
    Contestant("FedJAX", "fedjax", installs=(("fedjax==0.0.17", "jax==0.10.2"),)),
    # FedLab asks for torchvision, which is not needed here and may ask for another torch
    Contestant(
        "FedLab",
        "fedlab",
        installs=(
            ("--no-deps", "fedlab==1.3.0"),
            (TORCH, "numpy", "pandas", "pillow", "pynvml", "scikit-learn", "tqdm", "munch"),
        ),
    ),
    Contestant("pfl", "pfl", installs=(("pfl==0.6.0", TORCH),)),
    Contestant(
        "Flower's simulation", "flower", installs=(("flwr[simulation]==1.41.0", "ray==2.55.1", TORCH, "numpy"),)
    ),
]


def install(one: Contestant) -> None:
    """Make the environment of a library, unless it is there with the same packages."""
    home, wanted = BUILD / one.script, repr(one.installs)
    stamp = home / "installed"
    if not one.installs or (stamp.exists() and stamp.read_text() == wanted):
        return
    print(f"installing {one.versions}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    call([sys.executable, "-m", "venv", str(home)])
    limits = home / "constraints.txt"
    limits.write_text("\n".join(line for line in CONSTRAINTS if line.partition("==")[0] not in FREE))
    for words in one.installs:
        call([str(one.python), "-m", "pip", "install", "--quiet", "-c", str(limits), *words])
    stamp.write_text(wanted)


def call(words: list[str]) -> None:
    """Run a command without its output; what it says is shown if it fails."""
    done = subprocess.run(words, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it says nothing"]
        raise RuntimeError(last[0])


def measure(one: Contestant, rounds: int, samples: int) -> dict[str, Any]:
    """The report of one call of a script."""
    script = Path(__file__).with_name("peers") / f"{one.script}_rounds.py"
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        wanted = ["--rounds", str(rounds), "--samples", str(samples)]
        call([str(one.python), str(script), str(report), *wanted, *one.options])
        found: dict[str, Any] = json.loads(report.read_text())
    return found


def ready(section: Section) -> Iterator[tuple[Contestant, str]]:
    """Those that install and run, each with how far it ends from the exact computation."""
    for one in CONTESTANTS:
        try:
            install(one)
            off = measure(one, CHECKED_ROUNDS, samples=20)["difference"]
        except RuntimeError as reason:
            section.line(f"left out: {one.name} ({reason})")
            continue
        if one.is_fedavg and off > TOLERANCE:
            raise SystemExit(f"{one.name} computes something else: its weights are off by {off:.1e}")
        yield one, f"{off:.0e}" if one.is_fedavg else "-"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=100)
    asked = parser.parse_args()
    section = Section("peers")
    off = dict(ready(section))
    times: dict[Contestant, list[float]] = {one: [] for one in off}
    losses: dict[Contestant, float] = {}
    for _ in range(asked.repeats):
        for one in off:
            found = measure(one, asked.rounds, samples=600)
            times[one].append(1000 * statistics.fmean(found["seconds"][WARM_UP:]))
            losses[one] = found["loss"]
    first = next(iter(times.values()))
    section.line(f"{'':22}{'ms a round':>12}{'range':>18}{'of fedsps':>12}{'final loss':>12}{'off by':>9}")
    for one, own in times.items():
        ratio = statistics.median(mine / ours for mine, ours in zip(own, first, strict=True))
        spread = f"{min(own):.1f} - {max(own):.1f}"
        cells = f"{statistics.median(own):12.2f}{spread:>18}{ratio:11.1f}x{losses[one]:12.4f}{off[one]:>9}"
        section.line(f"{one.name:22}{cells}")
    for one in off:
        if one.versions:
            section.line(f"{one.name}: {one.versions}")
    if asked.write:
        section.write()


if __name__ == "__main__":
    main()
