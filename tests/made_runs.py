"""Run folders and pages of the reproduction, made up, for the tests of the report."""

import json

import numpy as np
import pandas as pd

from fedsps.core.plan import Plan
from fedsps.engine.history import COLUMNS
from fedsps.methods.notation import parse
from fedsps.runs.result import Result
from fedsps.runs.space import PAPER_GRID
from fedsps.runs.spec import Spec

EVIL = "</script><img src=x onerror=alert(1)> & \"q\" 'r' {{data}}"


ROUNDS = 20


def run(final=0.5, *, algorithm="fedsps", seed=0, diverged=False, **columns):
    """A made-up run whose columns are constant, or as given."""
    rounds = np.arange(1, ROUNDS + 1)
    numbers = {
        "train_loss": final, "cohort_loss": final, "test_loss": final, "test_accuracy": 1 - final, "stepsize_mean": 0.5,
        "stepsize_std": 0.05, "stepsize_std_clients": 0.05, "stepsize_one_mean": 0.5, "stepsize_one_std": 0.05, "seconds": 0.1, "exchanges": 1,
        "gradient_evaluations": 50, "bytes_up": 8, "bytes_down": 8,
    } | columns  # fmt: skip
    return Result(
        None,
        pd.DataFrame({"round": rounds} | numbers),
        Spec(algorithm=algorithm, parameters=dict.fromkeys(PAPER_GRID, 0.1), plan=Plan(seed=seed)),
        ROUNDS if diverged else None,
    )


def history(rounds=ROUNDS, **columns):
    numbers = {name: 0.5 for name in COLUMNS if name != "round"} | columns
    return pd.DataFrame({"round": np.arange(1, rounds + 1)} | numbers)


def save(runs, algorithm="fedsps", *, rounds=20, diverged_at=None, table=None, **settings):
    """A made-up run in the folder that its digest names."""
    spec = Spec.of(parse(algorithm)[0], rounds=rounds, **settings)
    result = Result(None, history(rounds) if table is None else table, spec, diverged_at, {"classes": 10})
    return result.save(runs / spec.digest)


VERDICT = {
    "id": "C1", "case": None, "statement": "FedSPS matches FedAvg", "place": "figure 3a", "criterion": "at most 1.1 times",
    "loss": "train_loss", "outcome": "does not hold", "words": "does not hold", "numbers": "loss ratio 1.5 (1 seed)", "effect": [1.5],
}  # fmt: skip


def save_page(folder, name="convex", *, table=None, verdicts=(VERDICT,), lines=(), **changes):
    panel = {"name": "a", "heading": "(a) MNIST", "column": "cohort_loss", "lines": list(lines)}
    found = {
        "page": name, "title": "Figure 3", "note": "A note.", "scale": "smoke", "seconds": 90.0, "shown": [],
        "verdicts": list(verdicts), "panels": [panel],
    } | changes  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found))
    if table is not None:
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder


def line(label="FedSPS", algorithm="fedsps", runs=(), **diverged):
    return {"label": label, "algorithm": algorithm, "runs": list(runs), "diverged": diverged}


def rows(label="FedSPS", seeds=2, panel="a", **columns):
    return pd.concat([history(**columns).assign(panel=panel, line=label, seed=seed) for seed in range(seeds)])
