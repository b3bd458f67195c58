"""The client's side: its data, its state and its share of an exchange."""

import logging
from collections.abc import Callable, Mapping
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

from fedsps.data.federated import Federation, Samples, held_out, samples
from fedsps.engine.answer import Answer, answer
from fedsps.engine.flower import wire
from fedsps.engine.flower.settings import Settings
from fedsps.engine.flower.store import NEVER, Store
from fedsps.engine.setting import Setting
from fedsps.errors import ConfigurationError
from fedsps.evaluate import score
from fedsps.logistic import objective
from fedsps.network import Loss
from fedsps.objective import Objective
from fedsps.session import prepare
from fedsps.shapes import DTYPES, Tensors

log = logging.getLogger("fedsps")
Act = Callable[["Site", RecordDict], RecordDict]


@dataclass(frozen=True)
class SiteData:
    """What one client has: `(inputs, targets)` or a data set to train on, and of its own to test on, if any."""

    train: Samples
    test: Samples | None = None


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
    """
    app = ClientApp()

    def handler(act: Act) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            try:
                content = act(Site(context, model, data, loss), message.content)
            except Exception as error:  # the server is told why; the traceback stays here
                log.exception("client failed")
                private = bool(context.run_config.get("clip-norm"))  # then the text may tell too much
                content = wire.error(f"{type(error).__name__}: {'see the log of the client' if private else error}")
            return Message(content, reply_to=message)

        return handle

    app.train("train")(handler(Site.work))
    app.train("probe")(handler(Site.work))
    app.evaluate()(handler(Site.evaluate))
    app.query()(handler(Site.introduce))
    return app


class Site:
    """One client, for the time of one message."""

    def __init__(
        self,
        context: Context,
        model: Callable[[Context], nn.Module],
        data: Callable[[Context], SiteData],
        loss: Loss,
        private: bool = False,
    ) -> None:
        self.settings = Settings.of(context.run_config)
        self.private = private or self.settings.privacy is not None  # then it tells nothing of its data
        torch.set_num_threads(self.settings.threads)
        self.partition, self.partitions = (_number(context, key) for key in ("partition-id", "num-partitions"))
        if not 0 <= self.partition < self.partitions:
            raise ConfigurationError(
                f"partition-id is {self.partition}: it counts from 0 to num-partitions - 1, {self.partitions - 1}"
            )
        default = platformdirs.user_state_path("fedsps") / "flower"
        self.state_dir = Path(str(context.node_config.get("state-dir", default)))
        self.goal: Objective = objective(model(context).to(DTYPES[self.settings.dtype]), loss)
        found = data(context)
        if not isinstance(found, SiteData):
            raise ConfigurationError(f"the data function must return fedsps' SiteData; got {type(found).__name__}")
        inputs, targets = samples(found.train, f"partition {self.partition}")
        sizes = np.zeros(self.partitions, dtype=np.int64)  # this machine knows of one client only
        sizes[self.partition] = len(targets)
        self.train = Federation(inputs, targets, sizes).to(self.goal.x, self.goal.accepted)
        self.test = None if found.test is None else held_out(found.test).to(self.goal.x, self.goal.accepted)

    @property
    def setting(self) -> Setting:
        """The run, seen from here."""
        return self.settings.setting(self.goal, self.train)

    def introduce(self, content: RecordDict) -> RecordDict:
        """Which partition lives here, and how much it has; the model is tried on one batch."""
        prepare(self.setting, "loop")
        held = 0 if self.test is None else len(self.test.targets)
        size = len(self.train.targets)
        if self.private:
            size, held = 1, 0  # not told
        return RecordDict(
            {"facts": wire.facts(partition=self.partition, partitions=self.partitions, samples=size, test_samples=held)}
        )

    def work(self, content: RecordDict) -> RecordDict:
        """The client's share of an exchange."""
        model, buffers, received = (wire.tensors(content, name, self.goal.x) for name in (*wire.MODEL, "received"))
        done, lost = self.share(wire.told(content, "ask"), model["x"], buffers, received)
        if self.settings.privacy is not None:
            clipped = {"delta": self.settings.privacy.clip(done.message["delta"])}
            facts = wire.facts(gradients=done.gradients, lost=lost)
            return RecordDict({"message": wire.arrays(clipped), "facts": facts})
        trace = {} if done.trace is None else {name: value.to(self.goal.x) for name, value in vars(done.trace).items()}
        return RecordDict(
            {
                "message": wire.arrays(done.message),
                "buffers": wire.arrays(done.buffers if trace else {}),
                "trace": wire.arrays(trace),
                "facts": wire.facts(gradients=done.gradients, lost=lost),
            }
        )

    def share(self, ask: Mapping[str, Any], x: Tensor, buffers: Tensors, received: Tensors) -> tuple[Answer, bool]:
        """The work itself, from and to the client's own state; and whether that state was lost."""
        round, since = int(ask["round"]), int(ask["since"])
        setting, _ = prepare(self.setting, "loop")
        exchanges = setting.algorithm.exchanges(round)
        place = [exchange.action for exchange in exchanges].index(str(ask["action"]))
        fresh = setting.algorithm.client_init(x)
        store = Store.of(self.state_dir, str(ask["digest"]), self.partition, str(ask["token"]))
        own = store.load(round, place, since) if fresh else {}
        done = answer(setting, exchanges[place], round, x, buffers, received, self.partition, own or fresh)
        if fresh:
            store.save(round, place, since, done.own)
        return done, own is None and since > NEVER

    def evaluate(self, content: RecordDict) -> RecordDict:
        """The model's loss on this client's data, and loss and accuracy on its own test data."""
        if self.private:
            raise ConfigurationError("the run is private, and that does not cover evaluation by clients")
        model, buffers = (wire.tensors(content, name, self.goal.x) for name in wire.MODEL)
        found: dict[str, int | float | list[int] | list[float]] = {
            "train_loss": score(self.goal, model["x"], buffers, self.train_alone).loss.item()
        }
        if self.test is not None:
            loss, accuracy = score(self.goal, model["x"], buffers, self.test)
            found |= {"test_loss": loss.item(), "test_samples": len(self.test.targets)}
            found |= {} if accuracy.isnan() else {"test_accuracy": accuracy.item()}
        return RecordDict({"scores": MetricRecord(found)})

    @property
    def train_alone(self) -> Federation:
        """The same data as a federation of one."""
        return Federation(self.train.inputs, self.train.targets, np.array([len(self.train.targets)]))


def _number(context: Context, key: str) -> int:
    value = context.node_config.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigurationError(
            f"the node configuration has no whole number {key} (got {value!r}): start the SuperNode with "
            "--node-config 'partition-id=0 num-partitions=3'"
        )
    return value
