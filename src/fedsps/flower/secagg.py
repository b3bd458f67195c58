"""Secure aggregation (SecAgg+): the server sees the sum of the clients' changes and never one of them.

Flower 1.41 has the protocol in its legacy interface only, for one round over one vector a client. That is all that is
used of it here: the round is asked for by the same server as any other, the change is computed by a site like any
other. Beside the change travel a few numbers of which the server learns the sum alone: the scalars that the algorithm
sends and those of `TOLD`, each as a few digits (`digits`), and `BESIDE`.

Each pair of neighbours masks its vectors by numbers that cancel in the sum; shares of the keys let the others take off
the masks of whoever drops out. Values are clipped to a range and rounded, so the sum is exact up to that.

References:
    Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure Aggregation for
    Privacy-Preserving Machine Learning, CCS 2017.
    Bell, Bonawitz, Gascon, Lepoint, Raykova: Secure Single-Server Aggregation with (Poly)Logarithmic Overhead,
    CCS 2020.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as legacy
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import ServerApp
from torch import Tensor, nn

from fedsps.core.algorithm import Algorithm
from fedsps.core.contract import Exchange, Ranges
from fedsps.core.streams import Indices
from fedsps.core.vectors import Tensors, bytes_of, scalars
from fedsps.data.clients import Samples
from fedsps.engine.answer import Answer
from fedsps.engine.round import Collected
from fedsps.engine.session import Scores, check_bound
from fedsps.engine.setup import Setup, State
from fedsps.errors import ConfigurationError, DataError, LowerBoundError
from fedsps.flower.check import bounded_only
from fedsps.flower.client import AROUND, LeavesRoundError, Site, SiteData, make_client_app
from fedsps.flower.membership import Membership
from fedsps.flower.plain import request
from fedsps.flower.protocol import BELOW, INFINITE, Asked, checked_shares
from fedsps.flower.server import server_app
from fedsps.flower.transport import Heard
from fedsps.model.network import Loss

LEAST, MOST = 3, 1000  # clients: of two, each would see the other's change; the sum of 1024 would overflow
BESIDE = ("clipped", "known")
"""What travels behind the change and the scalars: the range if a value is beyond it or 0, and half of the range, which
everybody knows: its mean is wrong if a vector was damaged or a mask is left."""
TOLD: Ranges = {"mean loss": (-(2.0**20), 2.0**20), "mean stepsize": (0.0, 2.0**40)}
"""What every client tells for the history, whatever the algorithm; beyond its range it is the nearer end."""
STEPS = 2**22  # to which the range is rounded
DIGITS = 4  # of a scalar, in base STEPS


def secagg_client_app(
    model: Callable[[Context], nn.Module], data: Callable[[Context], SiteData], loss: Loss = F.cross_entropy
) -> ClientApp:
    """As `client_app`, for algorithms that send delta and scalars of stated ranges; what leaves the client is masked.

    The server gets no sizes, losses or scores of a single client, and of an error its type alone.

    Args:
        model: makes the module; it must have no buffers, but for those that stay at the clients.
        data: loads this client's data.
        loss: any torch loss of (outputs, targets).
    """
    mods = [checked_shares, secaggplus_mod]
    return make_client_app(model, data, loss, {"train": train} | AROUND, private=True, mods=mods)


def secagg_server_app(
    model: Callable[[Context], nn.Module],
    test: Callable[[Context], Samples] | None = None,
    loss: Loss = F.cross_entropy,
) -> ServerApp:
    """As `server_app`, for algorithms that send delta and scalars of stated ranges; the clients evaluate nothing.

    Args:
        model: makes the module; it must have no buffers, but for those that stay at the clients.
        test: loads the server's own test data, the only data that the model is evaluated on.
        loss: the clients' loss.
    """
    return server_app(model, test, loss, SecureTransport)


def train(site: Site, content: RecordDict) -> RecordDict:
    """The client's vector in the clear; Flower's mod masks it before it leaves.

    Args:
        site: the client.
        content: Flower's legacy instructions: the model and what the server broadcasts, in the order of the parts'
            `receives`, and the request as its configuration.
    """
    instructions = legacy.recorddict_to_fitins(content, keep_input=True)
    arrays = parameters_to_ndarrays(instructions.parameters)
    x, *broadcast = (torch.from_numpy(array).to(site.network.x.device) for array in arrays)
    names = [name for part in site.config.built.parts for name in part.receives]
    done, _ = site.share(instructions.config, x, site.network.buffers, dict(zip(names, broadcast, strict=True)))
    limit = float(instructions.config["range"])
    ranges = ranges_of(site.config.built, x, limit)
    values = vector(done, int(instructions.config["round"]), site.partition, limit, ranges)
    parameters = ndarrays_to_parameters([values])
    result = FitRes(Status(Code.OK, ""), parameters, num_examples=1, metrics={"gradients": done.gradients})
    return legacy.fitres_to_recorddict(result, keep_input=False)


def ranges_of(algorithm: Algorithm, x: Tensor, limit: float) -> Ranges:
    """The ranges of the scalars that clients send, if each weight changes by at most `limit`."""
    return algorithm.ranges(norm=limit * math.sqrt(len(x)))


def digits(value: float, low: float, high: float) -> list[int]:
    """A scalar of a range as `DIGITS` whole numbers d_k from 0 to B = `STEPS`; beyond the range, its nearer end.

        value = low + (high - low) (d_1 / B + d_2 / B^2 + d_3 / B^3 + d_4 / B^4)

    The protocol rounds a number to one of B steps, too coarse for a scalar that is far smaller than its range may be.
    Digits lie on the steps and are not rounded, so that their sums over clients, and the sum of scalars that these
    give, are exact: to 2^-88 of the range, and to float64's own rounding. (If the protocol's range is no power of two,
    float64 misses a step by some 1e-10 of it, and with that chance a digit is off by one.)

    >>> digits(0.75, 0.0, 1.0), digits(2.0**-40, 0.0, 1.0), digits(7.0, 0.0, 1.0)
    ([3145728, 0, 0, 0], [0, 16, 0, 0], [4194304, 0, 0, 0])
    """
    rest, found = min(max((value - low) / (high - low), 0.0), 1.0), []
    for _ in range(DIGITS):
        rest *= STEPS  # a power of two: nothing is lost
        found.append(math.floor(rest))
        rest -= found[-1]
    return found


def vector(
    done: Answer, round: int, client: int, limit: float, ranges: Ranges
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The client's change and, behind it, the digits of its K scalars and of `TOLD`, and `BESIDE`: `[d + 4 K + 10]`.

    The server can check no vector that it does not see, so what is wrong with one is found here.

    Args:
        done: the client's answer to training.
        round: 0, 1, ...
        client: its number.
        limit: the largest absolute value that the protocol carries; larger ones are clipped to it.
        ranges: of the scalars; what is beyond them is clipped too.

    Raises:
        LeavesRoundError: the change or a loss is not finite, or a loss fell below its bound.

    >>> from fedsps.core.contract import Trace
    >>> trace = Trace(losses=torch.tensor([0.5, 0.25]), stepsizes=torch.tensor([1.0, 3.0]), gap=torch.tensor(0.25))
    >>> done = Answer({"delta": torch.tensor([0.25, -9.0])}, {}, {}, trace, gradients=2)
    >>> values = vector(done, round=0, client=0, limit=8.0, ranges={})
    >>> values[:2].tolist(), values[-2:].tolist()
    ([0.25, -9.0], [8.0, 4.0])
    >>> message_of(torch.from_numpy(values), torch.zeros(2), 1, limit=8.0, ranges=TOLD)
    {'delta': tensor([ 0.2500, -9.0000]), 'mean loss': tensor(0.3750), 'mean stepsize': tensor(2.)}
    """
    assert done.trace is not None, "the one exchange is training"
    delta = done.message["delta"].cpu().double()
    means = (done.trace.losses.mean(), done.trace.stepsizes.mean())
    told = {name: float(mean) for name, mean in zip(TOLD, means, strict=True)}
    numbers = {name: float(done.message[name]) for name in ranges} | told
    if not delta.isfinite().all() or not np.isfinite(list(numbers.values())).all():
        raise LeavesRoundError(INFINITE)
    try:
        check_bound(round + 1, done.trace.as_cohort, np.array([client]))
    except LowerBoundError:
        raise LeavesRoundError(BELOW) from None
    beyond = [name for name, (low, high) in ranges.items() if not low <= numbers[name] <= high]
    clipped = bool((delta.abs() > limit).any()) or bool(beyond)  # a loss or a stepsize moves nothing
    every = ranges | TOLD
    places = np.array([place for name in every for place in digits(numbers[name], *every[name])], dtype=np.float64)
    return np.concatenate([delta, 2 * limit / STEPS * places - limit, [limit * clipped, limit / 2]])


