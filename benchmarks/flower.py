"""Seconds a round on a real federation (processes, TLS): fedsps next to Flower's own FedAvg strategy, in one run.

    python benchmarks/flower.py [--nodes 2 10] [--rounds 5]

Softmax regression of MNIST's shape, 5 local steps, batch 20, no evaluation. Every message starts a process on its node,
which imports torch; nodes look for messages every 3 s. The rest is what the server adds: Flower's strategies look for
answers every 3 s, fedsps every 0.1 s.
"""

import argparse
import tempfile
from pathlib import Path

from fedsps.deploy.run import run
from fedsps.deploy.up import down, up

APP = Path(__file__).parent / "flower_app"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    for nodes in asked.nodes:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "federation"
            lines: list[str] = []
            up(folder, nodes)
            try:
                run(APP, folder, [f'rounds={asked.rounds} runs="{place}/runs"'], show=lines.append)
            finally:
                down(folder)
        print(f"{nodes} nodes", next((line for line in lines if line.startswith("seconds a round")), lines[-5:]))


if __name__ == "__main__":
    main()
