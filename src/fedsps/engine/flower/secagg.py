"""Secure aggregation (SecAgg+): the server sees the sum of the clients' changes and never one of them.

Flower 1.41 has the protocol in its legacy interface only, for one round over one vector a client. That is all that is
used of it here: the round is asked for by a session like any other, the change is computed by a site like any other.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as legacy
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedsps import streams
from fedsps.data.federated import Samples
from fedsps.engine.flower import wire
from fedsps.engine.flower.server import Server, counted, federate, say
from fedsps.engine.flower.settings import Settings
from fedsps.engine.flower.site import Site, SiteData, log
from fedsps.engine.round import Collected
from fedsps.engine.setting import Setting, State
from fedsps.errors import ConfigurationError, DataError, FedspsError
from fedsps.logistic import objective
from fedsps.network import Loss
from fedsps.parts import Exchange, Trace, bytes_of
from fedsps.privacy import one_vector_only
from fedsps.session import Row, check_bound
from fedsps.streams import Rows

LEAST, MOST = 3, 1000  # clients: of two, each would see the other's change; the sum of 1024 would overflow
KEYS = 2  # of the protocol's four stages are for keys
BESIDE = 3  # numbers that travel behind the change, of which the server sees the means too: see `vector`


def secagg_client_app(
    model: Callable[[Context], nn.Module], data: Callable[[Context], SiteData], loss: Loss = F.cross_entropy
) -> ClientApp:
    """As `client_app`, for algorithms that send delta alone; what leaves the client is masked."""
    app = ClientApp(mods=[secaggplus_mod])

    def handler(act: Callable[[Site, RecordDict], RecordDict]) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            try:
                content = act(Site(context, model, data, loss, private=True), message.content)
            except Exception as error:  # the server is told of what kind it is; the rest stays here
                log.exception("client failed")
                kind = f"{type(error).__name__}, see the log of the client"
                if message.metadata.message_type != "query":  # it leaves the round
                    raise DataError(kind) from None
                content = wire.error(kind)
            return Message(content, reply_to=message)

        return handle

    app.train()(handler(train))
    app.query()(handler(Site.introduce))
    return app


def train(site: Site, content: RecordDict) -> RecordDict:
    """The client's vector in the clear; Flower's mod masks it before it leaves."""
    values, gradients = vector(site, legacy.recorddict_to_fitins(content, keep_input=True))
    parameters = ndarrays_to_parameters([values])
    result = FitRes(Status(Code.OK, ""), parameters, num_examples=1, metrics={"gradients": gradients})
    return legacy.fitres_to_recorddict(result, keep_input=False)


def vector(site: Site, ins: FitIns) -> tuple[np.ndarray[Any, np.dtype[np.float64]], int]:
    """The client's change, its mean loss and stepsize, and the range if any of these is beyond it, else 0.

    The server can check no vector that it does not see, so what is wrong with one is found here.
    """
    x = torch.from_numpy(parameters_to_ndarrays(ins.parameters)[0]).to(site.goal.x.device)
    done, _ = site.share(ins.config, x, {}, {})
    assert done.trace is not None, "the one exchange is training"
    trace = Trace(*(value.unsqueeze(0) for value in vars(done.trace).values()))
    check_bound(int(ins.config["round"]) + 1, trace, np.array([site.partition]))
    told = torch.stack([done.trace.losses.mean(), done.trace.stepsizes.mean()])
    values = torch.cat([done.message["delta"].double(), told.double()]).cpu()
    if not values.isfinite().all():
        raise DataError("the change of the model or its loss is not finite")
    limit = float(ins.config["range"])
    beyond = bool((values.abs() > limit).any())
    return np.append(values.numpy(), limit * beyond), done.gradients


def secagg_server_app(
    model: Callable[[Context], nn.Module],
    test: Callable[[Context], Samples] | None = None,
    loss: Loss = F.cross_entropy,
) -> ServerApp:
    """As `server_app`, for algorithms that send delta alone; the clients evaluate nothing."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = Settings.of(context.run_config)
        with streams.torch_seed(settings.seed, "model"):
            module = model(context)
        try:
            check(settings, module, loss)
            secure = partial(SecureServer, context=context)
            federate(grid, settings, module, None if test is None else test(context), loss, secure)
        except FedspsError as error:
            say(f"error: {error}")
            raise

    return app


def check(settings: Settings, module: nn.Module, loss: Loss) -> None:
    """Refuse what does not go with sums of masked vectors."""
    one_vector_only("secure aggregation", settings.algorithm, settings.built, objective(module, loss))
    for name, value, only in (("weights", settings.weights, "uniform"), ("mean", settings.mean, "mean")):
        if value != only:
            raise ConfigurationError(f"secure aggregation knows sums alone: {name} must be {only!r}; got {value!r}")
    if settings.privacy is not None:
        raise ConfigurationError("secure aggregation and differential privacy (clip-norm) do not go together yet")


