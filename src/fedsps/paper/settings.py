"""The common setting of the paper's experiments (its section 5), and what smaller scales make of it.

A page says in which settings it differs; what it does not say is here, once.
"""

from collections.abc import Mapping
from typing import Any

from fedsps.paper.page import Line, Panel, Scale, Tuned

ROUNDS = {"smoke": 10, "laptop": 150, "paper": 500}


def common(scale: Scale, **changes: Any) -> dict[str, Any]:
    """500 rounds, 5 local steps, batch 20, 10 clients that all take part; evaluated every fifth round.

    The laptop scale has 150 rounds; the smoke scale 10 on 2000 training samples, evaluated in each.

    Args:
        scale: "smoke", "laptop" or "paper".
        **changes: fields of `Task` and `Plan` that the page has otherwise.

    >>> setting = common("laptop", data="mnist", local_steps=10)
    >>> setting["rounds"], setting["local_steps"], setting["clients"]
    (150, 10, 10)
    """
    base = {
        "model": "logistic",
        "clients": 10,
        "partition": "iid",
        "rounds": ROUNDS[scale],
        "local_steps": 5,
        "batch_size": 20,
        "evaluate_every": 1 if scale == "smoke" else 5,
        "samples": 2000 if scale == "smoke" else None,
    }
    return base | changes


def with_sampling(scale: Scale, **changes: Any) -> dict[str, Any]:
    """10 of 100 clients a round, the data split among all 100; else as `common`.

    Each client then has a tenth of the samples that it has there, and takes part in a tenth of the rounds on average.
    """
    return common(scale, **({"clients": 100, "cohort": 10} | changes))


KINDS = (("iid", "i.i.d."), ("two-class", "two classes"))
"""The two partitions of the networks' pages, and what they are called in figures."""

FEDSPS = Line("FedSPS", "fedsps:smoothing=paper")
FEDAVG = Line("FedAvg tuned", Tuned("fedavg", halve_from=50))
FEDAMS = Line("FedAMS tuned", Tuned("fedams", halve_from=50))

TABLE_1 = {  # the paper's best points of FedAvg and FedAMS, by kind of problem
    "LIBSVM": {"client_stepsize": 1.0, "server_stepsize": 1.0, "eps": 0.01},
    "MNIST": {"client_stepsize": 0.1, "server_stepsize": 1.0, "eps": 0.001},
    "LeNet": {"client_stepsize": 0.1, "server_stepsize": 1.0, "eps": 0.001},
}
FEDAVG_THERE, FEDAMS_THERE, FEDAMS_CORRECTED = "FedAvg table 1", "FedAMS table 1", "FedAMS table 1, bias-corrected"


def table_1(problem: str) -> list[Line]:
    """FedAvg and FedAMS at the paper's own best point, FedAMS also with the bias correction of its authors' code.

    >>> [line.algorithm for line in table_1("LIBSVM")][:2]
    ['fedavg:client_stepsize=1.0,server_stepsize=1.0', 'fedams:client_stepsize=1.0,server_stepsize=1.0,eps=0.01']
    """
    point = [f"{name}={value}" for name, value in TABLE_1[problem].items()]
    return [
        Line(FEDAVG_THERE, f"fedavg:{','.join(point[:2])}"),
        Line(FEDAMS_THERE, f"fedams:{','.join(point)}"),
        Line(FEDAMS_CORRECTED, f"fedams:{','.join(point)},bias_correction=true"),
    ]


AGAINST_FEDAVG = {"tuned": "FedAvg tuned", "at table 1": FEDAVG_THERE}
AGAINST_FEDAMS = {"tuned": "FedAMS tuned", "at table 1": FEDAMS_THERE, "at table 1, bias-corrected": FEDAMS_CORRECTED}
"""The baselines of twin verdicts: the winner of our search, and the paper's own point."""

SMOOTHINGS = {
    "literal": "fedsps:smoothing=paper",
    "loizou": "fedsps:smoothing=loizou",
    "loizou, reset": "fedsps:smoothing=loizou,reset=true",
    "none": "fedsps",
}
"""Readings of the smoothed cap: as the paper writes it; as the code that it builds on has it; that, begun anew in each
round, as where the optimiser is made anew; none."""


def smoothings(name: str, title: str, settings: Mapping[str, Any], *others: Line) -> Panel:
    """A panel of all readings of the smoothing on one setting, beside other lines."""
    lines = [Line(reading, algorithm) for reading, algorithm in SMOOTHINGS.items()]
    return Panel(f"{name} smoothing", f"{title}: smoothing of the cap", settings, [*lines, *others])
