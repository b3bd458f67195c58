"""Seconds a round on a real federation: fedsps with warm and with cold nodes, next to Flower's own FedAvg strategy.

    python benchmarks/flower.py [--nodes 2 10] [--rounds 4] [--repeats 2] [--write]

TLS, node keys and the gateway are on. Softmax regression of MNIST's shape, 5 local steps, batch 20: what is measured is
the way of the messages. There is no evaluation, but for the line that says so, where all nodes evaluate every round.
For each number of nodes two federations are up at once, one with warm nodes and one in Flower's way, and the four take
turns. The first round of a run is not counted.
"""

import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from page import Section, options

from fedsps.deploy.run import run
from fedsps.deploy.up import down, up

APP = Path(__file__).parent / "flower_app"
WAYS = {  # what is said of it: the federation, whose rounds, and how often they are evaluated
    "fedsps, warm nodes": ("warm", "fedsps", 0),
    "the same, all evaluate": ("warm", "fedsps", 1),
    "fedsps, Flower's nodes": ("cold", "fedsps", 0),
    "Flower's FedAvg and nodes": ("cold", "flower", 0),
}
SAYS = "seconds of each round: "


def seconds(folder: Path, whose: str, evaluate_every: int, rounds: int) -> list[float]:
    """Of each round of a run, but for the first."""
    lines: list[str] = []
    asked = f'rounds={rounds + 1} bench.whose="{whose}" evaluate-every={evaluate_every} runs="{folder}/runs"'
    run(APP, folder, [asked], show=lines.append)
    said = [line for line in lines if line.startswith(SAYS)]
    if not said:
        raise SystemExit("\n".join(lines))
    return [float(value) for value in json.loads(said[0].removeprefix(SAYS))[1:]]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    asked = parser.parse_args()
    section = Section("flower")
    for nodes in asked.nodes:
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        with ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name in ("warm", "cold"):
                up(place / name, nodes, warm=name == "warm")
                stack.callback(down, place / name)
            for _ in range(asked.repeats):
                for way, (name, whose, evaluate_every) in WAYS.items():
                    times[way] += seconds(place / name, whose, evaluate_every, asked.rounds)
        theirs = statistics.median(times["Flower's FedAvg and nodes"])
        section.line(f"{nodes} nodes, {asked.repeats} x {asked.rounds} rounds")
        section.line(f"{'':28}{'s a round':>12}{'range':>18}{'times faster':>16}")
        for way, values in times.items():
            spread, ratio = f"{min(values):.2f} - {max(values):.2f}", theirs / statistics.median(values)
            section.line(f"{way:28}{statistics.median(values):12.2f}{spread:>18}{ratio:15.1f}x")
    if asked.write:
        section.write()


if __name__ == "__main__":
    main()
