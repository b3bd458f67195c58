"""The page `beyond`: the bar, on results made by hand; and the plateau rule on losses made by hand."""

import numpy as np
import pytest
import torch
from made_runs import ROUNDS, run
from scipy.stats import linregress

import fedsps
from fedsps.errors import ConfigurationError
from fedsps.paper.execute import search
from fedsps.paper.page import Records, Tuned
from fedsps.paper.pages import beyond, cifar, lenet
from fedsps.paper.pages.beyond import (
    CELLS,
    CHOSEN_ON,
    FIRST_FOUR,
    OURS,
    PAGE,
    TUNED,
    Cell,
    by_cell,
    cells,
    profile,
)
from fedsps.rules import PlateauStepsize
from fedsps.rules.plateau import LINE, slope_of, with_loss

HELD_OUT = ["a", "b", "c", "d"]
CHOSEN = Cell("a9a", "i.i.d.").name


def records(ours, rivals=1.0, seeds=3, **ours_columns):
    """The same rivals in every cell; `ours` maps cells to FedPolyak's final loss, or is one for all."""
    names = [*HELD_OUT, CHOSEN]
    losses = ours if isinstance(ours, dict) else dict.fromkeys(names, ours)
    return Records(
        {
            name: {OURS: [run(losses.get(name, 1.0), **ours_columns)] * seeds}
            | {label: [run(rivals)] * seeds for label in (*TUNED, "FedSPS")}
            for name in names
        }
    )


def outcomes(found, case=beyond.BAR):
    return {
        verdict.claim.id: verdict.outcome
        for claim in PAGE.claims
        for verdict in claim.verdicts(found)
        if verdict.case in ("", case)
    }


def test_the_bar_counts_the_cells_that_are_held_out():
    assert outcomes(records(0.5))["B1"] == "holds"
    assert outcomes(records({CHOSEN: 9.0}))["B1"] == "holds", "cells that gave the defaults do not count"
    assert outcomes(records({"a": 1.5}))["B1"] == "does not hold", "three of four cells are not 95 %"
    assert outcomes(records({"a": 1.019}))["B1"] == "holds"


def test_what_gave_a_default_later_counts_beside_the_bar():
    later = Cell("w8a", "by class")
    assert later in CHOSEN_ON - FIRST_FOUR and FIRST_FOUR < CHOSEN_ON
    found = records(0.5)
    found.runs[later.name] = {OURS: [run(9.0)] * 3} | {label: [run(1.0)] * 3 for label in (*TUNED, "FedSPS")}
    assert outcomes(found)["B1"] == "holds"
    assert outcomes(found, "all cells but the first four")["B1"] == "does not hold"


def test_a_worse_loss_with_an_equal_accuracy_is_as_good():
    assert outcomes(records(1.5, test_accuracy=0.0))["B1"] == "holds"
    assert outcomes(records(1.5, test_accuracy=-0.01))["B1"] == "does not hold"
    found = records(1.5, test_accuracy=0.0)
    for cell in found.runs.values():  # the tuned method with the lowest loss need not be the most accurate one
        cell["FedAvg tuned"] = [run(1.1, test_accuracy=0.01)] * 3
    assert outcomes(found)["B1"] == "does not hold"


