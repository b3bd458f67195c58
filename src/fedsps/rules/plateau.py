"""A common stepsize that finds its own scale: larger while the loss falls fast, smaller where it no longer falls."""

from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import at_least, count, fraction, positive
from fedsps.core.contract import Ranges, Seen
from fedsps.core.vectors import Tensors, norm_sq, scalars, times
from fedsps.errors import ConfigurationError
from fedsps.rules.common_stepsize import CommonStepsize
from fedsps.rules.polyak import polyak_ratio

__all__ = ["PlateauStepsize"]

LINE = ("line_rounds", "line_time", "line_loss", "line_tt", "line_tl", "line_ll")
"""The sums of a straight line through some rounds' losses: how many, both means, and the centred products."""

SENT = ("first_gap", "first_gradient_sq", "gap", "gradient_sq")
"""What clients report: at their first local step, and as means over all of them."""

MOST = 1e12  # of these, where a sum must know a bound
LEAST = 1e-6  # of s, so that it can come back
LOST = 2.0  # times the first round's loss is one after which the bold start is given up
AT_ONCE = 4.0  # times larger or smaller than it was may s become by one decision, and Gamma larger in a round


@dataclass(frozen=True)
class PlateauStepsize(CommonStepsize):
    """The common stepsize with the largest guaranteed progress, times a factor s that the server moves by the loss.

        a client's step     gamma = min( Gamma, cap, safety ratio ),    ratio = (F_i - lower_i) / (2 scale ||g||^2)
                            gamma = min( cap, share ratio )             while there is no Gamma: in the first round
        a client reports    the means of F_i - lower_i and of ||g||^2 over its local steps, and both at the first of
                            them
        the server          best = mean of F_i - lower_i / (2 scale mean of ||g||^2),    over about `memory` rounds
                            Gamma <- min( max( growth Gamma, gained ), s best ),    share best in place of no Gamma
                            gained = min( (1 - loss now / loss of the first round) best, 4 Gamma ),    0 if growth is 1
        the first round     share = bold; it fails if over all local steps the mean of F_i - lower_i is above that over
                            the first of them, or its ratio to the mean of ||g||^2 is below `holds` times that over the
                            first: then nothing moves, there is no Gamma yet, and share = initial from now on
        the one after it    if the mean of F_i - lower_i over the first local steps is above twice that of the first
                            round, the run begins anew at its first point, with share = initial

    The progress that convex clients guarantee, `sum gamma (F - lower) - gamma^2 ||g||^2 / 2` over all their steps (see
    `DiagonalExtrapolation`), is largest at `gamma = best`, and positive up to twice that. A geometric mean of ratios,
    as `CommonStepsize` has it, is ruled by clients that fit already: their ratios are large, and say little.

    The first round is a rehearsal. Some networks begin on a plateau and die of long steps there: gradients are small,
    `best` is large, and falls a thousandfold as soon as it is acted upon. Whether that is so shows on the way: where a
    loss is as steep as its gradient promises, it falls over the local steps, and the ratio changes little. (With a
    single local step nothing shows, and the share is `initial`.) How far the server then extrapolates no client has
    seen; it shows in the next round's first losses, and where they have doubled, the first step is undone.

    After a start that had to be short, the share of the loss that is gone tells when longer steps are safe: a round of
    short steps takes up to `steps Gamma / (2 best)` of the loss off, so that `gained` grows geometrically where the
    loss is convex. (The loss now is a moving mean of the first local steps' losses, in which a round counts as much as
    all before it.) Gamma, and all that decides on it, is made of ratios: the loss may be in any units, and the inputs
    of any size.

    A Polyak stepsize is as right as its `lower`, and a guarantee for convex clients says what is safe, not what is best
    for a network. So the server looks at the line through the first local steps' losses since its last decision, whose
    batches are fresh and at the server's own point. It looks when the line has `least_rounds` rounds, and twice, four
    times, ... as many: a test that is tried in every round would soon be passed by noise.

        b +- e      slope of the line
        a           mean cosine between Delta and the Delta of the round before
        faster than r       b + patience e < -r loss
        slower than r       b - patience e > -r loss

        s <- min( 1, up s )                 if it falls faster than `least_fall`, or slower while a > turn, and s < 1
        s <- max( 1, down s )               if it falls slower than `fast`, and s > 1
        s <- min( largest, up s )           if it falls faster than `fast`
        s <- down (the s in force)          if it falls slower than `least_fall` while a < -turn
        s <- max( 1/4, gone ) s             if it is neither faster nor slower than `least_fall`, nor slower than `fast`
                                            with s > 1, on a line of `unclear_rounds` or more, and a <= turn
        s <- min( s, the s before its last rise )       if the line's mean loss is above that of the line which led to
                                                        that rise, by more than `patience` standard errors of the two
        up, down = rise^rounds, drop^rounds     of the line, 4 and 1/4 at the most; s is at least 1e-6
        gone = 1 - loss now / loss of the first round

    Where several of the first five apply, the last of them counts; the sixth acts on what it made of s.
    Above 1, s needs a reason, and a loss that falls fast is one; that nothing was overshot shows only after the rise,
    which is taken back where it harmed. Below 1 it moves the bound:
    `s (F - lower) = F - lower'` with `lower' = F - s (F - lower)`, so a loss that rests moves `lower` towards the loss
    that has been reached. A loss also rests where steps are too short: then successive changes agree, while around a
    minimum they oppose each other. (Where noise moves the iterates about the minimum of a parabola with curvature h,
    their mean cosine is `-stepsize h / 2`: at -0.1 they forget where they were within five rounds. The average of the
    iterates then removes the noise, and shorter steps would only be slower.)

    Where cohorts differ, noise may hide for hundreds of rounds that a loss rests, or how slowly it falls; shorter steps
    then carry less noise, and clients with many local steps drift apart less. How much shorter,
    the loss says that has stayed: if all of it is gone, `lower` was right and s is, too, and noise is no reason to move
    it; if half of it is still there, no model fits all clients, and `lower` is wrong by about as much.

    At the start a loss rests for another reason: a network has to leave its plateau, its loss may rise on the way, and
    `best` falls tenfold within a few rounds. Steps that are shortened there lead into a sharp valley, where `best` is
    small and stays so. Until `least_gain` of the first loss has once been gone, a rest must last `least_rest` rounds.

    Where growth is what limits Gamma, the s in force is `Gamma / best`, which may be far below s: a rest brings s down
    to where it acts, and `growth` is 1 until the loss falls again, or rests while changes agree.

    It needs a server rule to which clients send their change. Where a federation is private this is `CommonStepsize`,
    with this cap, start and safety (`privately`).

    Args:
        scale: c; 1/2 is the plain ratio.
        cap: the largest stepsize; so large that it does not bind.
        lower: l*, a lower bound of the losses, one number or one for each client.
        initial: the share of its ratio that a step is in the first round, where `bold` fails.
        growth: how many times larger Gamma may be than a round before.
        safety: how many times the batch's own ratio a step may be.
        memory: rounds over which the means are taken, those before counting less and less; 1 is the last one alone.
        largest: of s, which starts at 1.
        rise: what s is multiplied with for each round of a line that rises it.
        drop: what s is multiplied with for each round of a line that lowers it.
        fast: the share of the loss that a round must take off for s to be above 1.
        least_fall: the share of the loss that a round must take off; less is a rest.
        patience: how many standard errors of the slope make a decision.
        turn: the mean cosine from which on changes agree or oppose each other.
        least_rounds: of a line before it is looked at.
        least_gain: the share of the first loss that is gone when the start is over, for good.
        least_rest: rounds that a rest must last before that.
        unclear_rounds: of a line without a trend that bring s down.
        bold: the share that is tried in the first round.
        holds: how much of the first step's ratio must be left over the local steps of that round.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "plateau"
    receives: ClassVar[tuple[str, ...]] = ("stepsize", "share")
    sends: ClassVar[tuple[str, ...]] = SENT
    cap: float = 1e9
    memory: float = 30.0
    largest: float = 4.0
    rise: float = 1.03
    drop: float = 0.955
    fast: float = 0.01
    least_fall: float = 0.001
    patience: float = 2.0
    turn: float = 0.1
    least_rounds: int = 5
    least_gain: float = 0.1
    least_rest: int = 20
    unclear_rounds: int = 40
    bold: float = 0.1
    holds: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rise", "fast", "least_fall", "patience", "bold"):
            positive(name, getattr(self, name))
        for name in ("memory", "largest"):
            at_least(name, getattr(self, name), 1)
        fraction("drop", self.drop)
        fraction("turn", self.turn)
        fraction("least_gain", self.least_gain)
        fraction("holds", self.holds)
        count("least_rounds", self.least_rounds, least=3)
        count("least_rest", self.least_rest)
        count("unclear_rounds", self.unclear_rounds)

    def server_init(self, x: Tensor) -> Tensors:
        """No stepsize, a factor of 1, and nothing seen yet."""
        zero = (
            *LINE,
            "line_turn",
            "kept_gap",
            "kept_gradient_sq",
            "first_loss",
            "recent_loss",
            "started",
            "risen_spread",
        )
        start = {"share": self.bold, "factor": 1.0, "growth": self.growth, "next_look": float(self.least_rounds)}
        values = dict.fromkeys(zero, 0.0) | start | {"risen_loss": torch.inf, "risen_factor": 1.0}
        kept = {name: scalars(x, value) for name, value in values.items()}
        return super().server_init(x) | kept | {"last_change": torch.zeros_like(x), "origin": x.clone()}

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """No loss has been seen in this round."""
        return state | {name: scalars(x, 0.0) for name in SENT}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the common stepsize within its bounds; what it is made of is added up for the report."""
        gap, size = self.gap(seen).clamp(min=0), norm_sq(seen.gradient)
        gamma = self.within(seen, polyak_ratio(gap, size) / (2 * self.scale))
        news = {
            "first_gap": gap if seen.step == 0 else state["first_gap"],
            "first_gradient_sq": size if seen.step == 0 else state["first_gradient_sq"],
            "gap": state["gap"] + gap / seen.steps,
            "gradient_sq": state["gradient_sq"] + size / seen.steps,
        }
        return gamma, state | news

    def conclude(self, state: Tensors, seen: Seen, delta: Tensor) -> tuple[Tensors, Tensors]:
        """Send the means over the local steps, and what they are made of at the first."""
        return {name: state[name] for name in SENT}, state

    def ranges(self, norm: float) -> Ranges:
        """Gaps and squared norms are not below 0, and have no largest value of their own: one far above all of use."""
        return dict.fromkeys(SENT, (0.0, MOST))

    def privately(self) -> CommonStepsize:
        """The geometric mean of the ratios, from the careful start on: losses have no range that noise could cover."""
        names = [one.name for one in fields(CommonStepsize)]
        return CommonStepsize(**{name: getattr(self, name) for name in names})

    def first_share(self, seen: Seen) -> Tensor | float:
        """What the server tries; a single local step would not show whether that is too much."""
        return seen.received["share"] if seen.steps > 1 else self.initial

    def fails(self, state: Tensors, mean: Tensors) -> Tensor:
        """Whether there is no stepsize yet, and the bold steps did not do what the gradients promised, `[...]`."""
        after, before = mean["gap"] * mean["first_gradient_sq"], mean["first_gap"] * mean["gradient_sq"]
        is_wrong = (after < self.holds * before) | (mean["gap"] > mean["first_gap"])
        return state["stepsize"].isinf() & (state["share"] > self.initial) & is_wrong

    def accept(self, state: Tensors, mean: Tensors) -> Tensors:
        """No change in a round that fails."""
        if "delta" not in mean:
            raise ConfigurationError("the plateau stepsize needs a server rule to which clients send delta, as average")
        kept = (~self.fails(state, mean)).to(mean["delta"].dtype)
        return mean | {"delta": times(kept, mean["delta"])}  # what is no number stays none

    def anew(self, state: Tensors, mean: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """Where the round after bold steps finds a loss twice as large, the run begins anew, with short ones."""
        is_second = ~state["stepsize"].isinf() & (state["share"] > self.initial) & ~is_single(mean)
        is_lost = is_second & (state["first_loss"] > 0) & (mean["first_gap"] > LOST * state["first_loss"])
        return is_lost, state["origin"], {"share": scalars(state["origin"], self.initial)}

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """The next round's stepsize and factor; after a decision a new line begins."""
        kept = {f"kept_{name}": (1 - 1 / self.memory) * state[f"kept_{name}"] + mean[name] for name in SENT[2:]}
        is_blind = (kept["kept_gap"] == 0) | (kept["kept_gradient_sq"] == 0)  # no ratio has been seen
        best = (kept["kept_gap"] / (2 * self.scale * kept["kept_gradient_sq"])).masked_fill(is_blind, torch.inf)
        share = torch.where(is_single(mean), self.initial, state["share"])
        last = torch.where(state["stepsize"].isinf(), share * best, state["stepsize"])

        is_new = state["first_loss"] == 0
        first = torch.where(is_new, mean["first_gap"], state["first_loss"])
        recent = torch.where(is_new, first, (state["recent_loss"] + mean["first_gap"]) / 2)

        line = with_loss({name: state[name] for name in LINE}, mean["first_gap"])
        turns = state["line_turn"] + cosine(mean["delta"], state["last_change"])
        (slope, error), loss, rounds = slope_of(line), line["line_loss"], line["line_rounds"]
        looks, factor = rounds == state["next_look"], state["factor"]
        falls, is_fast = (looks & (slope + self.patience * error < -r * loss) for r in (self.least_fall, self.fast))
        rests, is_slow = (looks & (slope - self.patience * error > -r * loss) for r in (self.least_fall, self.fast))
        started = state["started"].masked_fill(recent < (1 - self.least_gain) * first, 1.0)
        rests = rests & ((started == 1) | (rounds >= self.least_rest))
        agree, oppose = (sign * turns / rounds > self.turn for sign in (1, -1))
        ups, downs, eases = falls | (rests & agree), rests & oppose, is_slow & (factor > 1)

        up, down = (self.rise**rounds).clamp(max=AT_ONCE), (self.drop**rounds).clamp(min=1 / AT_ONCE)
        moved = torch.where(ups, torch.maximum(factor, (up * factor).clamp(max=1)), factor)
        moved = torch.where(eases, (down * factor).clamp(min=1), moved)
        moved = torch.where(is_fast, (up * factor).clamp(max=self.largest), moved)
        moved = torch.where(downs, (down * torch.minimum(factor, last / best)).clamp(min=LEAST), moved)
        is_unclear = looks & ~(falls | rests | eases | agree) & (rounds >= self.unclear_rounds)
        gone = (1 - recent / first).masked_fill(first == 0, 1.0)
        moved = torch.where(is_unclear, (gone.clamp(min=1 / AT_ONCE) * factor).clamp(min=LEAST), moved)
        growth = torch.where(downs, 1.0, torch.where(ups, self.growth, state["growth"]))

        spread = line["line_ll"] / (rounds * (rounds - 1).clamp(min=1))  # of the line's mean loss
        harms = looks & (loss - self.patience * (spread + state["risen_spread"]).sqrt() > state["risen_loss"])
        moved = torch.where(harms, torch.minimum(moved, state["risen_factor"]), moved)
        risen = {"risen_loss": loss, "risen_spread": spread, "risen_factor": factor}
        risen = {name: torch.where(moved > factor, value, state[name]) for name, value in risen.items()}
        risen["risen_loss"] = risen["risen_loss"].masked_fill(harms, torch.inf)

        is_decided = falls | rests | eases | harms
        line = {name: value.masked_fill(is_decided, 0.0) for name, value in (line | {"line_turn": turns}).items()}
        twice = torch.where(looks, 2 * state["next_look"], state["next_look"])
        next_look = twice.masked_fill(is_decided, self.least_rounds)

        gained = torch.minimum(gone * best, AT_ONCE * last)
        gained = gained.masked_fill(is_blind | (first == 0) | (growth == 1), 0.0)
        stepsize = torch.minimum(torch.maximum(growth * last, gained), moved * best)
        news = {"factor": moved, "stepsize": stepsize, "growth": growth, "started": started, "next_look": next_look}
        news |= kept | line | risen | {"first_loss": first, "recent_loss": recent}
        fails = self.fails(state, mean)
        kept_or_new = {name: torch.where(fails, state[name], value) for name, value in news.items()}
        is_over = fails | ~state["stepsize"].isinf()  # the second round has shown what the first one did
        share = torch.where(is_over, self.initial, state["share"])
        return state | kept_or_new | {"share": share, "last_change": mean["delta"]}


def is_single(mean: Tensors) -> Tensor:
    """Whether clients took one local step, so that their means are what they saw first, `[...]`."""
    return (mean["gap"] == mean["first_gap"]) & (mean["gradient_sq"] == mean["first_gradient_sq"])


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