def needed(cohort: int) -> int:
    """Two thirds: so many must stay to the end, and so many would have to collude with the server."""
    return max(LEAST, -(-2 * cohort // 3))


@dataclass(frozen=True)
class SecureServer(Server):
    """Collects the mean of an exchange by Flower's protocol, and nothing else."""

    context: Context

    def collect(self, setting: Setting, state: State, exchange: Exchange, audience: Rows) -> Collected:
        """One run of the protocol. It is repeated only if it broke off: two sums of one round would tell too much."""
        if not LEAST <= len(audience) <= MOST:
            raise ConfigurationError(
                f"secure aggregation needs {LEAST} to {MOST} clients a round; cohort is {len(audience)}"
            )
        least = needed(len(audience))
        events: list[str] = []
        silent: set[int] = set()
        for _ in range(1 + self.roll.settings.retries):
            events += self.roll.refresh()
            requests = self._requests(state, exchange, audience)
            if len(requests) < least:
                events.append(f"only {len(requests)} clients are connected")
                continue
            heard = {node: ins for node, ins in requests.items() if node not in silent}
            asked = Asked(self.roll.grid, heard if len(heard) >= least else requests)
            self._aggregate(asked, state.round, least)
            if asked.nodes:
                return self._collected(state, audience, asked, events)
            silent |= asked.silent
            events.append("secure aggregation broke off")
        raise DataError(
            f"round {state.round + 1}: secure aggregation broke off, {least} of {len(audience)} clients must stay to "
            f"the end ({events[-1]}). Run it again to go on from round {state.round}"
        )

    def evaluate(self, setting: Setting, state: State) -> dict[str, float]:
        """Nothing: scores of single clients are not asked for."""
        return {}

    @property
    def private(self) -> bool:
        """They tell nothing."""
        return True

    @property
    def untold(self) -> Row:
        """Only the mean over clients is known."""
        return dict.fromkeys(("stepsize_std_clients", "stepsize_one_mean", "stepsize_one_std"), np.nan)

    def _requests(self, state: State, exchange: Exchange, audience: Rows) -> dict[int, FitIns]:
        x = ndarrays_to_parameters([state.x.cpu().numpy()])
        beside: dict[str, Any] = {"range": self.roll.settings.clipping_range}
        return {
            self.roll.nodes[client]: FitIns(x, dict(self._ask(state, exchange, client)) | beside)
            for client in audience.tolist()
            if client in self.roll.nodes
        }

    def _aggregate(self, asked: "Asked", round: int, least: int) -> None:
        settings = self.roll.settings
        workflow = SecAggPlusWorkflow(
            1.0, least, max_weight=1.0, clipping_range=settings.clipping_range, timeout=settings.deadline
        )
        context = LegacyContext(self.context, strategy=cast(Any, asked), client_manager=cast(Any, asked))
        context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: round + 1})
        context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
        workflow(cast(Any, asked), context)

    def _collected(self, state: State, audience: Rows, asked: "Asked", events: list[str]) -> Collected:
        partitions = {node: partition for partition, node in self.roll.nodes.items()}
        clients = np.array(sorted(partitions[node] for node in asked.nodes), dtype=np.int64)
        delta, (loss, stepsize, beyond) = asked.mean[:-BESIDE], asked.mean[-BESIDE:]
        events += [f"client {client}: not in the sum" for client in audience.tolist() if client not in clients]
        limit = self.roll.settings.clipping_range
        many = round(float(beyond) / limit * len(clients))
        if many:
            events.append(f"values of {many} clients were clipped at {limit:g}")
        return Collected(
            clients=clients,
            mean={"delta": delta.to(state.x)},
            buffers=state.buffers,
            states=counted(state, clients),
            trace=Trace(loss.reshape(1, 1), stepsize.reshape(1, 1), torch.tensor([torch.inf])),
            gradients=asked.gradients,
            bytes_up=8 * (1 + len(asked.mean)) * len(clients),  # masked numbers, and the masked weight
            bytes_down=len(clients) * bytes_of(state.x),
            events=tuple(events),
        )


class Asked:
    """What Flower's workflow takes for grid, strategy and clients: one round's requests, and room for the mean."""

    def __init__(self, grid: Grid, requests: dict[int, FitIns]) -> None:
        self.grid = grid
        self.requests = requests
        self.stage = 0
        self.silent: set[int] = set()  # those that did not share their keys
        self.nodes: list[int] = []  # those in the mean
        self.mean = torch.empty(0)
        self.gradients = 0

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        """One stage. Flower's unmasking needs the keys of all, shared in the first two: if one is missing, it ends."""
        messages = list(messages)
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        self.stage += 1
        if self.stage <= KEYS:
            heard = {reply.metadata.src_node_id for reply in replies if not reply.has_error()}
            self.silent = {message.metadata.dst_node_id for message in messages} - heard
        return [] if self.silent else replies

    def num_available(self) -> int:
        """Of the clients."""
        return len(self.requests)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[tuple[Any, FitIns]]:
        """The requests by node."""
        return [(SimpleNamespace(node_id=node), ins) for node, ins in self.requests.items()]

    def aggregate_fit(
        self, server_round: int, results: list[tuple[Any, FitRes]], failures: list[Any]
    ) -> tuple[None, dict[str, Any]]:
        """Every result holds the same vector, the mean."""
        self.nodes = [proxy.node_id for proxy, _ in results]
        self.mean = torch.from_numpy(parameters_to_ndarrays(results[0][1].parameters)[0])
        self.gradients = sum(int(res.metrics.get("gradients", 0)) for _, res in results)
        return None, {}
