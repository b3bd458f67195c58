"""Results in words: titles, numbers, and records for JSON.

The terminal, the figures and the HTML page use these, so that a run is called the same everywhere.
"""

from pathlib import Path
from typing import Any

import numpy as np

from fedsps.runs.result import Result
from fedsps.runs.spec import Spec


def spec_title(spec: Spec) -> str:
    """What a spec trains on, in one line: data, model, split and setting.

    >>> spec_title(Spec.of("fedsps", data="mnist", partition="iid", cohort=3, batch_size=None))
    'mnist, logistic, iid, 10 clients, 3 a round, 5 local steps, batch all'
    """
    if spec.task is None:
        return f"clients of Python{_rounds(spec)}"
    task = spec.task
    clients = "clients of the data" if task.partition == "natural" else f"{task.clients} clients"
    return f"{Path(task.data).name}, {task.model}, {task.partition}, {clients}{_rounds(spec)}"


def run_title(result: Result) -> str:
    """What a run trained on, in one line; a run from Python or of a federation does not name its data."""
    if result.spec.task is not None:
        return spec_title(result.spec)
    return f"{result.data.get('model', 'model')}, {result.data.get('clients', '?')} clients{_rounds(result.spec)}"


def _rounds(spec: Spec) -> str:
    """The end of a title: the cohort if not all take part, local steps, and batch."""
    cohort = f", {spec.plan.cohort} a round" if spec.plan.cohort else ""
    cohort += f", absences {spec.plan.absences}" if spec.plan.absences else ""
    return f"{cohort}, {spec.plan.local_steps} local steps, batch {spec.plan.batch_size or 'all'}"


def shown(value: float | None) -> str:
    """A number in four digits, or a dash where there is none.

    >>> shown(0.123456), shown(None), shown(float("nan"))
    ('0.1235', '-', '-')
    """
    return "-" if value is None or np.isnan(value) else f"{value:.4g}"


def finite(rows: list[dict[Any, Any]]) -> list[dict[str, Any]]:
    """Records for JSON, which has no infinity and no NaN: they become null.

    >>> finite([{"rounds": 3, "rounds_to_target": float("inf")}])
    [{'rounds': 3, 'rounds_to_target': None}]
    """
    return [
        {str(key): None if isinstance(value, float) and not np.isfinite(value) else value for key, value in row.items()}
        for row in rows
    ]
