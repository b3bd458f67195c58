"""The client's side: its data, its state and its share of an exchange.

A site lives for one message: Flower may start a new process for each. What must last is in the `Store`; everything else
is made again from the run configuration, the model function and the data function.
"""

import json
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
from fedsps.engine.own_layers import layers_of
from fedsps.engine.setup import Setup, suited
from fedsps.engine.trial import prepare
from fedsps.errors import ConfigurationError, DataError
from fedsps.flower import table, versions, wire
from fedsps.flower.config import COLUMNS, RunConfig
from fedsps.flower.policy import Policy, PolicyError
from fedsps.flower.store import NEVER, Store
from fedsps.flower.table import SiteTable, columns_of
from fedsps.model.device import placed
from fedsps.model.logistic import network_of
from fedsps.model.network import Loss

log = logging.getLogger("flwr.fedsps")  # below Flower's, whose output is the node's log
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
    data: Callable[[Context], SiteData | SiteTable],
    loss: Loss = F.cross_entropy,
) -> ClientApp:
    """A Flower `ClientApp` for every algorithm of the catalogue.

    Args:
        model: makes the module; the server decides its parameters. The context has the run and node configuration.
        data: loads this client's data; `context.node_config["partition-id"]` says which. Of a table it may be
            `SiteTable`, where the server adds up what all sites tell of theirs (`server_app(..., table=True)`).
        loss: any torch loss of (outputs, targets).

    >>> pair = torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64)
    >>> app = client_app(lambda context: nn.Linear(4, 3), lambda context: SiteData(train=pair))
    >>> type(app).__name__
    'ClientApp'
    """
    acts = {"train.train": Site.work, "train.probe": Site.work, "evaluate": Site.evaluate}
    return make_client_app(model, data, loss, acts | AROUND)


