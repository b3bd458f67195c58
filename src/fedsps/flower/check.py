"""What an honest answer looks like, and why another one is refused.

The server never trusts the form of an answer: names, shapes and dtypes are held against a rehearsed one, and counts
against limits. What is refused is a `DataError`, which the round reports as an event of that client; one client cannot
stop the server by what it sends.
"""

import operator
from dataclasses import dataclass

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedsps.core.contract import TRACE_FIELDS, Exchange, LossAndGradient, Trace
from fedsps.core.vectors import Tensors, scalars
from fedsps.engine.answer import Answer
from fedsps.engine.setup import Setup, State
from fedsps.errors import DataError
from fedsps.flower import wire

MOST_GRADIENTS = 10**12  # the sum over a cohort fits into 64 bits


@dataclass(frozen=True)
class Rehearsal:
    """`Work` without data: every loss and gradient is 0. It tells the names and shapes of a message.

    Attributes:
        steps: the number of batches.
        iteration: the global iteration of the first step.
        client: the number of the client; any will do.
        fraction: the share of a batch in the client's data; any will do.
    """

    steps: int
    iteration: int
    client: Tensor
    fraction: Tensor

    def loss_and_gradient(self, x: Tensor, step: int) -> LossAndGradient:
        """A loss of 0 and a gradient of zeros, in the shapes and dtypes of real ones."""
        return scalars(x, 0.0), torch.zeros_like(x)

    probe = loss_and_gradient


def rehearse(setup: Setup, state: State, exchange: Exchange) -> tuple[Tensors, Trace | None]:
    """A message and a trace with the right names, shapes and dtypes, made on the server without data.

    Args:
        setup: of the run.
        state: before the exchange; its server state is broadcast as it would be.
        exchange: which one.

    Returns:
        The message, and the trace or None if the exchange does not train.
    """
    x = state.x
    steps = 1 if exchange.whole_data else setup.plan.local_steps
    work = Rehearsal(steps, state.round * setup.plan.local_steps, torch.tensor(0), scalars(x, 1.0))
    client_state = setup.algorithm.client_init(x)
    message, _, trace = exchange.work(client_state, x, exchange.broadcast(state.server), work)
    return message, trace


def accept(content: RecordDict, message: Tensors, trace: Trace | None, state: State) -> Answer:
    """The answer of a client, held against a rehearsed one; raises a DataError with the reason if it is refused.

    Values may still be NaN or infinite: see `infinite`.

    Args:
        content: what the client sent.
        message: the rehearsed one.
        trace: the rehearsed one; None if no trace and no buffers are expected.
        state: before the exchange; it tells the buffers, and the device.

    Raises:
        DataError: the client reports an error (its text is cut at 500 characters), or the answer is not of this form.
    """
    if "error" in content.config_records:
        raise DataError(str(wire.values(content, "error").get("text", "failed"))[:500])
    try:
        gradients = operator.index(wire.values(content, "facts").get("gradients", 0))
        sent = {name: wire.tensors(content, name, state.x) for name in ("message", "buffers", "trace")}
    except Exception as error:
        raise DataError(f"the answer cannot be read ({type(error).__name__})") from error
    if not 0 <= gradients <= MOST_GRADIENTS:
        raise DataError(f"it says that it took {gradients:.6g} gradients")
    _same("message", sent["message"], message)
    buffers = state.buffers if trace is not None else {}
    _same("buffer", sent["buffers"], buffers)
    _same("trace", sent["trace"], {} if trace is None else {name: getattr(trace, name) for name in TRACE_FIELDS})
    kept = None if trace is None else Trace(*(sent["trace"][name] for name in TRACE_FIELDS))
    return Answer(sent["message"], {}, sent["buffers"], kept, gradients)


def infinite(answer: Answer) -> str | None:
    """What in an answer holds NaN or infinity, if anything does: the client diverged, or is broken.

    >>> infinite(Answer({"delta": torch.tensor([1.0, torch.nan])}, {}, {}, None, gradients=1))
    'delta'
    """
    values = [*answer.message.items(), *answer.buffers.items()]
    if answer.trace is not None:
        values += [(name, getattr(answer.trace, name)) for name in ("losses", "stepsizes")]
        values.append(("gap", answer.trace.gap.clamp(-1, 1)))  # +inf without a bound; NaN stays NaN
    return next((name for name, value in values if not value.isfinite().all()), None)


def accept_scores(content: RecordDict, held: int) -> dict[str, float]:
    """What a client says of the model, on its data and on its own test data of so many samples, if it has any.

    Losses may be infinite: the model of a run that diverges has such. A DataError says why scores are refused.

    Args:
        content: what the client sent.
        held: the number of its own test samples, as it said when it introduced itself.

    >>> from flwr.app import MetricRecord
    >>> accept_scores(RecordDict({"scores": MetricRecord({"train_loss": 0.5})}), held=0)
    {'train_loss': 0.5}
    """
    if "error" in content.config_records:
        raise DataError(str(wire.values(content, "error").get("text", "failed"))[:500])
    sent = dict(content.metric_records["scores"]) if "scores" in content.metric_records else {}
    scores = {name: float(value) for name, value in sent.items() if isinstance(value, int | float)}
    asked = {"train_loss"} | ({"test_loss", "test_samples"} if held else set())
    if len(scores) < len(sent) or not asked <= scores.keys() <= asked | ({"test_accuracy"} if held else set()):
        raise DataError(f"not the numbers that were asked for: {', '.join(sorted(asked))}")
    if scores.get("test_samples", 0) != held:
        raise DataError(f"test_samples is {scores['test_samples']:g}, it had {held}")
    if not 0 <= scores.get("test_accuracy", 0) <= 1:
        raise DataError(f"test_accuracy is {scores['test_accuracy']:g}")
    return scores


def _same(kind: str, sent: Tensors, expected: Tensors) -> None:
    """Refuse other names, shapes or dtypes than were asked for."""
    missing, more = expected.keys() - sent.keys(), sent.keys() - expected.keys()
    if missing or more:
        what = f"{kind} {min(missing)} is missing" if missing else f"{kind} {min(more)} was not asked for"
        raise DataError(what)
    for name, value in expected.items():
        got = sent[name]
        if got.shape != value.shape or got.dtype != value.dtype:
            raise DataError(
                f"{name} is {got.dtype} of shape {tuple(got.shape)}, not {value.dtype} of {tuple(value.shape)}"
            )
