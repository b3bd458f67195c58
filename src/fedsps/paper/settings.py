"""The common setting of the paper's experiments (its section 5), and what smaller scales make of it.

A page says in which settings it differs; what it does not say is here, once.
"""

from typing import Any

from fedsps.paper.page import Line, Scale, Tuned

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