def make_client_app(
    model: Callable[[Context], nn.Module],
    data: Callable[[Context], SiteData | SiteTable],
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
        acts: by type of message, "train", "train.probe", "evaluate", "query" or "query.finished".
        private: whether the site tells nothing of its data; the server then learns of an error's type alone, and a
            client that cannot train leaves the round.
        mods: Flower's.
    """
    app = ClientApp(mods=list(mods))

    def handler(act: Act) -> Callable[[Message, Context], Message]:
        """A handler in Flower's form; what is raised goes to the client's log, and the answer says why."""

        def handle(message: Message, context: Context) -> Message:
            site = None
            try:
                table.take(context, message.content)
                site = Site(context, model, data, loss, private, loads=act is not Site.tell_sums)
                content = act(site, message.content)
            except Exception as error:  # the server is told why, unless that tells too much; the traceback stays here
                log.exception("client failed")
                hidden = private or bool(context.run_config.get("clip-norm"))
                text = (
                    f"{type(error).__name__}, see the log of the client"
                    if hidden and not isinstance(error, PolicyError)
                    else f"{type(error).__name__}: {error}"
                )
                if private and message.metadata.message_type != "query":
                    raise error if isinstance(error, LeavesRoundError) else DataError(text) from None
                content = wire.error(text)
                content.update({} if site is None else site.scores)
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
        loads: whether the model and the data are needed.

    Attributes:
        scores: what it has said of the model already, which is told even if what comes after fails.

    Raises:
        PolicyError: the site's policy does not allow the run.
        ConfigurationError: partition-id or num-partitions is missing or does not fit, or the data function does not
            return `SiteData`.
        DataError: the samples cannot be used.
    """

    def __init__(
        self,
        context: Context,
        model: Callable[[Context], nn.Module],
        data: Callable[[Context], SiteData | SiteTable],
        loss: Loss,
        private: bool = False,
        loads: bool = True,
    ) -> None:
        self._context, self._data = context, data
        self.scores = RecordDict()
        self.config = RunConfig.of(context.run_config)
        self.app = versions.of_app(model)
        self.policy = Policy.of(context.node_config)
        self.policy.check(self.app, self.config.privacy)
        self.private = private or self.config.privacy is not None  # then it tells nothing of its data
        torch.set_num_threads(self.config.threads)
        self.partition, self.partitions = (_number(context, key) for key in ("partition-id", "num-partitions"))
        if not 0 <= self.partition < self.partitions:
            raise ConfigurationError(
                f"partition-id is {self.partition}: it counts from 0 to num-partitions - 1, {self.partitions - 1}"
            )
        default = platformdirs.user_state_path("fedsps") / "flower"
        self.state_dir = Path(str(context.node_config.get("state-dir", default)))
        if loads:
            self._load(model, loss)

    def _load(self, model: Callable[[Context], nn.Module], loss: Loss) -> None:
        """The model and the data."""
        context, device = self._context, self.config.plan.device
        module = placed(model(context).to(DTYPES[self.config.dtype]), device)
        self.network = network_of(module, placed(loss, device))
        site_data = self._data(context)
        if isinstance(site_data, SiteTable):
            site_data = SiteData(*site_data.pairs(columns_of(context)))
        if not isinstance(site_data, SiteData):
            raise ConfigurationError(f"the data function must return fedsps' SiteData; got {type(site_data).__name__}")
        inputs, targets = samples(site_data.train, f"partition {self.partition}")
        sizes = np.zeros(self.partitions, dtype=np.int64)  # this machine knows of one client only
        sizes[self.partition] = len(targets)
        self.train = suited(self.network, ClientData(inputs, targets, sizes))
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
        once. A private site tells neither of its numbers of samples. What it runs is told too, see `versions`.
        """
        prepare(self.setup, "loop")
        held = 0 if self.test is None else len(self.test.targets)
        size = len(self.train.targets)
        if self.private:
            size, held = 1, 0  # not told
        return RecordDict(
            {
                "facts": wire.facts(
                    partition=self.partition,
                    partitions=self.partitions,
                    samples=size,
                    test_samples=held,
                    **versions.own(self.app),
                )
            }
        )

    def tell_sums(self, content: RecordDict) -> RecordDict:
        """Which partition lives here, and the counts, sums and words of its table; see `fedsps.flower.table`.

        Raises:
            PolicyError: the site's policy does not allow it.
            ConfigurationError: the run is private, which sums are not; or the data are no table.
        """
        self.policy.check_table()
        if self.private:
            raise ConfigurationError(
                f"a private run does not cover the sums of a table: agree on the columns, and set {COLUMNS}"
            )
        made = self._data(self._context)
        if not isinstance(made, SiteTable):
            raise ConfigurationError(f"the server asks for a table (table=True); the data are {type(made).__name__}")
        told = made.sums
        log.info("told to the server: counts, sums, squares and words of %s", ", ".join(told["columns"]))
        for finding in made.table.findings:
            log.info("the table: %s", finding)
        who = {"partition": self.partition, "partitions": self.partitions, "samples": 1, "test_samples": 0}
        return RecordDict({"facts": wire.facts(**who, sums=json.dumps(told), **versions.own(self.app))})

    def work(self, content: RecordDict) -> RecordDict:
        """The client's share of an exchange, from Flower's records to Flower's records.

        With differential privacy the message is clipped, and no trace and no buffers leave the client. Where the server
        also asks for the scores of the round before, they come first.
        """
        if "evaluate" in content.config_records:
            self.scores = self.evaluate(content)
        model, buffers, received = (wire.tensors(content, name, self.network.x) for name in (*wire.MODEL, "received"))
        done, lost = self.share(wire.values(content, "ask"), model["x"], buffers, received)
        if self.config.privacy is not None:
            self.policy.spend(self.state_dir, self.config.privacy)
            clipped = self.config.privacy.clip(done.message)
            facts = wire.facts(gradients=done.gradients, lost=lost)
            return RecordDict({"message": wire.arrays(clipped), "facts": facts})
        trace = (
            {} if done.trace is None else {name: value.to(self.network.x) for name, value in vars(done.trace).items()}
        )
        return RecordDict(
            {
                **self.scores,
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
        fresh = setup.client_init(x, buffers)
        store = self._store(ask)
        kept = store.load(round, place, since) if fresh else {}
        kept = kept and {name: value.to(x.device) for name, value in kept.items()}
        done = answer(setup, exchanges[place], round, x, buffers, received, self.partition, kept or fresh)
        if fresh:
            store.save(round, place, since, done.own)
        return done, kept is None and since > NEVER

    def forget(self, content: RecordDict) -> RecordDict:
        """Delete this client's state in a run that is finished, but for the layers that it has for itself."""
        ask = wire.values(content, "ask")
        store = self._store(ask)
        layers = layers_of(self._kept(ask, store)) if self.setup.own_layers is not None else {}
        store.forget()
        if layers:
            store.keep(layers)
        return RecordDict()

    def _kept(self, ask: Mapping[str, Any], store: Store) -> Tensors:
        """The state after the last round in which the client was counted; empty if it never was, or lost it."""
        since = list(ask["since"])[self.partition]
        return store.load(since + 1, 0, since) or {}

    def _store(self, ask: Mapping[str, Any]) -> Store:
        """The states of this client in the run that the server names."""
        return Store.of(self.state_dir, str(ask["digest"]), self.partition, str(ask["token"]))

    def evaluate(self, content: RecordDict) -> RecordDict:
        """The loss on this client's data, and loss and accuracy on its own test data, by its own layers if it has some.

        Raises:
            ConfigurationError: the run is private, and scores would tell of the data.
        """
        if self.private:
            raise ConfigurationError("the run is private, and that does not cover evaluation by clients")
        names = wire.OUTPUT if wire.OUTPUT[0] in content.array_records else wire.MODEL
        model, buffers = (wire.tensors(content, name, self.network.x) for name in names)
        x = model["x"]
        if self.setup.own_layers is not None:
            ask = wire.values(content, "evaluate")
            layers = layers_of(self._kept(ask, self._store(ask)) or self.setup.client_init(x, buffers))
            x, buffers = self.setup.own_layers.into(x, buffers, layers)
        scores: dict[str, int | float | list[int] | list[float]] = {
            "train_loss": evaluate_clients(self.network, x, buffers, self.train.as_one).loss.item()
        }
        if self.test is not None:
            loss, accuracy = evaluate_clients(self.network, x, buffers, self.test)
            scores |= {"test_loss": loss.item(), "test_samples": len(self.test.targets)}
            scores |= {} if accuracy.isnan() else {"test_accuracy": accuracy.item()}
        return RecordDict({"scores": MetricRecord(scores)})


AROUND: dict[str, Act] = {
    "query": Site.introduce,
    "query.table": Site.tell_sums,
    "query.finished": Site.forget,
}
"""What a site does before the first round and after the last, however answers travel."""


def _number(context: Context, key: str) -> int:
    """A whole number of the node configuration; the error says how a SuperNode is started with it."""
    value = context.node_config.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigurationError(
            f"the node configuration has no whole number {key} (got {value!r}): start the SuperNode with "
            "--node-config 'partition-id=0 num-partitions=3'"
        )
    return value
