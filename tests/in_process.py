"""A Flower grid without processes: messages go through Flower's own bytes to the ClientApp and back."""

import itertools

import numpy as np
import torch
from conftest import make_clients
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from fedsps.core import streams
from fedsps.flower import RunConfig, SiteData, client_app, federate


class Grid:
    """Nodes 100, 101, ... serve partitions in descending order; `spoil(partition, kind, reply)` may change or drop a reply."""

    def __init__(self, app, partitions, state_dir, spoil=None):
        self.app, self.state_dir, self.spoil = app, state_dir, spoil
        self.nodes = {100 + place: partitions - 1 - place for place in range(partitions)}
        self.partitions = partitions
        self.config = {}
        self.dead = set()  # partitions that are connected and do not answer
        self.asked = []  # (kind, partition)
        self._numbers = itertools.count()
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # what a ServerApp's process has
        self._replies = {}

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        names, serves = [], dict(self.nodes)
        for message in messages:
            name = f"m{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = name
            names.append(name)
            node = message.metadata.dst_node_id
            partition = serves[node]
            self.asked.append((message.metadata.message_type, partition))
            if partition in self.dead:
                continue
            config = {
                "partition-id": partition,
                "num-partitions": self.partitions,
                "state-dir": str(self.state_dir / str(partition)),
            }
            context = Context(1, node, config, RecordDict(), dict(self.config))
            reply = self.app(message_from_proto(message_to_proto(message)), context)
            if self.spoil is not None:
                reply = self.spoil(partition, message.metadata.message_type, reply)
            if reply is not None:
                self._replies[name] = message_from_proto(message_to_proto(reply))
        return names

    def pull_messages(self, names):
        """In an order that has nothing to do with the partitions."""
        return [self._replies.pop(name) for name in sorted(names, reverse=True) if name in self._replies]


def linear(context=None):
    with streams.torch_seed(7, "test model"):
        return nn.Linear(4, 3).double()


def sites(clients, test=None):
    def data(context):
        return SiteData(clients[context.node_config["partition-id"]], test)

    return data


def grid(folder, clients=None, model=linear, spoil=None, test=None):
    clients = make_clients() if clients is None else clients
    return Grid(client_app(model, sites(clients, test)), len(clients), folder / "states", spoil)


def run(grid, folder, model=linear, test=None, app="", **config):
    """Federate FedSPS over the grid, or what the run configuration names; `local_steps` for local-steps."""
    usual = {"algorithm": "fedsps", "dtype": "float64", "rounds": 4, "batch_size": 5, "deadline": 5.0}
    config = usual | {"runs": str(folder / "runs")} | config
    grid.config = {name.replace("_", "-"): value for name, value in config.items()}
    with streams.torch_seed(7, "test model"):
        return federate(grid, RunConfig.of(grid.config), model(), test, app=app)


def weights(result):
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


def as_numbers(table, columns):
    return table[columns].to_numpy(np.float64)


class CrashError(Exception):
    """The server's process dies."""


def crash_after(messages):
    """The server dies after so many training answers."""
    count = 0

    def crash(partition, kind, reply):
        nonlocal count
        count += kind == "train.train"
        if count > messages:
            raise CrashError
        return reply

    return crash


def spoiled(clients, change, kinds=("train.train",)):
    """These clients' answers of every round, changed by a function of their records."""

    def spoil(partition, kind, reply):
        if partition in clients and kind in kinds:
            change(reply.content)
        return reply

    return spoil


def array(content, name, change, record="message"):
    old = content.array_records[record]
    content[record] = ArrayRecord({**old, name: Array(change(old[name].numpy()))})


def without_numbers(content):
    for name in content.array_records["message"]:
        array(content, name, lambda v: np.full_like(v, np.nan))
