"""The client's side: its data, its state and its share of an exchange.

A site lives for one message: Flower may start a new process for each. What must last is in the `Store`; everything else
is made again from the run configuration, the model function and the data function.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
import torch.nn.functional as F
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedsps.core.vectors import DTYPES, Tensors
from fedsps.data.clients import ClientData, Samples, held_out, samples
from fedsps.engine.answer import Answer, answer
from fedsps.engine.evaluate import evaluate_clients
from fedsps.engine.setup import Setup
from fedsps.engine.trial import prepare
from fedsps.errors import ConfigurationError, DataError
from fedsps.flower import wire
from fedsps.flower.config import RunConfig
from fedsps.flower.store import NEVER, Store
from fedsps.model.logistic import network_of
from fedsps.model.network import Loss

log = logging.getLogger("fedsps")
Act = Callable[["Site", RecordDict], RecordDict]


@dataclass(frozen=True)
class SiteData:
    """What one client has: samples to train on, and samples of its own to test on, if any.

    Attributes:
        train: `(inputs, targets)` as tensors or arrays, or a data set of such pairs.
        test: the same; None if the client has no test data.
    """

    train: Samples
    test: Samples | None = None


class LeavesRoundError(DataError):
    """A client of a private run leaves the round, since it has no vector that would help. Its words may be told."""


def client_app(
    model: Callable[[Context], nn.Module],
    data: Callable[[Context], SiteData],
    loss: Loss = F.cross_entropy,
) -> ClientApp:
    """A Flower `ClientApp` for every algorithm of the catalogue.

    Args:
        model: makes the module; the server decides its parameters. The context has the run and node configuration.
        data: loads this client's data; `context.node_config["partition-id"]` says which.
        loss: any torch loss of (outputs, targets).

    >>> pair = torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64)
    >>> app = client_app(lambda context: nn.Linear(4, 3), lambda context: SiteData(train=pair))
    >>> type(app).__name__
    'ClientApp'
    """
    acts = {"train.train": Site.work, "train.probe": Site.work, "evaluate": Site.evaluate, "query": Site.introduce}
    return make_client_app(model, data, loss, acts)


def make_client_app(
    model: Callable[[Context], nn.Module],
    data: Callable[[Context], SiteData],
    loss: Loss,
    acts: Mapping[str, Act],
    private: bool = False,
    mods: Sequence[Any] = (),
) -> ClientApp:
    """A `ClientApp` out of what a site does for each type of message.

    Args:
        model: makes the module.
        data: loads this client's data.
        loss: of outputs and targets.
        acts: by type of message, "train", "train.probe", "evaluate" or "query".
        private: whether the site tells nothing of its data; the server then learns of an error's type alone, and a
            client that cannot train leaves the round.
        mods: Flower's.
    """
    app = ClientApp(mods=list(mods))

    def handler(act: Act) -> Callable[[Message, Context], Message]:
        """A handler in Flower's form; what is raised goes to the client's log, and the answer says why."""

        def handle(message: Message, context: Context) -> Message:
            try:
                content = act(Site(context, model, data, loss, private), message.content)
            except Exception as error:  # the server is told why, unless that tells too much; the traceback stays here
                log.exception("client failed")
                hidden = private or bool(context.run_config.get("clip-norm"))
                text = (
                    f"{type(error).__name__}, see the log of the client"
                    if hidden
                    else f"{type(error).__name__}: {error}"
                )
                if private and message.metadata.message_type != "query":
                    raise error if isinstance(error, LeavesRoundError) else DataError(text) from None
                content = wire.error(text)
            return Message(content, reply_to=message)

        return handle

    for kind, act in acts.items():
        category, _, action = kind.partition(".")
        register = getattr(app, category)
        (register(action) if action else register())(handler(act))
    return app


class Site:
    """One client, for the time of one message.

    Args:
        context: Flower's, with the run and node configuration.
        model: makes the module.
        data: loads this client's data.
        loss: of outputs and targets.
        private: whether the site tells nothing of its data; it is so in any run with differential privacy.

    Raises:
        ConfigurationError: partition-id or num-partitions is missing or does not fit, or the data function does not
            return `SiteData`.
        DataError: the samples cannot be used.
    """

    def __init__(
        self,
        context: Context,
        model: Callable[[Context], nn.Module],
        data: Callable[[Context], SiteData],
        loss: Loss,
        private: bool = False,
    ) -> None:
        self.config = RunConfig.of(context.run_config)
        self.private = private or self.config.privacy is not None  # then it tells nothing of its data
        torch.set_num_threads(self.config.threads)
        self.partition, self.partitions = (_number(context, key) for key in ("partition-id", "num-partitions"))
        if not 0 <= self.partition < self.partitions:
            raise ConfigurationError(
                f"partition-id is {self.partition}: it counts from 0 to num-partitions - 1, {self.partitions - 1}"
            )
        default = platformdirs.user_state_path("fedsps") / "flower"
        self.state_dir = Path(str(context.node_config.get("state-dir", default)))
        self.network = network_of(model(context).to(DTYPES[self.config.dtype]), loss)
        site_data = data(context)
        if not isinstance(site_data, SiteData):
            raise ConfigurationError(f"the data function must return fedsps' SiteData; got {type(site_data).__name__}")
        inputs, targets = samples(site_data.train, f"partition {self.partition}")
        sizes = np.zeros(self.partitions, dtype=np.int64)  # this machine knows of one client only
        sizes[self.partition] = len(targets)
        self.train = ClientData(inputs, targets, sizes).to(self.network.x, self.network.accepted)
        self.test = (
            None if site_data.test is None else held_out(site_data.test).to(self.network.x, self.network.accepted)
        )

    @property
    def setup(self) -> Setup:
        """The run, seen from here: of all clients' data this one's alone, the others have 0 samples."""
        return self.config.setup(self.network, self.train)

    def introduce(self, content: RecordDict) -> RecordDict:
        """Which partition lives here, and how much it has; the model is tried on one batch.

        The trial is made before the first round, so that a model that cannot take this client's data is reported at
        once. A private site tells neither of its numbers of samples.
        """
        prepare(self.setup, "loop")
        held = 0 if self.test is None else len(self.test.targets)
        size = len(self.train.targets)
        if self.private:
            size, held = 1, 0  # not told
        return RecordDict(
            {"facts": wire.facts(partition=self.partition, partitions=self.partitions, samples=size, test_samples=held)}
        )

    def work(self, content: RecordDict) -> RecordDict:
        """The client's share of an exchange, from Flower's records to Flower's records.

        With differential privacy the message is the clipped change alone: no trace and no buffers leave the client.
        """
        model, buffers, received = (wire.tensors(content, name, self.network.x) for name in (*wire.MODEL, "received"))
        done, lost = self.share(wire.values(content, "ask"), model["x"], buffers, received)
        if self.config.privacy is not None:
            clipped = {"delta": self.config.privacy.clip(done.message["delta"])}
            facts = wire.facts(gradients=done.gradients, lost=lost)
            return RecordDict({"message": wire.arrays(clipped), "facts": facts})
        trace = (
            {} if done.trace is None else {name: value.to(self.network.x) for name, value in vars(done.trace).items()}
        )
        return RecordDict(
            {
                "message": wire.arrays(done.message),
                "buffers": wire.arrays(done.buffers if trace else {}),
                "trace": wire.arrays(trace),
                "facts": wire.facts(gradients=done.gradients, lost=lost),
            }
        )

    def share(self, ask: Mapping[str, Any], x: Tensor, buffers: Tensors, received: Tensors) -> tuple[Answer, bool]:
        """The work itself, from and to the client's own state; and whether that state was lost.

        Args:
            ask: the server's request, see `plain.request`.
            x: the server's point, `[d]`.
            buffers: the server's.
            received: its broadcast.

        Returns:
            The answer, and whether the server counted this client before while its state is not here any more.
        """
        round, since = int(ask["round"]), int(ask["since"])
        setup, _ = prepare(self.setup, "loop")
        exchanges = setup.algorithm.exchanges(round)
        place = [exchange.action for exchange in exchanges].index(str(ask["action"]))
        fresh = setup.algorithm.client_init(x)
        store = Store.of(self.state_dir, str(ask["digest"]), self.partition, str(ask["token"]))
        kept = store.load(round, place, since) if fresh else {}
        done = answer(setup, exchanges[place], round, x, buffers, received, self.partition, kept or fresh)
        if fresh:
            store.save(round, place, since, done.own)
        return done, kept is None and since > NEVER

    def evaluate(self, content: RecordDict) -> RecordDict:
        """The model's loss on this client's data, and loss and accuracy on its own test data.

        Raises:
            ConfigurationError: the run is private, and scores would tell of the data.
        """
        if self.private:
            raise ConfigurationError("the run is private, and that does not cover evaluation by clients")
        model, buffers = (wire.tensors(content, name, self.network.x) for name in wire.MODEL)
        scores: dict[str, int | float | list[int] | list[float]] = {
            "train_loss": evaluate_clients(self.network, model["x"], buffers, self.train_alone).loss.item()
        }
        if self.test is not None:
            loss, accuracy = evaluate_clients(self.network, model["x"], buffers, self.test)
            scores |= {"test_loss": loss.item(), "test_samples": len(self.test.targets)}
            scores |= {} if accuracy.isnan() else {"test_accuracy": accuracy.item()}
        return RecordDict({"scores": MetricRecord(scores)})

    @property
    def train_alone(self) -> ClientData:
        """The same data as those of a single client: evaluations go over clients that have samples."""
        return ClientData(self.train.inputs, self.train.targets, np.array([len(self.train.targets)]))


def _number(context: Context, key: str) -> int:
    """A whole number of the node configuration; the error says how a SuperNode is started with it."""
    value = context.node_config.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigurationError(
            f"the node configuration has no whole number {key} (got {value!r}): start the SuperNode with "
            "--node-config 'partition-id=0 num-partitions=3'"
        )
    return value