def message_of(mean: Tensor, x: Tensor, clients: int, limit: float, ranges: Ranges) -> Tensors:
    """The mean of the messages out of the mean of so many vectors: the change, and the scalars from their digits.

    Args:
        mean: of the clients' vectors, `[d + 4 K + 2]`.
        x: the server's point, `[d]`, for the dtype and the device.
        clients: that are in the mean.
        limit: the largest absolute value that the protocol carries.
        ranges: of the K scalars, `TOLD` among them where clients tell it.

    >>> sent = [*torch.tensor(digits(0.75, 0.0, 1.0)) * 16 / STEPS - 8, 0.0, 4.0]
    >>> message_of(torch.tensor([0.25, *sent]).double(), torch.zeros(1), 1, limit=8.0, ranges={"length": (0.0, 1.0)})
    {'delta': tensor([0.2500]), 'length': tensor(0.7500)}
    """
    places = torch.tensor([float(STEPS) ** -place for place in range(1, DIGITS + 1)], dtype=torch.float64)
    sums = ((mean[len(x) : -len(BESIDE)] + limit) / (2 * limit) * STEPS * clients).round().view(-1, DIGITS)
    shares = (sums @ places / clients).clamp(0, 1).tolist()
    numbers = {
        name: scalars(x, low + (high - low) * share)
        for (name, (low, high)), share in zip(ranges.items(), shares, strict=True)
    }
    return {"delta": mean[: len(x)].to(x)} | numbers


