"""The rounds of fedsps or of Flower's FedAvg, over the same nodes."""

import itertools
import json
import time

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedsps.flower import RunConfig, federate
from rounds.task import model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = RunConfig.of(context.run_config)
    if context.run_config["bench.whose"] == "fedsps":
        seconds = federate(grid, config, model(context)).history["seconds"].tolist()
    else:
        seconds = flower(grid, model(context), config.plan.rounds)
    print(f"seconds of each round: {json.dumps([round(one, 3) for one in seconds])}")


def flower(grid: Grid, module: nn.Module, rounds: int) -> list[float]:
    """Seconds of each round of the strategy: it calls the server's evaluation before the first and after each."""
    ends: list[float] = []
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy.start(
        grid,
        ArrayRecord(module.state_dict()),
        num_rounds=rounds,
        evaluate_fn=lambda number, arrays: ends.append(time.perf_counter()),
    )
    return [after - before for before, after in itertools.pairwise(ends)]
