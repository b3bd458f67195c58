"""A common stepsize that finds its own scale: larger while the loss falls, smaller where it has stopped falling."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import count, fraction, positive
from fedsps.core.contract import Ranges, Seen
from fedsps.core.vectors import Tensors, norm_sq, scalars
from fedsps.errors import ConfigurationError
from fedsps.rules.common_stepsize import CommonStepsize

__all__ = ["PlateauStepsize"]

LINE = ("line_rounds", "line_time", "line_loss", "line_tt", "line_tl", "line_ll")
"""The sums of a straight line through some rounds' losses: how many, both means, and the centred products."""

MOST = 1e9  # of a loss above its bound, where a sum must know a bound


@dataclass(frozen=True)
class PlateauStepsize(CommonStepsize):
    """The common stepsize times a factor s, which the server moves by watching the loss and its own path.

        a client's step     gamma = min( Gamma, cap, safety ratio ),    ratio = (F_i - lower_i) / (2 scale ||g||^2)
        a client reports    the mean of log ratio over its local steps, and F_i - lower_i at the first of them
        the server          over the rounds since its last decision
                            b +- e      the slope of the reported losses' mean
                            a           the mean cosine between Delta and the Delta of the round before
                            falls       b + patience e < -least_fall * loss
                            rests       b - patience e > -least_fall * loss
                            s <- min( largest, rise s )      if it falls, or rests while a > turn
                            s <- drop (the s in force)       if it rests while a < -turn
                            Gamma <- min( growth Gamma, s exp( mean of the log ratios ) )

    A Polyak stepsize is as right as its `lower`: where the best loss is far above it, the ratio is too large at the
    end, and a cap stands in for the unknown optimum. The factor does that without knowing it, since
    `s (F - lower) = F - lower'` with `lower' = F - s (F - lower)`: a loss that rests moves the bound up, towards the
    loss that has been reached. The first local step's batch is fresh and at the server's point: its loss is an unbiased
    look at the objective. The slope's own standard error tells a plateau from noise; as long as it cannot, the factor
    stays and the line grows longer. A loss also rests where the steps are too short: then successive changes agree,
    while around a minimum they oppose each other. (Where noise moves the iterates about the minimum of a parabola with
    curvature h, their mean cosine is `-stepsize h / 2`: at -0.1 they forget where they were within five rounds. The
    average of the iterates then removes the noise, and shorter steps would only be slower.)

    Where growth is what limits Gamma, the s in force is `Gamma / exp( mean of the log ratios )`, which may be far below
    s: a rest brings s down to where it acts, and Gamma grows again (`growth` is 1 until then) after the next rise of s.

    With `largest` 2 the common stepsize is at most that of SPS with scale 1/2, where the guarantee of
    `DiagonalExtrapolation` ends. It needs a server rule to which clients send their change.

    Args:
        scale: c; 1/2 is the plain ratio.
        cap: the largest stepsize; so large that it does not bind.
        lower: l*, a lower bound of the losses, one number or one for each client.
        initial: Gamma in the first round.
        growth: how many times larger Gamma may be than a round before.
        safety: how many times the batch's own ratio a step may be.
        largest: of s, which starts at 1.
        rise: what s is multiplied with when the loss falls.
        drop: what s is multiplied with when the loss rests.
        least_fall: the share of the loss that a round must take off; less is a rest.
        patience: how many standard errors of the slope make a decision.
        turn: the mean cosine from which on changes agree or oppose each other.
        least_rounds: of a line before it is looked at.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "plateau"
    sends: ClassVar[tuple[str, ...]] = ("log_ratio", "first_gap")
    cap: float = 1e9
    largest: float = 2.0
    rise: float = 1.15
    drop: float = 0.8
    least_fall: float = 0.001
    patience: float = 1.0
    turn: float = 0.1
    least_rounds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("largest", "rise", "least_fall", "patience"):
            positive(name, getattr(self, name))
        fraction("drop", self.drop)
        fraction("turn", self.turn)
        count("least_rounds", self.least_rounds, least=3)

    def server_init(self, x: Tensor) -> Tensors:
        """The first stepsize, which grows, a factor of 1, and nothing seen yet."""
        seen = {name: scalars(x, 0.0) for name in (*LINE, "line_turn")}
        kept = {"factor": scalars(x, 1.0), "growth": scalars(x, self.growth), "last_change": torch.zeros_like(x)}
        return super().server_init(x) | seen | kept

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """No loss has been seen in this round."""
        return super().begin(state, x) | {"first_gap": scalars(x, 0.0)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the common stepsize within its bounds; the first step's loss is kept for the report."""
        gamma, state = super().__call__(state, seen)
        return gamma, state | {"first_gap": self.gap(seen).clamp(min=0)} if seen.step == 0 else state

    def conclude(self, state: Tensors, seen: Seen, delta: Tensor) -> tuple[Tensors, Tensors]:
        """Send the mean of `log ratio`, and the first step's gap."""
        message, state = super().conclude(state, seen, delta)
        return message | {"first_gap": state["first_gap"]}, state

    def ranges(self, norm: float) -> Ranges:
        """Gaps are not below 0, and have no largest value of their own: one far above all of use.

        Under differential privacy they are left out (`private_ranges` is that of the common stepsize).
        """
        return super().ranges(norm) | {"first_gap": (0.0, MOST)}

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """The next round's stepsize and factor; after a decision a new line begins.

        Without the first steps' gaps, which differential privacy leaves out, nothing is decided: s stays 1.
        """
        if "first_gap" not in mean:
            return super().absorb(state, mean, participation)
        if "delta" not in mean:
            raise ConfigurationError("the plateau stepsize needs a server rule to which clients send delta, as average")
        line = with_loss({name: state[name] for name in LINE}, mean["first_gap"])
        turns = state["line_turn"] + cosine(mean["delta"], state["last_change"])
        slope, error = slope_of(line)
        excess = slope + self.least_fall * line["line_loss"]  # above 0 the loss falls too slowly
        is_long = line["line_rounds"] >= self.least_rounds
        falls = is_long & (excess + self.patience * error < 0)
        rests = is_long & (excess - self.patience * error > 0)
        agree, oppose = (sign * turns / line["line_rounds"] > self.turn for sign in (1, -1))
        ups, downs = falls | (rests & agree), rests & oppose
        last, ratio, factor = state["stepsize"], mean["log_ratio"].exp(), state["factor"]
        growth = torch.where(downs, 1.0, torch.where(ups, self.growth, state["growth"]))
        factor = torch.where(ups, (self.rise * factor).clamp(max=self.largest), factor)
        factor = torch.where(downs, self.drop * torch.minimum(factor, last / ratio), factor)
        kept = {name: value.masked_fill(falls | rests, 0.0) for name, value in (line | {"line_turn": turns}).items()}
        stepsize = torch.minimum(growth * last, factor * ratio)
        news = {"factor": factor, "stepsize": stepsize, "growth": growth, "last_change": mean["delta"]}
        return state | kept | news


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """The cosine of the angle between two vectors, `[...]`; 0 where one of them is 0."""
    size = norm_sq(one).sqrt() * norm_sq(other).sqrt()
    return torch.where(size == 0, 0.0, (one * other).sum(-1) / size)


