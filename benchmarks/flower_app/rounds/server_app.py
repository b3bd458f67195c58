"""Both, one after the other, over the same nodes."""

import time

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsps.flower import RunConfig, federate
from rounds.task import model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = RunConfig.of(context.run_config)
    found = federate(grid, config, model(context))
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    began = time.perf_counter()
    strategy.start(grid, ArrayRecord(model(context).state_dict()), num_rounds=config.plan.rounds)
    theirs = (time.perf_counter() - began) / config.plan.rounds
    ours = found.history["seconds"]
    spread = f"{ours.mean():.2f} ({ours.min():.2f} to {ours.max():.2f})"
    print(f"seconds a round: fedsps {spread}, Flower's FedAvg {theirs:.2f}")