def fault(mean: Tensor, clients: int, limit: float) -> str | None:
    """What is wrong with the mean of so many vectors; None if nothing is seen.

    Damaged vectors, wrong masks and weights other than 1 are seen. A client that knows the protocol and lies about its
    change or a scalar is not: it can leave the known numbers as they should be. But no digit's mean is taken that is
    beyond `limit`: whoever lies, the mean of a scalar is in its range.

    >>> fault(torch.tensor([0.1, 0.5, 1.0, 0.0, 4.0]), clients=5, limit=8.0)
    >>> fault(torch.tensor([0.1, 0.5, 1.0, 20.8, 4.0]), clients=5, limit=8.0)
    '13 of 5 clients would have clipped values'
    """
    tolerance = 4 * limit / STEPS
    if not bool(mean.isfinite().all()):
        return "it is not finite"
    clipped, known = mean[-2:].double().tolist()
    many = clipped / limit * clients
    if abs(many - round(many)) > 0.01 or not 0 <= round(many) <= clients:
        return f"{many:.4g} of {clients} clients would have clipped values"
    if abs(known - limit / 2) > tolerance:
        return f"the mean of a number that is {limit / 2:g} for all is {known:.6g}"
    if bool((mean.abs() > limit + tolerance).any()):
        return f"a mean of numbers up to {limit:g} is {mean.abs().max().item():.6g}"
    return None


