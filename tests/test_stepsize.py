"""Numbers by hand for each stepsize rule."""

import itertools
import math

import numpy as np
import pytest
import torch

from fedsps import ConfigurationError
from fedsps.core.contract import Seen
from fedsps.paper.pages import global_stepsize
from fedsps.rules.global_stepsize import GlobalStepsize
from fedsps.rules.polyak import SPS, DecSPS
from fedsps.rules.stepsize import Constant


def seen(loss, gradient, *, iteration=0, fraction=0.5, client=0, received=None, dtype=torch.float64):
    gradient = torch.tensor(gradient, dtype=dtype)
    return Seen(
        x=torch.zeros_like(gradient), start=torch.zeros_like(gradient), loss=torch.tensor(loss, dtype=dtype),
        gradient=gradient, step=0, steps=1, iteration=iteration, fraction=torch.tensor(fraction, dtype=dtype),
        client=torch.tensor(client), received=received or {}, probe=lambda x: (x.sum(), x),
    )  # fmt: skip


def steps(rule, *observations):
    """The rule's stepsizes over a sequence of local steps of one round of one client."""
    x = observations[0].x
    state = rule.begin(rule.client_init(x), x)
    found = []
    for one in observations:
        gamma, state = rule(state, one)
        found.append(gamma.item())
    return found


def test_constant():
    assert steps(Constant(0.3), seen(5.0, [1.0, 2.0])) == [0.3]


def test_sps_takes_both_branches_of_the_minimum():
    # 3 / (0.5 * 25) = 0.24 < 1;   3 / (0.5 * 1) = 6 > 1
    assert steps(SPS(), seen(3.0, [3.0, 4.0])) == pytest.approx([0.24])
    assert steps(SPS(), seen(3.0, [1.0, 0.0])) == [1.0]
    assert steps(SPS(scale=2.0, cap=10.0), seen(3.0, [1.0, 0.0])) == [1.5]


def test_bounds_may_come_as_an_array_or_a_tensor():
    assert (
        SPS(lower=np.array([0.0, 1.0])) == SPS(lower=torch.tensor([0.0, 1.0])) == SPS(lower=[0, 1]) == SPS(lower=(0, 1))
    )
    with pytest.raises(ConfigurationError, match="lower must be"):
        SPS(lower=True)


def test_sps_subtracts_the_lower_bound_of_each_client():
    rule = SPS(lower=(0.0, 1.0, 2.5), cap=10.0)
    assert steps(rule, seen(3.0, [1.0, 0.0], client=2)) == [1.0]
    assert steps(rule, seen(3.0, [1.0, 0.0], client=0)) == [6.0]


@pytest.mark.parametrize("rule", [SPS(cap=0.7), SPS(cap=0.7, smoothing="paper"), SPS(cap=0.7, smoothing="loizou")])
@pytest.mark.parametrize("loss", [0.0, 2.0])
def test_zero_gradient_gives_the_cap_and_never_nan(rule, loss):
    assert steps(rule, seen(loss, [0.0, 0.0])) == [0.7]


@pytest.mark.parametrize("rule", [SPS(), SPS(smoothing="paper"), DecSPS()])
def test_zero_gap_gives_a_zero_step(rule):
    assert steps(rule, seen(0.0, [1.0, 1.0])) == [0.0]


@pytest.mark.parametrize("rule", [SPS(lower=1.0), DecSPS(lower=1.0)])
def test_a_loss_below_the_bound_gives_zero_and_tells_by_how_much(rule):
    assert steps(rule, seen(0.25, [1.0, 1.0])) == [0.0]
    assert rule.gap(seen(0.25, [1.0, 1.0])).item() == -0.75
    assert Constant(0.1).gap(seen(0.25, [1.0, 1.0])) is None


def test_smoothing_of_the_paper_grows_the_cap_at_every_step():
    # cap 1, then 2^0.5, then 2; the last ratio (0.3) is below its cap
    found = steps(SPS(smoothing="paper"), *[seen(100.0, [1.0, 0.0])] * 3, seen(0.15, [1.0, 0.0]))
    assert found == pytest.approx([1.0, math.sqrt(2), 2.0, 0.3])


def test_smoothing_of_the_paper_saturates():
    rule = SPS(smoothing="paper", cap=1.5e38)
    flat = seen(1.0, [0.0, 0.0], fraction=1.0, dtype=torch.float32)
    assert steps(rule, flat, flat, flat, flat)[-1] == torch.finfo(torch.float32).max


def test_a_smoothed_cap_begins_anew_in_each_round_if_reset():
    x = torch.zeros(2, dtype=torch.float64)
    for reset, cap in ((True, 1.0), (False, 4.0)):
        rule = SPS(smoothing="paper", reset=reset)
        assert rule.begin({"cap": torch.tensor(4.0)}, x)["cap"] == cap
    assert SPS(reset=True).begin({}, x) == {}, "nothing is smoothed"


def test_smoothing_of_loizou_follows_the_last_step_and_does_not_lock_at_zero():
    small, large, perfect = seen(0.05, [1.0, 0.0]), seen(100.0, [1.0, 0.0]), seen(0.0, [1.0, 0.0])
    # min(0.1, 1) = 0.1; cap 0.1 sqrt 2; a zero step leaves it; then the cap itself, grown once more
    found = steps(SPS(smoothing="loizou"), small, perfect, large, large)
    assert found == pytest.approx([0.1, 0.0, 0.1 * math.sqrt(2), 0.2])


