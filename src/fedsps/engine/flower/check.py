"""What an honest answer looks like, and why another one is refused."""

import operator
from dataclasses import dataclass

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedsps.engine.answer import Answer
from fedsps.engine.flower import wire
from fedsps.engine.setting import Setting, State
from fedsps.errors import DataError
from fedsps.parts import Exchange, LossAndGradient, Trace
from fedsps.shapes import Tensors, scalars

MOST_GRADIENTS = 10**12  # the sum over a cohort fits into 64 bits
TRACE = ("losses", "stepsizes", "gap")


@dataclass(frozen=True)
class Rehearsal:
    """`Work` without data: every loss and gradient is 0. It tells the names and shapes of a message."""

    steps: int
    iteration: int
    client: Tensor
    fraction: Tensor

    def loss_and_gradient(self, x: Tensor, step: int) -> LossAndGradient:
        """Zeros."""
        return scalars(x, 0.0), torch.zeros_like(x)

    probe = loss_and_gradient


def rehearse(setting: Setting, state: State, exchange: Exchange) -> tuple[Tensors, Trace | None]:
    """A message and a trace with the right names, shapes and dtypes."""
    x = state.x
    steps = 1 if exchange.whole_data else setting.local_steps
    work = Rehearsal(steps, state.round * setting.local_steps, torch.tensor(0), scalars(x, 1.0))
    own = setting.algorithm.client_init(x)
    message, _, trace = exchange.work(own, x, exchange.broadcast(state.server), work)
    return message, trace


def accept(content: RecordDict, message: Tensors, trace: Trace | None, state: State) -> Answer:
    """The answer of a client, held against a rehearsed one; raises a DataError with the reason if it is refused."""
    if "error" in content.config_records:
        raise DataError(str(wire.told(content, "error").get("text", "failed"))[:500])
    try:
        gradients = operator.index(wire.told(content, "facts").get("gradients", 0))
        found = {name: wire.tensors(content, name, state.x) for name in ("message", "buffers", "trace")}
    except Exception as error:
        raise DataError(f"the answer cannot be read ({type(error).__name__})") from error
    if not 0 <= gradients <= MOST_GRADIENTS:
        raise DataError(f"it says that it took {gradients:.6g} gradients")
    _same("message", found["message"], message)
    buffers = state.buffers if trace is not None else {}
    _same("buffer", found["buffers"], buffers)
    _same("trace", found["trace"], {} if trace is None else {name: getattr(trace, name) for name in TRACE})
    kept = None if trace is None else Trace(*(found["trace"][name] for name in TRACE))
    return Answer(found["message"], {}, found["buffers"], kept, gradients)


def infinite(answer: Answer) -> str | None:
    """What in an answer holds NaN or infinity, if anything does: the client diverged, or is broken."""
    values = [*answer.message.items(), *answer.buffers.items()]
    if answer.trace is not None:
        values += [(name, getattr(answer.trace, name)) for name in ("losses", "stepsizes")]
        values.append(("gap", answer.trace.gap.clamp(-1, 1)))  # without a bound it is infinite
    return next((name for name, value in values if not value.isfinite().all()), None)


def accept_scores(content: RecordDict, held: int) -> dict[str, float]:
    """What a client says of the model, on its data and on its own test data of so many samples, if it has any.

    Losses may be infinite: the model of a run that diverges has such. A DataError says why scores are refused.
    """
    if "error" in content.config_records:
        raise DataError(str(wire.told(content, "error").get("text", "failed"))[:500])
    told = dict(content.metric_records["scores"]) if "scores" in content.metric_records else {}
    found = {name: float(value) for name, value in told.items() if isinstance(value, int | float)}
    asked = {"train_loss"} | ({"test_loss", "test_samples"} if held else set())
    if len(found) < len(told) or not asked <= found.keys() <= asked | ({"test_accuracy"} if held else set()):
        raise DataError(f"not the numbers that were asked for: {', '.join(sorted(asked))}")
    if found.get("test_samples", 0) != held:
        raise DataError(f"test_samples is {found['test_samples']:g}, it had {held}")
    if not 0 <= found.get("test_accuracy", 0) <= 1:
        raise DataError(f"test_accuracy is {found['test_accuracy']:g}")
    return found


def _same(kind: str, found: Tensors, expected: Tensors) -> None:
    missing, more = expected.keys() - found.keys(), found.keys() - expected.keys()
    if missing or more:
        what = f"{kind} {min(missing)} is missing" if missing else f"{kind} {min(more)} was not asked for"
        raise DataError(what)
    for name, value in expected.items():
        got = found[name]
        if got.shape != value.shape or got.dtype != value.dtype:
            raise DataError(
                f"{name} is {got.dtype} of shape {tuple(got.shape)}, not {value.dtype} of {tuple(value.shape)}"
            )