def needed(cohort: int) -> int:
    """Two thirds: so many must stay to the end, and so many would have to collude with the server.

    >>> [needed(cohort) for cohort in (3, 4, 10)]
    [3, 3, 7]
    """
    return max(LEAST, -(-2 * cohort // 3))


@dataclass(frozen=True)
class SecureTransport:
    """The sum of an exchange by Flower's protocol, and nothing else.

    Attributes:
        membership: who is there.
        context: Flower's, which its workflow works in.
        digest: of the run, by which clients find their state.
    """

    membership: Membership
    context: Context | None
    digest: str
    tells = False

    def check(self, setup: Setup) -> None:
        """Refuse what does not go with sums of masked vectors."""
        config = self.membership.config
        bounded_only("secure aggregation", config.algorithm, setup)
        for name, value, only in (("weights", config.plan.weights, "uniform"), ("mean", config.mean, "mean")):
            if value != only:
                raise ConfigurationError(f"secure aggregation knows sums alone: {name} must be {only!r}; got {value!r}")
        if config.privacy is not None:
            raise ConfigurationError("secure aggregation and differential privacy (clip-norm) do not go together yet")
        cohort = config.plan.active(setup.data.clients)
        if not LEAST <= cohort <= MOST:
            raise ConfigurationError(f"secure aggregation needs {LEAST} to {MOST} clients a round; cohort is {cohort}")

    def least(self, audience: int) -> int:
        """So many must stay to the end of the protocol, whatever the minimum cohort is."""
        return needed(audience)

    def ask(self, setup: Setup, state: State, exchange: Exchange, audience: Indices, heard: Heard) -> list[str]:
        """One run of the protocol. It is repeated only if it broke off: two sums of one round would tell too much.

        If it broke off because some clients were silent, it is tried again without them, if enough are left.
        """
        config, nodes = self.membership.config, self.membership.nodes
        down = [state.x, *exchange.broadcast(state.server).values()]
        x = ndarrays_to_parameters([value.cpu().numpy() for value in down])
        limit = config.clipping_range
        behind = DIGITS * len(ranges_of(setup.algorithm, state.x, limit) | TOLD) + len(BESIDE)
        there = [client for client in audience.tolist() if client in nodes]
        least = needed(len(audience) + len(heard.refused))
        if len(there) < least:
            return [f"only {len(there)} clients are connected"]
        answering = [client for client in there if client not in heard.silent]
        requests = {
            nodes[client]: FitIns(x, cast(Any, dict(request(self.digest, state, exchange, client)) | {"range": limit}))
            for client in (answering if len(answering) >= least else there)
        }
        clients = {nodes[client]: client for client in there}
        asked = Asked(self.membership.courier, requests, len(state.x) + behind, config.deadline)
        broke = self._aggregate(asked, state.round, least)
        heard.infinite.update({clients[node]: None for node in asked.left(INFINITE)})
        bound = f"round {state.round + 1}: {BELOW}; set `lower` lower. The losses are in the clients' logs"
        heard.below.update({clients[node]: LowerBoundError(bound) for node in asked.left(BELOW)})
        heard.silent.update(clients[node] for node in asked.silent)
        events = [f"client {clients[node]}: {reason}" for node, reason in sorted(asked.reasons.items())]
        if not asked.nodes:
            heard.unused = len(asked.vectors)
            for client in {clients[node] for node in asked.silent}:
                nodes.pop(client, None)  # it is asked again once it has said that it is back
            return [*events, f"secure aggregation broke off{broke}"]
        wrong = fault(asked.mean, len(asked.nodes), limit)
        if wrong is not None:
            raise DataError(
                f"round {state.round + 1}: the sum of {len(asked.nodes)} clients cannot be right: {wrong}. A client is "
                "broken, and sums do not tell which; they are not taken twice, since two could tell more than one. The "
                f"model is that of round {state.round}: run it again to go on from there"
            )
        heard.sound.update(sorted((clients[node], asked) for node in asked.nodes))
        absent = set(audience.tolist()) - heard.sound.keys() - set(heard.refused)
        return events + [f"client {client}: not in the sum" for client in sorted(absent)]

    def combine(self, setup: Setup, state: State, exchange: Exchange, heard: Heard, diverged: bool) -> Collected:
        """The mean over the clients in the sum; of a diverged run NaN, on which a session ends."""
        clients = np.array(sorted(heard.infinite if diverged else heard.sound), dtype=np.int64)
        limit = self.membership.config.clipping_range
        ranges = ranges_of(setup.algorithm, state.x, limit)
        down = [state.x, *exchange.broadcast(state.server).values()]
        collected = Collected(
            clients=clients,
            mean={"delta": torch.full_like(state.x, torch.nan)}
            | {name: scalars(state.x, torch.nan) for name in ranges},
            buffers=state.buffers,
            states=state.clients,
            trace=None,
            gradients=0,
            bytes_up=0,
            bytes_down=len(clients) * bytes_of(down),
            ledger=state.ledger,
        )
        if diverged:
            return collected
        asked: Asked = next(iter(heard.sound.values()))
        many = round(asked.mean[-len(BESIDE)].item() / limit * len(clients))
        found = message_of(asked.mean, state.x, len(clients), limit, ranges | TOLD)
        loss, stepsize = (found.pop(name).item() for name in TOLD)
        where = f"{limit:g}" + (f", or at the range of {', '.join(ranges)}" if ranges else "")
        return replace(
            collected,
            mean=found,
            gradients=asked.gradients,
            bytes_up=8 * (1 + len(asked.mean)) * len(clients),  # masked numbers, and the masked weight
            means={"cohort_loss": loss, "stepsize_mean": stepsize},
            events=(f"values of {many} clients were clipped at {where}",) if many else (),
        )

    def evaluate(self, setup: Setup, state: State) -> Scores:
        """Nothing: scores of single clients are not asked for, since no masked sum would carry them."""
        return Scores({})

    def _aggregate(self, asked: Asked, round: int, least: int) -> str:
        """Run Flower's workflow for one round; `asked` plays all the parts that it calls on, and then has the mean.

        What the workflow itself stumbles over, such as shares that give no key, is told in the place of a sum.
        """
        config = self.membership.config
        workflow = SecAggPlusWorkflow(
            1.0,
            least,
            max_weight=1.0,
            clipping_range=config.clipping_range,
            quantization_range=STEPS,
            timeout=config.deadline,
        )
        if self.context is None:
            raise ConfigurationError("secure aggregation needs Flower's context: use secagg_server_app")
        context = LegacyContext(self.context, strategy=cast(Any, asked), client_manager=cast(Any, asked))
        context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: round + 1})
        context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
        try:
            workflow(cast(Any, asked), context)
        except Exception as error:
            asked.nodes = []
            return f": it cannot be unmasked ({type(error).__name__})"
        return ""