def with_loss(line: Tensors, loss: Tensor) -> Tensors:
    """The sums of a line with one more round, by Welford's updates, which lose no digits.

    >>> line = {name: torch.zeros(()) for name in LINE}
    >>> for loss in (5.0, 3.0, 1.0):
    ...     line = with_loss(line, torch.tensor(loss))
    >>> slope_of(line)
    (tensor(-2.), tensor(0.))
    """
    rounds, time, height = (line[name] for name in LINE[:3])
    rounds = rounds + 1
    off_time, off_loss = rounds - time, loss - height
    time, height = time + off_time / rounds, height + off_loss / rounds
    return {
        "line_rounds": rounds,
        "line_time": time,
        "line_loss": height,
        "line_tt": line["line_tt"] + off_time * (rounds - time),
        "line_tl": line["line_tl"] + off_time * (loss - height),
        "line_ll": line["line_ll"] + off_loss * (loss - height),
    }


def slope_of(line: Tensors) -> tuple[Tensor, Tensor]:
    """The slope of the least-squares line, and its standard error; none before the third round."""
    slope = line["line_tl"] / line["line_tt"]
    rest = (line["line_ll"] - slope * line["line_tl"]).clamp(min=0) / (line["line_rounds"] - 2).clamp(min=1)
    return slope, (rest / line["line_tt"]).sqrt()
