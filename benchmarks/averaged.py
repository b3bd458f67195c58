"""What the average of the iterates does for the tuned methods that FedPolyak is held against on page `beyond`.

    python benchmarks/averaged.py [--seeds 1] [--all]

FedPolyak's output is an average of its iterates, and the tuned methods' is their last one, as their authors have it.
Here each problem's best tuned method, at the point that its search found, is run once more with that average as its
output. Losses are means over the last tenth of the rounds. The points and the other losses are those of the tables in
docs/images/reproduction; `FEDSPS_DATA` names the folder of the data sets.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fedsps.paper.pages import beyond
from fedsps.runs.parallel import run_all
from fedsps.runs.spec import Spec

TABLES = Path(__file__).parents[1] / "docs/images/reproduction"


def final(history: pd.DataFrame) -> float:
    """The mean training loss over the last tenth of the rounds."""
    rows = history[history["round"] > 0.9 * history["round"].max()]
    return float(rows["train_loss"].dropna().mean())


def main() -> None:
    """Print a row a problem, and how often FedPolyak is ahead."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="also flipped labels, and 1 and 20 local steps")
    parser.add_argument("--runs", default="runs", help="the folder of run folders")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lines = {panel["name"]: panel["lines"] for panel in json.loads((TABLES / "beyond.json").read_text())["panels"]}
    rows = pd.read_csv(TABLES / "beyond.csv")
    rows = rows[rows["seed"] < asked.seeds]
    finals = {
        key: np.mean([final(own) for _, own in table.groupby("seed")]) for key, table in rows.groupby(["panel", "line"])
    }
    shares = []
    print("| problem | best tuned | its loss | averaged | FedPolyak |\n| --- | --- | ---: | ---: | ---: |")
    for cell in beyond.cells("paper"):
        if cell.network or cell.name not in lines or not (asked.all or (cell.flipped == 0 and cell.local_steps == 5)):
            continue
        best = min(
            (one for one in lines[cell.name] if one["label"] in beyond.TUNED),
            key=lambda one: finals[cell.name, one["label"]],
        )
        point = ",".join(f"{name}={value:g}" for name, value in best["tuned"].items())
        settings = dict(cell.panel("paper").settings)
        specs = [
            Spec.of(algorithm=f"{best['algorithm']}:{point}+polyaverage", seed=seed, **settings)
            for seed in range(asked.seeds)
        ]
        averaged = np.mean([final(result.history) for result in run_all(specs, asked.runs)])
        tuned, ours = finals[cell.name, best["label"]], finals[cell.name, beyond.OURS]
        shares.append((averaged / tuned, ours / averaged))
        print(f"| {cell.name} | {best['label']} | {tuned:.4g} | {averaged:.4g} | {ours:.4g} |", flush=True)
    gained, ratios = np.array(shares).T
    print(
        f"the average takes the tuned losses to {np.median(gained):.3f} times what they were (median); FedPolyak is "
        f"within 2 % of the averaged ones, or below, on {(ratios <= beyond.AS_GOOD).sum()} of {len(ratios)}"
    )


if __name__ == "__main__":
    main()