def test_decsps_is_a_running_minimum_over_sqrt_t():
    # ratios 0.4, 0.2, 9 against M = 0.5 * 1: M = 0.4, 0.2, 0.2; c_t = 0.5 sqrt(t + 1)
    found = steps(
        DecSPS(), seen(0.4, [1.0, 0.0]), seen(0.2, [1.0, 0.0], iteration=1), seen(9.0, [1.0, 0.0], iteration=2)
    )
    assert found == pytest.approx([0.8, 0.4 / math.sqrt(2), 0.4 / math.sqrt(3)])


def test_decsps_first_step_is_the_cap_when_the_ratio_is_large():
    assert steps(DecSPS(cap=0.3), seen(100.0, [1.0, 0.0])) == pytest.approx([0.3])


def test_decsps_zero_gap_leaves_the_minimum():
    found = steps(DecSPS(), seen(0.0, [1.0, 0.0]), seen(100.0, [1.0, 0.0]))
    assert found == pytest.approx([0.0, 1.0])


def test_decsps_own_clock_counts_the_clients_own_steps():
    far = seen(100.0, [1.0, 0.0], iteration=400)
    assert steps(DecSPS(clock="client"), far, far) == pytest.approx([1.0, 1 / math.sqrt(2)])
    assert steps(DecSPS(), far) == pytest.approx([1 / math.sqrt(401)])


def test_decsps_reset_begins_each_round_anew_but_the_clock_runs_on():
    rule = DecSPS(reset=True, clock="client")
    x = torch.zeros(2, dtype=torch.float64)
    state = rule.begin(rule.client_init(x), x)
    _, state = rule(state, seen(0.01, [1.0, 0.0]))
    gamma, _ = rule(rule.begin(state, x), seen(100.0, [1.0, 0.0]))
    assert gamma.item() == pytest.approx(1 / math.sqrt(2))


def test_squared_norm_of_half_precision_is_accumulated_in_float32():
    wide = seen(1.0, [1.0] * 4096, dtype=torch.float16)  # 4096 + 1 is not a float16
    assert steps(SPS(cap=10.0), wide) == pytest.approx([1 / (0.5 * 4096)])
    large = seen(1.0, [300.0], dtype=torch.float16)  # 300^2 overflows float16
    assert steps(SPS(), large) == pytest.approx([1 / (0.5 * 90000)])


def gathered(rule, observations):
    """The server's next stepsize after one local step of each client."""
    messages = []
    for one in observations:
        state = rule.begin(rule.client_init(one.x), one.x)
        _, state = rule(state, one)
        messages.append(rule.conclude(state, one, one.x)[0])
    mean = {name: torch.stack([message[name] for message in messages]).mean(0) for name in messages[0]}
    return rule.absorb(rule.server_init(observations[0].x), mean, 1.0)["stepsize"].item()


def test_global_formulas():
    received = {"stepsize": torch.tensor(0.1, dtype=torch.float64)}
    clients = [seen(1.0, [1.0, 0.0], received=received), seen(20.0, [1.0, 3.0], received=received)]
    rule = {formula: GlobalStepsize(SPS(scale=1.0, cap=100.0), formula) for formula in "abc"}
    assert gathered(rule["a"], clients) == pytest.approx((1 / 1 + 20 / 10) / 2)
    assert gathered(rule["b"], clients) == pytest.approx(21 / 11)
    assert gathered(rule["c"], clients) == pytest.approx(10.5 / (1 + 1.5**2))
    capped = GlobalStepsize(SPS(scale=1.0, cap=0.25), "c")
    assert gathered(capped, clients) == 0.25


@pytest.mark.parametrize("place", range(3))
def test_the_proposition_is_about_the_same_formulas(place):
    received = {"stepsize": torch.tensor(0.1, dtype=torch.float64)}
    for gaps, gradients, scale, cap in itertools.islice(global_stepsize.draws(), 20):
        clients = [seen(*pair, received=received) for pair in zip(gaps, gradients, strict=True)]
        found = gathered(GlobalStepsize(SPS(scale, cap), "abc"[place]), clients)
        assert found == pytest.approx(global_stepsize.formulas(gaps, gradients, scale, cap)[place], rel=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SPS(scale=0.0), "scale must be a finite number above 0; got 0.0"),
        (lambda: SPS(cap=-1.0), "cap must be a finite number above 0; got -1.0"),
        (lambda: SPS(cap=math.inf), "cap must be"),
        (lambda: SPS(lower=math.nan), "lower must be a finite number"),
        (lambda: SPS(lower="zero"), "lower must be a finite number"),
        (lambda: SPS(lower=()), "lower must be a finite number"),
        (lambda: SPS(smoothing="papper"), "did you mean paper"),
        (lambda: SPS(reset="yes"), "reset must be true or false"),
        (lambda: DecSPS(clock="globel"), "did you mean global"),
        (lambda: GlobalStepsize(formula="d"), "unknown formula 'd'"),
        (lambda: GlobalStepsize(initial=0.0), "initial must be"),
        (lambda: Constant(True), "client_stepsize must be"),
    ],
)
def test_wrong_settings_are_refused_with_value_and_remedy(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
