"""The layers that each client keeps for itself: batch norm, where the plan says `local_batch_norm` (FedBN).

    x_i = x, with client i's own parameters in the places of its batch-norm layers

Client i starts a round from `x_i` and its own statistics, and trains all of it. The server's x changes in the other
coordinates alone: what a client sends is 0 in these, and its statistics are not sent. They are part of the client's
state, so they are saved, sent to ranks and kept on a node's disk as any state is.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsps.core.algorithm import Algorithm
from fedsps.core.contract import Exchange
from fedsps.core.kinds import LastIterate
from fedsps.core.local_training import Train
from fedsps.core.vectors import BufferMean, Tensors, scalars
from fedsps.engine.rehearsal import Rehearsal
from fedsps.errors import ConfigurationError
from fedsps.model.network import Network

PREFIX = "own:"  # of the layers' names in a client's state, which are those of the module's state_dict


@dataclass(frozen=True)
class OwnLayers:
    """Which layers these are.

    Attributes:
        places: of their parameters in x, by name.
        buffers: the names of their buffers.
    """

    places: Mapping[str, slice]
    buffers: tuple[str, ...]

    @classmethod
    def of(cls, network: Network) -> "OwnLayers | None":
        """The batch-norm layers of a model; None if it has none."""
        places, buffers = network.batch_norm
        return cls(places, tuple(buffers)) if places or buffers else None

    def check(self, algorithm: Algorithm) -> None:
        """Refuse an algorithm that would carry something of these layers to others, or that returns a mean of points.

        Raises:
            ConfigurationError: a client's message has another vector than its change of the model, such as a gradient;
                or the output is no last iterate, with which alone a client's last layers go.
        """
        if not isinstance(algorithm.output_rule, LastIterate):
            raise ConfigurationError(
                f"local_batch_norm goes with the last iterate: each client's layers are those of the last round; the "
                f"output is {algorithm.output_rule!r}: leave it out (with_parts(output=LastIterate()); of fedpolyak, "
                "plateau+diagonal)"
            )
        x = torch.zeros(2)
        for exchange in algorithm.exchanges(0):
            own = self._with(exchange, (("first", slice(0, 1)),))
            received = exchange.broadcast(algorithm.server_init(x))
            work = Rehearsal(2, 0, torch.tensor(0), scalars(x, 1.0), value=1.0)
            message, _, _ = own.work(algorithm.client_init(x) | {"first": x[:1]}, x, received, work)
            for name, sent in message.items():
                if sent.shape == x.shape and bool(sent[0] != 0):
                    raise ConfigurationError(
                        f"local_batch_norm is for algorithms whose clients send their change of the model, such as "
                        f"fedsps, fedavg, fedadam or scaffold; {algorithm!r} also sends {name}"
                    )

    def new(self, x: Tensor, buffers: Tensors) -> Tensors:
        """The layers of clients that never trained: those of the server's `x [..., d]` and buffers, each `[*]`."""
        made = {name: x[..., place] for name, place in self.places.items()}
        made |= {name: buffers[name].expand(x.shape[:-1] + buffers[name].shape) for name in self.buffers}
        return {PREFIX + name: value.clone() for name, value in made.items()}

    def into(self, x: Tensor, buffers: Tensors, layers: Tensors) -> tuple[Tensor, Tensors]:
        """The point `x [..., d]` and the buffers with these layers in their places; the layers by their own names."""
        x = x.clone()
        for name, place in self.places.items():
            x[..., place] = layers[name]
        return x, buffers | {name: layers[name] for name in self.buffers}

    def exchange(self, exchange: Exchange) -> Exchange:
        """The exchange in which these layers stay with the client."""
        return self._with(exchange, tuple((PREFIX + name, place) for name, place in self.places.items()))

    @staticmethod
    def _with(exchange: Exchange, own: tuple[tuple[str, slice], ...]) -> Exchange:
        return replace(exchange, own=own) if isinstance(exchange, Train) else exchange


def layers_of(state: Tensors) -> Tensors:
    """The layers in the state of a client, or of many, by their own names; empty where clients keep none.

    >>> layers_of({"cap": torch.ones(2), "own:norm.weight": torch.zeros(2)})
    {'norm.weight': tensor([0., 0.])}
    """
    return {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}


def newcomers(layers: Tensors) -> Tensors:
    """What a client that never trained starts from: the mean of all clients' layers, each `[clients, *] -> [*]`."""
    mean = BufferMean()
    mean.add(layers)
    return mean.result()
