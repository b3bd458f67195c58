"""What an honest answer looks like, and why another one is refused.

The server never trusts the form of an answer: names, shapes and dtypes are held against a rehearsed one, and counts
against limits. What is refused is a `DataError`, which the round reports as an event of that client; one client cannot
stop the server by what it sends.
"""

import operator
from collections.abc import Mapping, Set

import torch
from flwr.app import RecordDict

from fedsps.core.contract import TRACE_FIELDS, Exchange, Trace
from fedsps.core.vectors import Tensors, bytes_of, scalars
from fedsps.engine.answer import Answer
from fedsps.engine.rehearsal import Rehearsal
from fedsps.engine.setup import Setup, State, start
from fedsps.errors import ConfigurationError, DataError
from fedsps.flower import wire
from fedsps.flower.courier import SMALL

MOST_GRADIENTS = 10**12  # the sum over a cohort fits into 64 bits


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


def bounded_only(feature: str, name: str, setup: Setup) -> None:
    """Refuse algorithms and models whose clients tell more than the change of the model and scalars of stated ranges.

    Neither the noise nor the masks cover anything else that is sent, such as control variates or batch statistics. What
    the server broadcasts is made of the means, and tells no more than they do.

    Args:
        feature: how the message names what is asked for.
        name: of the algorithm, for the message.
        setup: of the run; its algorithm's first two rounds are looked at, and its model must send no buffers.
    """
    algorithm, buffers = setup.algorithm, setup.shared(setup.network.buffers)
    message, _ = rehearse(setup, start(setup, {}), algorithm.exchanges(0)[-1])
    ranges = algorithm.ranges(norm=1.0)
    before = [exchange.action for round in (0, 1) for exchange in algorithm.exchanges(round)[:-1]]
    more = [f"{action} (before training)" for action in dict.fromkeys(before)]
    for sent, value in message.items():
        if sent != "delta" and (value.dim() or sent not in ranges):
            more.append(f"{sent} ({'a vector' if value.dim() else 'a number without a stated range'})")
    if more:
        raise ConfigurationError(
            f"{feature} is for algorithms whose clients send the change of the model, and beside it only numbers of a "
            f"stated range, such as fedsps, fedavg, fedexp or fedpolyak; {name} also sends {', '.join(more)}"
        )
    if buffers:
        raise ConfigurationError(
            f"{feature} does not cover a model's buffers, and this one has {min(buffers)}: use group norm "
            "instead of batch norm (norm = group for resnet18) or leave it to the clients (local-batch-norm), and "
            "attributes instead of buffers for constants"
        )


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
        raise DataError(wire.plain_text(wire.values(content, "error").get("text", "failed")))
    expected = {
        "message": message,
        "buffers": state.buffers if trace is not None else {},
        "trace": {} if trace is None else {name: getattr(trace, name) for name in TRACE_FIELDS},
    }
    for kind, values in expected.items():
        _same_names(kind.removesuffix("s"), content.array_records.get(kind, {}).keys(), values.keys())
    try:
        gradients = operator.index(wire.values(content, "facts").get("gradients", 0))
        sent = {kind: wire.tensors(content, kind, state.x) for kind in expected}
    except Exception as error:
        raise DataError(f"the answer cannot be read ({type(error).__name__})") from error
    if not 0 <= gradients <= MOST_GRADIENTS:
        raise DataError(f"it says that it took {gradients:.6g} gradients")
    for kind, values in expected.items():
        _same_form(sent[kind], values)
    kept = None if trace is None else Trace(*(sent["trace"][name] for name in TRACE_FIELDS))
    return Answer(sent["message"], {}, sent["buffers"], kept, gradients)


def largest(state: State, message: Tensors, trace: Trace | None) -> int:
    """The bytes that an answer may have: twice what the rehearsed one has, and room for names and heads.

    Args:
        state: before the exchange; it tells the buffers.
        message: the rehearsed one.
        trace: the rehearsed one, if there is one.
    """
    values = [*message.values(), *state.buffers.values(), *([] if trace is None else vars(trace).values())]
    return SMALL + 2 * bytes_of(values)


def far_above(answers: Mapping[int, Answer], factor: float) -> dict[int, str]:
    """The clients whose answer is far larger than the others', and how much.

    Of each vector that a client sends, the norm in float64 is held against the lower median over the cohort; of a
    number that it sends, the absolute value, against the square of the factor, since some are squares. A median of 0
    says nothing, and with two clients the lower median is the smaller answer: three are needed.

    Args:
        answers: the finite ones, by client.
        factor: above which an answer is refused; 0 switches it off.

    >>> sizes = torch.tensor([[1.0], [2.0], [9e9]])
    >>> far_above({client: Answer({"delta": size}, {}, {}, None, 1) for client, size in enumerate(sizes)}, factor=1000)
    {2: 'its delta has norm 9e+09, over 1000 times the 2 of the cohort'}
    """
    if factor == 0 or len(answers) < 3:
        return {}
    far: dict[int, str] = {}
    first = next(iter(answers.values()))
    for name, value in {**first.message, **first.buffers}.items():
        if not value.is_floating_point():
            continue
        sent = [(answer.message | answer.buffers)[name] for answer in answers.values()]
        norms = torch.stack([one.double().norm() for one in sent])
        middle = norms.quantile(0.5, interpolation="lower")
        limit = factor if value.dim() else factor**2
        for client, norm in zip(answers, norms.tolist(), strict=True):
            if 0 < limit * middle < norm:
                far[client] = f"its {name} has norm {norm:.4g}, over {limit:g} times the {middle:.4g} of the cohort"
    return far


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

    Losses may be infinite: the model of a run that diverges has such. A client may have failed in what it was asked for
    beside them. A DataError says why scores are refused.

    Args:
        content: what the client sent.
        held: the number of its own test samples, as it said when it introduced itself.

    >>> from flwr.app import MetricRecord
    >>> accept_scores(RecordDict({"scores": MetricRecord({"train_loss": 0.5})}), held=0)
    {'train_loss': 0.5}
    """
    if "error" in content.config_records and "scores" not in content.metric_records:
        raise DataError(wire.plain_text(wire.values(content, "error").get("text", "failed")))
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


def _same_names(kind: str, sent: Set[str], expected: Set[str]) -> None:
    """Refuse other names than were asked for, before anything under them is read."""
    missing, more = expected - sent, sent - expected
    if missing or more:
        what = f"{min(missing)} is missing" if missing else f"{min(more)} was not asked for"
        raise DataError(wire.plain_text(f"{kind} {what}"))


def _same_form(sent: Tensors, expected: Tensors) -> None:
    """Refuse other shapes or dtypes than were asked for."""
    for name, value in expected.items():
        got = sent[name]
        if got.shape != value.shape or got.dtype != value.dtype:
            raise DataError(
                f"{name} is {got.dtype} of shape {tuple(got.shape)}, not {value.dtype} of {tuple(value.shape)}"
            )
