"""What a comparison came to: the table with its statistics, as LaTeX too, and the figure."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsps.engine.metrics import is_better
from fedsps.errors import unknown
from fedsps.report import plot
from fedsps.report.format import run_title, shown
from fedsps.report.statistics import LEVEL, Test, against_best, least
from fedsps.runs.result import Result

METRIC = "test_accuracy"
"""The column of the history that a table shows beside the loss, where none is named."""


def headings(metric: str = METRIC) -> dict[str, str]:
    """The columns of the table that are printed, and what stands above them."""
    name = metric.replace("test_", "test\n", 1) if metric.startswith("test_") else metric.replace("_", "\n", 1)
    return {
        "algorithm": "algorithm",
        "rounds": "rounds",
        "final_train_loss": "final\ntrain loss",
        "final_train_loss_p": "p",
        f"final_{metric}": f"final {name}",
        f"final_{metric}_p": "p",
        f"best_{metric}": f"best {name}",
        f"best_{metric}_round": "in\nround",
        "rounds_to_target": "rounds to\ntarget",
        "stepsize_mean": "mean\nstepsize",
        "seconds": "seconds",
    }


TARGET_FACTOR = 1.1
"""Where no target is given, it is the best final train loss times this."""


@dataclass(frozen=True)
class Comparison:
    """Several algorithms' runs on the same data, batches and start.

    Attributes:
        results: each algorithm's runs by its label, one for each seed.
        seeds: a row an algorithm and seed, with what came of it.
        table: a row an algorithm: means over its seeds, their standard deviations (`..._std`), and the p-values of a
            paired test against the best (`..._p`, Holm-corrected). `rounds_to_target` is the mean over the seeds that
            reached it, `reached` how many did.
        target: the loss that the column `rounds_to_target` speaks of.
        given: whether the caller chose the target.
        metric: the column of the history whose final and best values the table has.
        test: which test gave the p-values.
    """

    results: Mapping[str, Sequence[Result]]
    seeds: pd.DataFrame
    table: pd.DataFrame
    target: float
    given: bool
    metric: str = METRIC
    test: Test = "t"

    @property
    def note(self) -> str:
        """What the target is, and what the numbers over seeds are, in words."""
        if np.isnan(self.target):
            target = "no target: nothing was evaluated"
        elif self.given:
            target = f"target loss: {self.target:.4g}, as given"
        else:
            target = f"target loss: {self.target:.4g}, the best final train loss of these runs times {TARGET_FACTOR}"
        return "\n".join([target, self.statistics] if self.statistics else [target])

    @property
    def statistics(self) -> str:
        """What the numbers over seeds are, in words; nothing for a single seed."""
        size = int(self.table["seeds"].max())
        if size < 2:
            return ""
        test = {"t": "paired t-test", "wilcoxon": "Wilcoxon's signed-rank test"}[self.test]
        words = f"{size} seeds: mean ± standard deviation; p: {test} against the best, Holm-corrected"
        tests = max(int(self.table[f"{name}_p"].notna().sum()) for name in tested(self.metric))
        if self.test == "wilcoxon" and tests and least(size, tests) >= LEVEL:
            enough = next(more for more in itertools.count(size) if least(more, tests) < LEVEL)
            words += (
                f"\n{size} seeds and {tests} {'tests' if tests > 1 else 'test'} cannot give a p below "
                f"{least(size, tests):.2g}, whatever the runs: take {enough} seeds or more, or the t-test"
            )
        return words

    @property
    def title(self) -> str:
        """What was trained on, in one line."""
        runs = next(iter(self.results.values()))
        seeds = f", {len(runs)} seeds: mean, least and largest" if len(runs) > 1 else ""
        return run_title(runs[0]) + seeds

    def figure(
        self,
        path: str | Path | None = None,
        *,
        across: plot.Across = "round",
        size: tuple[float, float] | None = None,
    ) -> Any:
        """Loss, test accuracy and stepsize, as a matplotlib figure.

        Args:
            path: where it is written too (.png, .pdf, .svg), if it is given. PDF files embed TrueType fonts.
            across: the axis across: "round", "gradient_evaluations", "bytes" (sent both ways) or "seconds" of training,
                each summed up over the rounds, as the mean over the seeds.
            size: width and height in inches; else as large as the number of panels needs. Panels have at least two
                inches each: of a narrow figure they stand below one another.
        """
        histories = {label: [run.history for run in runs] for label, runs in self.results.items()}
        names = {label: runs[0].spec.algorithm for label, runs in self.results.items()}
        if path is not None:
            plot.check(Path(path))
        return plot.comparison(histories, names, self.title, None if path is None else Path(path), across, size)

    def latex(self) -> str:
        r"""The table for a paper, with the rules of booktabs.

        In bold is the best of a column, and what its test cannot tell from the best at the level of 0.05.

        >>> from fedsps import compare
        >>> import torch
        >>> clients = [(torch.randn(8, 2), torch.randint(2, (8,))) for _ in range(3)]
        >>> found = compare(["fedsps", "fedavg"], model=torch.nn.Linear(2, 2), clients=clients, rounds=2, seeds=2)
        >>> print(found.latex().splitlines()[1])
        \begin{tabular}{lrr}
        """
        measures = [name for name in tested(self.metric) if self.table[name].notna().any()]
        above = headings(self.metric)
        columns = [above[name].replace("\n", " ") for name in (*measures, "rounds_to_target")]
        lines = [
            f"% needs \\usepackage{{booktabs}}. {' '.join(self.note.splitlines())}".replace("±", "+/-"),
            f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
            "\\toprule",
            " & ".join(["algorithm", *map(_escaped, columns)]) + " \\\\",
            "\\midrule",
        ]
        for row in self.table.to_dict("records"):
            cells = [_escaped(str(row["algorithm"]))]
            for name in measures:
                number = _math(row[name], row[f"{name}_std"])
                near = bool(row[f"{name}_p"] >= LEVEL) or row[name] == tested(self.metric)[name](self.table[name])
                cells.append(f"$\\mathbf{{{number}}}$" if near and np.isfinite(row[name]) else f"${number}$")
            lines.append(" & ".join([*cells, _reached(row)]) + " \\\\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def tested(metric: str) -> dict[str, Callable[[Iterable[float]], float]]:
    """What algorithms are tested by, and which value of it is the best; less is better of losses and errors."""
    best = min if is_better(metric, 0.0, 1.0) else max
    return {"final_train_loss": min, f"final_{metric}": best}


def _escaped(text: str) -> str:
    r"""A text for LaTeX.

    >>> print(_escaped("fedavg client_stepsize=0.1"))
    fedavg client\_stepsize=0.1
    """
    return "".join(f"\\{one}" if one in "_&%#${}" else one for one in text)


def _math(value: float, deviation: float) -> str:
    r"""A number between dollars, with its deviation if there is one.

    >>> print(_math(0.12346, 0.0212), _math(2.0, np.nan), _math(np.inf, np.nan), _math(2.5e-5, 1e-6))
    0.1235 \pm 0.021 2 \infty 2.5 \cdot 10^{-5} \pm 1 \cdot 10^{-6}
    """
    if np.isinf(value):
        return "\\infty"
    spread = "" if np.isnan(deviation) else f" \\pm {_power(f'{deviation:.2g}')}"
    return _power(shown(value)) + spread


def _power(text: str) -> str:
    r"""A number as it is printed, its exponent set as a power of ten: LaTeX would read 1e-05 as 1 times e minus 05.

    >>> print(_power("1.2e-05"), _power("0.1"))
    1.2 \cdot 10^{-5} 0.1
    """
    digits, exponent, power = text.partition("e")
    return f"{digits} \\cdot 10^{{{int(power)}}}" if exponent else digits


def _reached(row: Mapping[Any, Any]) -> str:
    """The rounds to the target, and how many seeds reached it if not all did."""
    if not row["reached"]:
        return "never"
    some = f" ({row['reached']} of {row['seeds']})" if row["reached"] < row["seeds"] else ""
    spread = "" if np.isnan(row["rounds_to_target_std"]) else f" \\pm {row['rounds_to_target_std']:.2g}"
    return f"${row['rounds_to_target']:.0f}{spread}${some}"


def comparison(
    results: Mapping[str, Sequence[Result]], target: float | None = None, metric: str = METRIC, test: Test = "t"
) -> Comparison:
    """The table of runs that are there.

    Where a seed diverged, the mean final loss is infinite: the other seeds do not hide it.

    Args:
        results: each algorithm's runs over the seeds, by label.
        target: the loss of the column `rounds_to_target`; the best final train loss times 1.1 if not given.
        metric: the column of the history whose final and best values it has.
        test: see `against_best`.

    Raises:
        ConfigurationError: no run has such a column.
    """
    columns = {str(column) for runs in results.values() for run in runs for column in run.history}
    if metric not in columns:
        raise unknown("metric", metric, columns)
    finals = {name: float(np.mean([final_loss(run) for run in runs])) for name, runs in results.items()}
    finite = [value for value in finals.values() if np.isfinite(value)]
    aim = target if target is not None else (TARGET_FACTOR * min(finite) if finite else np.nan)
    seeds = pd.DataFrame([_outcome(name, run, aim, metric) for name, runs in results.items() for run in runs])
    table = pd.DataFrame([_over_seeds(name, seeds[seeds["algorithm"] == name], metric) for name in results])
    for measure, best_of in tested(metric).items():
        means = {
            name: value for name, value in zip(table["algorithm"], table[measure], strict=True) if np.isfinite(value)
        }
        if means:
            wanted = best_of(means.values())
            best = next(name for name, value in means.items() if value == wanted)
            by_seed = {name: seeds[seeds["algorithm"] == name].set_index("seed")[measure] for name in results}
            seeds_of_best = by_seed[best].index
            values = {
                name: own.tolist() if own.index.is_unique and own.index.equals(seeds_of_best) else []
                for name, own in by_seed.items()  # a report may hold other seeds of another comparison: no pairs
            }
            table[f"{measure}_p"] = list(against_best(values, best, test).values())
    return Comparison(results, seeds, table, float(aim), target is not None, metric, test)


def _outcome(name: str, run: Result, aim: float, metric: str) -> dict[str, Any]:
    """What came of one run."""
    table, (best, at) = run.history, run.best(metric)
    return {
        "algorithm": name,
        "seed": run.spec.plan.seed,
        "rounds": len(table),
        "final_train_loss": final_loss(run),
        f"final_{metric}": run.final(metric),
        f"best_{metric}": best,
        f"best_{metric}_round": at or np.nan,
        "rounds_to_target": rounds_to(run, aim),
        "stepsize_mean": table["stepsize_mean"].mean(),
        "seconds": table["seconds"].sum(),
        "gradient_evaluations": table["gradient_evaluations"].sum(),
        "bytes": (table["bytes_up"] + table["bytes_down"]).sum(),
        "diverged": run.diverged_at is not None,
        "loss_rose": run.loss_rose,
    }


def _over_seeds(name: str, seeds: pd.DataFrame, metric: str) -> dict[str, Any]:
    """An algorithm's row: means and deviations over its seeds; the p-values come later."""
    reached = seeds["rounds_to_target"][np.isfinite(seeds["rounds_to_target"])]
    row: dict[str, Any] = {"algorithm": name, "seeds": len(seeds), "rounds": int(seeds["rounds"].mean())}
    for measure in tested(metric):
        values = seeds[measure].to_numpy(float)
        row[measure] = float(np.mean(values))
        row[f"{measure}_std"] = (
            float(np.std(values, ddof=1)) if len(values) > 1 and np.isfinite(row[measure]) else np.nan
        )
        row[f"{measure}_p"] = np.nan
    row |= {column: float(seeds[column].mean(skipna=False)) for column in (f"best_{metric}", f"best_{metric}_round")}
    row |= {
        "rounds_to_target": float(reached.mean()) if len(reached) else np.inf,
        "rounds_to_target_std": float(reached.std()),
        "reached": len(reached),
    }
    row |= {
        column: float(seeds[column].mean()) for column in ("stepsize_mean", "seconds", "gradient_evaluations", "bytes")
    }
    return row | {column: int(seeds[column].sum()) for column in ("diverged", "loss_rose")}


def final_loss(run: Result) -> float:
    """The training loss of the run's model; infinite if the run diverged, NaN if it was never evaluated."""
    if run.diverged_at is not None:
        return np.inf
    return run.final("train_loss")


def rounds_to(run: Result, target: float) -> float:
    """The first round whose training loss is at most the target; infinite if there is none."""
    reached = run.history.loc[run.history["train_loss"] <= target, "round"]
    return float(reached.iloc[0]) if len(reached) else np.inf