def test_rounds_are_counted_to_the_loss_with_which_tuned_fedavg_ends():
    def falling(at):
        return np.where(np.arange(1, ROUNDS + 1) < at, 2.0, 0.9)

    assert outcomes(records(1.0, train_loss=falling(ROUNDS // 4)))["B2"] == "holds"
    assert outcomes(records(1.0, train_loss=falling(ROUNDS // 2)))["B2"] == "does not hold"
    never = records(1.0, train_loss=2.0)
    assert beyond.times_fewer(never, "a").tolist() == [0, 0, 0]
    found, strictly = records(1.0, train_loss=falling(ROUNDS // 4)), f"{beyond.BAR}, strictly"
    assert outcomes(found, strictly)["B2"] == "does not hold", "these rivals are where they end from the first round on"
    for cell in found.runs.values():
        cell["FedAvg tuned"] = [run(train_loss=np.linspace(2.0, 0.9, ROUNDS))] * 3
    assert outcomes(found, strictly)["B2"] == "holds"
    kept = PAGE.kept("FedAvg tuned", found.runs["a"]["FedAvg tuned"][0].history)
    assert len(kept) == ROUNDS, "its course is in the table"


def test_a_run_that_diverges_is_no_small_matter():
    found = records(0.5)
    found.runs["b"][OURS][1] = run(diverged=True)
    found.runs["b"][OURS][1].history["train_loss"] = 0.1  # before it did
    verdicts = outcomes(found)
    assert verdicts["B3"] == "does not hold" and verdicts["B1"] != "holds"


def test_the_cells():
    paper, laptop = cells("paper"), cells("laptop")
    assert len(paper) == len({cell.name for cell in paper}) == 66 + 5 and len(laptop) == 14
    assert set(laptop) <= set(paper) and laptop[0].panel("laptop") == laptop[0].panel("paper")
    assert set(paper) >= CHOSEN_ON and len(set(paper) - CHOSEN_ON) == 54
    assert {cell.local_steps for cell in paper if cell.data in ("mnist", "a9a")} == {1, 5, 20}
    names = [cell.name for cell in paper if cell.network]
    assert names[2:] == ["LeNet, mnist Dirichlet 0.1", "ResNet-18, cifar10 i.i.d.", "ResNet-18, cifar10 by class"]
    panel = Cell("a9a", "by class", 0.2, 20).panel("paper")
    assert panel.name == "a9a by class, 20% flipped, tau 20"
    assert panel.settings["partition"] == "shards" and panel.settings["local_steps"] == 20
    assert len(panel.lines) == 8 and len(Cell("a9a", "by class").panel("paper").lines) == 11


def searches(panel, scale):
    return {
        line.label: search(panel, line, line.algorithm, scale).name
        for line in panel.lines
        if isinstance(line.algorithm, Tuned)
    }


@pytest.mark.parametrize(
    ("cell", "there", "scale"),
    [
        (Cell("mnist", "by class", network="LeNet"), lenet.panels("paper")[1], "paper"),
        (Cell("cifar10", "by class", network="ResNet-18"), cifar.panels("laptop")[1], "laptop"),
    ],
)
def test_networks_share_the_searches_of_their_pages(cell, there, scale):
    panel = cell.panel("paper")
    assert dict(panel.settings) == dict(there.settings) and panel.seeds == 3
    assert searches(panel, scale) == searches(there, scale) and len(searches(panel, scale)) == 2


def test_cells_with_fewer_seeds_count_in_those_that_they_have():
    found = records({"a": 1.5}, seeds=5)
    found.runs["a"] = {label: runs[:3] for label, runs in found.runs["a"].items() if label != "FedAdam tuned"}
    (claim,) = (claim for claim in PAGE.claims if claim.id == "B1")
    verdict = claim.verdicts(found)[0]
    assert verdict.evidence.effect.tolist() == [0.75] * 3 + [1.0] * 2
    assert len(profile(found, HELD_OUT, TUNED, "train_loss")["FedAdam tuned"]) == 3


def test_a_row_a_cell(tmp_path):
    found = PAGE.compute and {
        cell.name: {
            line.label: [run(0.5 if line.label == OURS else 1.0, algorithm="fedsps")] * 2
            for line in cell.panel("smoke").lines
        }
        for cell in cells("smoke")
    }
    table = by_cell(Records(found), "smoke")
    assert table["counts"].tolist() == ["chosen on", "chosen on"]
    assert table["loss ratio"].tolist() == [0.5, 0.5] and PAGE.shown == (CELLS,)
    assert PAGE.draw(Records(found), PAGE.panels("smoke"), tmp_path) == [tmp_path / "beyond.png"]


def steered(losses, change, **settings):
    """Factor and stepsize after each round of given losses, where the change of round t is `change(t)`; `best` is 1."""
    rule = PlateauStepsize(**({"bold": 0.003} | settings))
    state, found = rule.server_init(torch.zeros(2).double()), []
    for number, loss in enumerate(losses):
        mean = dict.fromkeys(("first_gap", "gap", "gradient_sq"), torch.tensor(loss).double())
        mean["first_gradient_sq"] = 2 * mean["gradient_sq"]
        state = rule.absorb(state, mean | {"delta": torch.tensor(change(number)).double()}, 1.0)
        found.append((state["factor"].item(), state["stepsize"].item()))
    return np.array(found).T


def factors(losses, change, **settings):
    return steered(losses, change, **settings)[0]


def back_and_forth(number):
    return [(-1.0) ** number, 0.1]


def straight_on(number):
    return [1.0, 0.1]


def crosswise(number):
    return [[1.0, 0.0], [0.0, 1.0]][number % 2]


AT_ONCE = {"least_rest": 5}
"""A rest counts at the first look, at the start too."""


def test_the_factor_rises_while_the_loss_falls_fast_up_to_four():
    found = factors([0.9**number for number in range(80)], back_and_forth)
    assert found[3] == 1.0 and found[4] == pytest.approx(1.03**5) and found[-1] == 4.0


def test_a_factor_above_one_needs_a_loss_that_falls_fast():
    """A third of a percent a round is no rest, and not fast: s comes back to 1, whatever the changes do."""
    losses = [0.9**number for number in range(30)]
    losses += [losses[-1] * 0.997**number for number in range(60)]
    for change in (back_and_forth, straight_on, crosswise):
        found = factors(losses, change)
        assert found[29] > 2 and found[-1] == 1.0


def test_the_factor_drops_where_the_loss_rests_and_changes_oppose_each_other():
    """From where it acts: the stepsize still grows, far below s times `best`, when the first rest is seen."""
    losses = [0.3 + 1e-5 * (number % 2) for number in range(40)]
    factor, stepsize = steered(losses, back_and_forth, **AT_ONCE)
    grown = 0.003 * 1.1**4
    assert factor[3] == 1.0 and stepsize[3] == pytest.approx(grown)
    assert factor[-1] == pytest.approx(grown * 0.955**40)


def test_a_factor_that_was_dropped_rises_to_one_while_the_loss_falls_slowly():
    rest = [0.3 + 1e-5 * (number % 2) for number in range(40)]
    found = factors(rest + [0.3 * 0.997**number for number in range(300)], back_and_forth, growth=10.0)
    assert found[39] < 0.2 and found[-1] == 1.0


def test_a_rest_before_anything_was_gained_must_last():
    """A network on its first plateau is not at rest: 20 rounds, or a tenth of the first loss gone."""
    rest = [0.3 + 1e-5 * (number % 2) for number in range(40)]
    for first, drops in (([], 20), ([0.4, 0.38, 0.36, 0.34, 0.32], 10)):
        factor = factors([*first, *rest], back_and_forth, growth=1000.0, fast=0.5)
        assert (factor[: drops - 1] == 1).all() and factor[drops - 1] < 1, first


@pytest.mark.parametrize("level", [0.5, 0.1, 0.9])
def test_a_trend_that_noise_hides_brings_the_factor_down_by_what_is_gone(level):
    """Over 40 rounds: the more of the first loss is still there, the further; not where changes agree."""
    losses = [1.0, *(level * (1 + 0.1 * (-1) ** number) for number in range(60))]
    setting = {"bold": 1.0, "least_fall": 1e-4, "fast": 0.9}
    factor = factors(losses, crosswise, **setting)
    drop = int(np.argmax(factor < 1))
    now = 1.0
    for loss in losses[1 : drop + 1]:
        now = (now + loss) / 2
    assert drop in (39, 44), "40 rounds, or 40 after a first look that saw the fall of the first round"
    assert factor[drop] == pytest.approx(max(0.25, 1 - now))
    assert (factors(losses, straight_on, **setting) == 1).all()


def test_losses_of_zero_leave_the_factor_alone():
    assert (factors([0.0] * 100, crosswise) == 1).all()


def test_a_start_that_is_over_does_not_come_back():
    """A loss that has risen above where it began rests as any other."""
    rest = [0.5 + 1e-5 * (number % 2) for number in range(10)]
    factor = factors([0.4, 0.38, 0.36, 0.34, 0.32, *rest], back_and_forth, growth=1000.0, fast=0.5)
    assert factor[8] == 1 and factor[9] < 1


def test_the_factor_can_come_back_from_the_longest_rest():
    losses = [0.3 + 1e-5 * (number % 2) for number in range(2000)]
    factor = factors([*losses, *(0.3 * 0.99**number for number in range(600))], back_and_forth, least_rounds=40)
    assert factor[1999] == 1e-6 and factor[-1] >= 1


def test_a_stepsize_grows_again_when_the_loss_falls():
    losses = [0.3 + 1e-5 * (number % 2) for number in range(5)] + [0.3 * 0.9**number for number in range(1, 20)]
    stepsize = steered(losses, back_and_forth, **AT_ONCE)[1]
    assert stepsize[4] == pytest.approx(0.955**5 * stepsize[3]), "dropped"
    assert stepsize[8] == pytest.approx(stepsize[4]), "and held"
    assert stepsize[9] == pytest.approx(1.03**5 * stepsize[8]), "until a fall is certain: s limits it"


@pytest.mark.parametrize("before", [[], [1.0, 0.9, 0.8, 0.7, 0.6]])
def test_a_stepsize_that_was_dropped_does_not_follow_larger_ratios_before_the_loss_falls(before):
    """Nor the share of the loss that was gone before."""
    rule, drop = PlateauStepsize(bold=0.003, memory=1.0, **AT_ONCE), len(before) + 4
    state, found = rule.server_init(torch.zeros(2).double()), []
    for number, loss in enumerate([*before, *(0.3 + 1e-5 * (number % 2) for number in range(9))]):
        one = torch.ones((), dtype=torch.float64)
        mean = {"first_gap": one * loss, "gap": one * (3.0 if number > drop else 1.0), "gradient_sq": one}
        mean["first_gradient_sq"] = 2 * one
        state = rule.absorb(state, mean | {"delta": torch.tensor(back_and_forth(number)).double()}, 1.0)
        found.append(state["stepsize"].item())
    assert found[drop] < found[drop - 1] and found[drop + 1 :] == [found[drop]] * 4


def test_steps_that_are_too_short_are_no_rest():
    """A stepsize that was stopped grows again where changes agree, and not where they cross."""
    rest = [0.3 + 1e-5 * (number % 2) for number in range(5)]
    for way, grows in ((straight_on, True), (crosswise, False)):
        stepsize = steered(
            rest + [0.3 - 1e-5 * number for number in range(20)],
            lambda number, way=way: back_and_forth(number) if number < 5 else way(number),
            **AT_ONCE,
        )[1]
        assert (stepsize[-1] > stepsize[4]) == grows


def test_one_decision_changes_the_factor_by_four_at_most():
    noise = 0.01 * np.random.default_rng(3).normal(size=200)
    setting = {"least_rounds": 200, "fast": 0.005, "largest": 100.0, "bold": 1.0}
    assert factors(np.linspace(1, 0.01, 200) + noise, back_and_forth, **setting)[-1] == 4.0
    assert factors(1 + noise, back_and_forth, **setting)[-1] == 0.25


def test_looks_are_at_five_rounds_and_their_doubles():
    """A loss that begins to fall after eleven rounds of noise is seen to fall at the twentieth, not before."""
    noise = 0.3 + 0.1 * np.array([1, -1, -1, 1, 0, -1, 1, 1, -1, 0, 0])  # no trend after five, nor after ten
    found = factors([*noise, *(0.3 * 0.7**number for number in range(1, 30))], back_and_forth)
    assert (found[:19] == 1.0).all() and found[19] == pytest.approx(1.03**20)


def test_noise_alone_decides_little():
    noise = np.random.default_rng(0).normal(size=(20, 200))
    decisions = [np.diff(factors(0.3 + 0.3 * np.abs(one), back_and_forth)).astype(bool).sum() for one in noise]
    assert np.mean(decisions) < 10, "a look every five rounds would have made 40"


def test_the_means_forget_slowly():
    """`best` is the ratio of two means over about 30 rounds: one round of large gradients shortens few steps much."""
    rule = PlateauStepsize(bold=100.0, growth=1000.0)
    state, found = rule.server_init(torch.zeros(2).double()), []
    for number in range(60):
        norm = torch.tensor(101.0 if number == 30 else 1.0).double()
        mean = {"delta": torch.ones(2).double(), "first_gap": norm, "gap": torch.ones(()).double(), "gradient_sq": norm}
        mean["first_gradient_sq"] = 2 * norm
        state = rule.absorb(state, mean, 1.0)
        found.append(state["stepsize"].item() / state["factor"].item())
    ages = (29 / 30) ** np.arange(60)
    assert found[29] == pytest.approx(1.0)
    assert found[30] == pytest.approx(ages[:31].sum() / (ages[:31].sum() + 100))
    assert found[59] == pytest.approx(ages.sum() / (ages.sum() + 100 * ages[29]))


@pytest.mark.parametrize(("gap", "size"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
def test_clients_that_show_no_ratio_stop_nothing(gap, size):
    """There is no stepsize until one is seen: clients without gradients, or whose losses are all rounded to 0."""
    rule = PlateauStepsize()
    state = rule.server_init(torch.zeros(2).double())

    def mean(gap, size):
        gap, size = torch.tensor(gap).double(), torch.tensor(size).double()
        squares = {"gradient_sq": size, "first_gradient_sq": 2 * size}
        return {"delta": torch.zeros(2).double(), "first_gap": gap, "gap": gap, **squares}

    for _ in range(7):
        state = rule.absorb(state, mean(gap, size), 1.0)
    assert state["stepsize"].isinf()
    state = rule.absorb(state, mean(2.0, 4.0), 1.0)
    best = (state["kept_gap"] / state["kept_gradient_sq"]).item()
    assert state["stepsize"].item() == pytest.approx(1.1 * 0.1 * best)


def test_a_cohort_whose_losses_are_rounded_to_zero_does_not_end_the_run():
    """Two clients, one a round; the first fits so well at the start that float32 has a loss of 0, not its gradient."""
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(4, 3)
    torch.nn.init.zeros_(model.weight)
    model.bias.data = torch.tensor([18.0, 0.0, 0.0])
    clients = [(inputs, torch.zeros(40, dtype=torch.long)), (inputs, (inputs[:, 0] > 0).long() + 1)]
    for seed in range(4):
        history = fedsps.train(model, clients, algorithm=fedsps.FedPolyak(), rounds=60, cohort=1, seed=seed).history
        assert history.train_loss.iloc[0] > 7 and history.train_loss.iloc[-1] < 4


def test_the_stepsize_follows_the_share_of_the_loss_that_is_gone():
    """Fourfold a round at the most; where little is gone, and after a drop, by 1.1."""
    losses = [1.0, 0.96, 0.9, 0.8, 0.6]
    recent = [1.0, 0.98, 0.94, 0.87, 0.735]
    stepsize = steered(losses, crosswise)[1]
    assert stepsize == pytest.approx([0.0033, 0.0132, 0.0528, 0.13, 1 - recent[-1]])
    assert steered([1.0] * 4, crosswise)[1] == pytest.approx(0.003 * 1.1 ** np.arange(1, 5))
    rest = [1.0 + 1e-5 * (number % 2) for number in range(5)]
    stopped = steered([*rest, 0.5, 0.5], back_and_forth, **AT_ONCE)[1]
    assert (stopped[5:] == stopped[4]).all()


def test_a_rise_that_harms_is_taken_back():
    """The loss jumps after the second rise, and stays: s is what it was before that rise, at the first look."""
    losses = [0.9**number for number in range(10)] + [0.9 + 0.01 * (number % 2) for number in range(5)]
    found = factors(losses, crosswise, rise=1.2)
    assert found[4] == pytest.approx(1.2**5) and found[13] == found[9] == 4
    assert found[14] == found[4] < 4 * 0.955**5


def test_a_loss_that_is_higher_by_chance_is_no_harm():
    """The same mean with a spread of its own size: it is not certain that it is above."""
    losses = [0.9**number for number in range(10)] + [0.3, 1.6, 0.2, 1.7, 0.3]
    found = factors(losses, crosswise)
    assert found[14] == found[9]


def trained(scale, stretch, rounds=40):
    """Weights times `stretch` after some rounds of logistic regression, loss times `scale`, inputs times `stretch`."""
    random = torch.Generator().manual_seed(1)
    clients = []
    for _ in range(4):
        inputs = torch.randn(30, 5, generator=random, dtype=torch.float64)
        clients.append(
            (stretch * inputs, (inputs @ torch.ones(5).double() + torch.randn(30, generator=random) > 0).long())
        )
    model = torch.nn.Linear(5, 2, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    result = fedsps.train(
        model,
        clients,
        algorithm=fedsps.FedPolyak(),
        loss=lambda outputs, targets: scale * torch.nn.functional.cross_entropy(outputs, targets),
        rounds=rounds,
        cohort=3,
        batch_size=10,
        evaluate_every=0,
    )
    return stretch * result.model.weight.detach()


@pytest.mark.parametrize("power", [-24, -12, -3, 5, 20, 40])
def test_neither_the_losses_scale_nor_that_of_the_inputs_matters(power):
    """Powers of two are multiplied without rounding: the same run, bit for bit."""
    plain = trained(1.0, 1.0)
    assert plain.abs().max() > 0.1
    assert torch.equal(trained(2.0**power, 1.0), plain)
    assert torch.equal(trained(1.0, 2.0 ** (power // 2)), plain)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
def test_other_scales_change_the_rounding_alone(scale):
    assert torch.allclose(trained(scale, 1.0), trained(1.0, 1.0), rtol=1e-6, atol=1e-8)


def rehearsed(left, rise=1.0, share=0.1):
    """State and change after a first round that leaves so much of the first step's ratio, with so much of its loss."""
    rule, one = PlateauStepsize(), torch.ones((), dtype=torch.float64)
    state = rule.server_init(torch.zeros(2).double()) | {"share": share * one}
    mean = {"first_gap": one, "gap": rise * one, "first_gradient_sq": one, "gradient_sq": rise * one / left}
    mean = rule.accept(state, mean | {"delta": torch.ones(2).double()})
    return rule.absorb(state, mean, 1.0), mean["delta"].tolist()


@pytest.mark.parametrize(("left", "rise"), [(0.59, 1.0), (2.0, 1.01)])
def test_bold_steps_on_whose_way_the_ratio_falls_or_the_loss_rises_move_nothing(left, rise):
    state, delta = rehearsed(left, rise)
    assert delta == [0.0, 0.0] and state["stepsize"].isinf() and state["share"].item() == pytest.approx(0.003)
    untouched = PlateauStepsize().server_init(torch.zeros(2).double())
    assert all(torch.equal(state[name], untouched[name]) for name in untouched if name != "share")


def test_bold_steps_that_do_what_the_gradients_promise_are_kept_and_careful_ones_always():
    state, delta = rehearsed(0.61)
    assert delta == [1.0, 1.0] and state["share"].item() == 0.1
    assert state["stepsize"].item() == pytest.approx(1.1 * 0.1 * 0.61)
    state, delta = rehearsed(0.01, rise=2.0, share=0.003)
    assert delta == [1.0, 1.0] and state["stepsize"].item() == pytest.approx(1.1 * 0.003 * 0.01)


def test_once_there_is_a_stepsize_no_round_is_refused():
    rule, one = PlateauStepsize(), torch.ones((), dtype=torch.float64)
    state, _ = rehearsed(1.0)
    mean = {"first_gap": one, "gap": one, "first_gradient_sq": one, "gradient_sq": 100 * one, "delta": one.expand(2)}
    assert torch.equal(rule.accept(state, mean)["delta"], one.expand(2))
    assert rule.absorb(state, mean, 1.0)["share"].item() == pytest.approx(0.003), "the rehearsal is over"


def after(rounds, first_gap, local_steps=5):
    """Whether a run begins anew after so many rounds of a loss of 1, the next of which begins at this loss."""
    rule, one = PlateauStepsize(), torch.ones((), dtype=torch.float64)
    state, change = rule.server_init(torch.full((2,), 7.0).double()), {"delta": torch.ones(2).double()}
    less = 1 if local_steps == 1 else 0.9
    seen = {"first_gap": one, "gap": less * one, "first_gradient_sq": one, "gradient_sq": less * one}
    for _ in range(rounds):
        state = rule.absorb(state, seen | change, 1.0)
    later = {name: first_gap * value for name, value in seen.items()}
    is_lost, start, learnt = rule.anew(state, later | change)
    assert start.tolist() == [7.0, 7.0] and learnt["share"].item() == pytest.approx(0.003)
    return bool(is_lost)


def test_a_loss_that_doubles_after_the_bold_round_brings_the_run_back_to_its_start():
    assert after(1, 2.01) and not after(1, 1.99)
    assert not after(2, 9.0), "in the round after it alone"
    assert not after(0, 9.0), "where there is a stepsize"
    assert not after(1, 9.0, local_steps=1), "where the steps were bold"


def test_a_first_loss_of_nothing_cannot_double():
    rule, one = PlateauStepsize(), torch.ones((), dtype=torch.float64)
    mean = {"first_gap": 0 * one, "gap": one, "first_gradient_sq": one, "gradient_sq": one, "delta": one.expand(2)}
    state = rule.server_init(torch.zeros(2).double()) | {"share": 0.1 * one, "stepsize": one}
    assert not rule.anew(rule.absorb(state, mean, 1.0) | {"share": 0.1 * one}, mean | {"first_gap": one})[0]


def test_runs_that_begin_anew_do_so_one_by_one():
    """Of two runs at once the one whose loss doubled is at its start again, metric and all; the other goes on."""
    train = fedsps.FedPolyak().exchanges(0)[-1]
    x, one = torch.zeros(2, 3).double(), torch.ones(2).double()
    state = {name: value for part in train.parts for name, value in part.server_init(x).items()}
    seen = {"first_gap": one, "gap": 0.9 * one, "first_gradient_sq": one, "gradient_sq": 0.9 * one}
    seen |= {"delta": torch.ones(2, 3).double(), "delta_norm_sq": 3 * one}
    x1, first = train.finish(state, x, seen, 1.0)
    x2, second = train.finish(first, x1, seen | {"first_gap": torch.tensor([3.0, 1.0]).double()}, 1.0)
    assert torch.equal(x2[0], x[0]) and not torch.equal(x2[1], x1[1])
    assert second["squares"].tolist() == [[0.0] * 3, [2.0] * 3]
    assert second["stepsize"][0].isinf() and second["stepsize"][1] > first["stepsize"][1]
    assert second["share"].tolist() == pytest.approx([0.003] * 2)
    for name, value in second.items():
        if name != "share":
            assert torch.equal(value[0], state[name][0]), name


def plateau_network():
    """A scalar network that begins on a plateau: y = a b c d e x with all factors small, and targets far away."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False) for _ in range(5))).double()
    for layer in model:
        torch.nn.init.constant_(layer.weight, 0.3)
    return model


def test_a_network_on_a_plateau_rehearses_and_a_convex_problem_does_not():
    inputs = torch.ones(20, 1).double()
    options = {"algorithm": fedsps.FedPolyak(), "rounds": 60, "batch_size": None, "loss": torch.nn.functional.mse_loss}
    deep = fedsps.train(plateau_network(), [(inputs, 3 * inputs)] * 2, **options).history
    assert deep.train_loss[0] == pytest.approx((0.3**5 - 3) ** 2), "nothing moved"
    assert deep.train_loss.iloc[-1] < 0.01 * deep.train_loss[0]
    line = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.zeros_(line.weight)
    flat = fedsps.train(line, [(inputs, 3 * inputs)] * 2, **options).history
    assert flat.stepsize_mean[0] == pytest.approx(0.1 / 4) and flat.train_loss[0] < 9


def test_a_loss_raised_with_its_bound_gives_the_same_run():
    """F + 2 with lower = 2: nothing of the recursion may see the loss itself, without its bound."""
    random = np.random.default_rng(0)
    inputs = torch.from_numpy(random.normal(size=(4, 30, 5)))
    clients = [(own, (own[:, 0] > 0).long()) for own in inputs]
    model = fedsps.LogisticRegression(5, 3).double()

    def raised(outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets) + 2

    plain, above = (
        fedsps.train(model, clients, algorithm=fedsps.FedPolyak(lower=lower), loss=loss, rounds=30).history
        for lower, loss in ((0.0, torch.nn.functional.cross_entropy), (2.0, raised))
    )
    np.testing.assert_allclose(above.stepsize_mean, plain.stepsize_mean, rtol=1e-6)
    np.testing.assert_allclose(above.train_loss - 2, plain.train_loss, rtol=1e-6)


def test_a_single_local_step_shows_nothing_so_it_is_short():
    """F = (w - 3)^2 has (F - 0) / F'^2 = 1/4 everywhere."""
    inputs = torch.ones(20, 1).double()
    model = torch.nn.Linear(1, 1, bias=False).double()
    options = {"rounds": 2, "local_steps": 1, "batch_size": None, "loss": torch.nn.functional.mse_loss}
    history = fedsps.train(model, [(inputs, 3 * inputs)] * 2, algorithm=fedsps.FedPolyak(), **options).history
    assert history.stepsize_mean.tolist() == pytest.approx([0.003 / 4, 1.1 * 0.003 / 4])


@pytest.mark.parametrize("name", ["memory", "largest"])
def test_a_memory_of_less_than_a_round_is_refused(name):
    with pytest.raises(ConfigurationError, match=f"{name} must be a finite number of at least 1; got 0.5"):
        PlateauStepsize(**{name: 0.5})


def test_a_server_rule_without_the_changes_is_refused():
    clients = [(torch.eye(3), torch.arange(3))] * 2
    composed = fedsps.build("plateau+normalized")
    with pytest.raises(ConfigurationError, match="needs a server rule to which clients send delta"):
        fedsps.train(fedsps.LogisticRegression(3, 3), clients, algorithm=composed, rounds=1)


def test_the_slope_and_its_error_are_those_of_least_squares():
    losses = np.random.default_rng(1).normal(size=9)
    line = {name: torch.zeros((), dtype=torch.float64) for name in LINE}
    for loss in losses:
        line = with_loss(line, torch.tensor(loss))
    expected = linregress(np.arange(9), losses)
    slope, error = (value.item() for value in slope_of(line))
    assert (slope, error) == pytest.approx((expected.slope, expected.stderr))


def test_of_networks_what_their_own_pages_lack_is_evaluated_in_the_last_tenth_alone() -> None:
    late = {
        panel.name: {line.label: dict(line.settings).get("evaluate_from") for line in panel.lines if line.settings}
        for panel in beyond.panels("paper")
    }
    assert late["LeNet, mnist i.i.d."] == dict.fromkeys(("FedDecSPS", "FedExP", "Delta-SGD"), 451)
    assert late["ResNet-18, cifar10 by class"] == dict.fromkeys(("FedExP", "Delta-SGD"), 91)
    assert not late["mnist i.i.d., tau 20"], "what the tables hold is not run again"
