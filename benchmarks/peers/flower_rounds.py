"""Flower: its FedAvg strategy on its simulation with one worker; a client's batches are drawn by hand."""

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workload import BATCH, CLASSES, CLIENTS, FEATURES, STEPSIZE, Work, client, draw

work = Work()
samples = work.samples
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    inputs, targets = map(torch.from_numpy, client(int(context.node_config["partition-id"]), samples))  # kept there
    model = torch.nn.Linear(FEATURES, CLASSES)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=STEPSIZE)
    for rows in torch.from_numpy(draw(np.random.default_rng(), samples)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    content = RecordDict()
    content["arrays"] = ArrayRecord(model.state_dict())
    content["metrics"] = MetricRecord({"num-examples": samples})
    return Message(content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    def round_ends(number: int, arrays: ArrayRecord) -> None:
        if number:  # it is also called before the first
            work.round_ends()

    model = torch.nn.Linear(FEATURES, CLASSES)
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    start = ArrayRecord(model.state_dict())
    end = strategy.start(grid, start, num_rounds=work.rounds, evaluate_fn=round_ends).arrays.to_torch_state_dict()
    work.finish(end["weight"].T, end["bias"])


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1},
            "init_args": {"num_cpus": 1, "include_dashboard": False},
        },
    )
