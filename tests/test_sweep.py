"""Sweeps: many settings at once give what each gives alone."""

import itertools
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from conftest import make_clients
from registry import ALGORITHMS, BEGUN_ANEW
from torch import nn

import fedsps
from fedsps import Plan
from fedsps.core.stacking import can_stack, stack
from fedsps.data.clients import ClientData, held_out
from fedsps.engine.evaluate import evaluate_clients, evaluate_pool, pools
from fedsps.engine.setup import Setup
from fedsps.engine.sweep import Sweep
from fedsps.model import span
from fedsps.model.logistic import network_of
from fedsps.rules import PlateauStepsize
from fedsps.runs.parallel import run_all

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def scaled(value, factor):
    """A part with every floating parameter a little larger; others stay."""
    if isinstance(value, float):
        return min(value * factor, 0.995) if 0 < value < 1 else value * factor
    if is_dataclass(value):
        changed = {field.name: scaled(getattr(value, field.name), factor) for field in fields(value)}
        return replace(value, **changed)
    return value


def variants(algorithm, factors=(1.0, 1.1, 0.8)):
    """The algorithm, and others that differ from it in all floating parameters of all parts."""
    made = []
    for factor in factors:
        parts = {name: scaled(part, factor) for name, part in algorithm.composition.items() if part is not None}
        made.append(fedsps.Algorithm(**parts))
    return made


def says_in_sweep(algorithm):
    """Whether all of an algorithm's parts can be computed for many runs; one that does not say so runs by itself."""
    return all(vars(type(part)).get("in_sweep") for part in algorithm.composition.values() if part is not None)


SWEPT = [name for name, algorithm in ALGORITHMS.items() if says_in_sweep(algorithm)]


def test_all_but_few_can_be_swept():
    assert len(SWEPT) > 30
    for name in ALGORITHMS.keys() - set(SWEPT):
        assert not can_stack(variants(ALGORITHMS[name]))


def sweep(algorithms, model, clients, test=None, loss=None, **plan):
    network = network_of(model) if loss is None else network_of(model, loss)
    data = ClientData.of(clients).to(network.x, network.accepted)
    held = None if test is None else held_out(test).to(network.x, network.accepted)
    tests = () if held is None else (held,)
    return Sweep([Setup(Plan(**plan), network, data, algorithms[0])], algorithms, tests=tests)


def assert_as_alone(swept, algorithms, model, clients, **settings):
    for one, algorithm in zip(swept, algorithms, strict=True):
        alone = fedsps.train(model, clients, algorithm=algorithm, engine="loop", **settings)
        columns = [column for column in alone.history if column != "seconds"]
        rows = np.array([[row[column] for column in columns] for row in one.rows], dtype=np.float64)
        np.testing.assert_allclose(rows, alone.history[columns].to_numpy(np.float64), **CLOSE)
        weights = torch.cat([parameter.detach().flatten() for parameter in alone.model.parameters()])
        torch.testing.assert_close(one.x, weights, **CLOSE)
        assert one.diverged_at == alone.diverged_at


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("name", SWEPT)
def test_every_algorithm(name, weights):
    algorithms, clients = variants(ALGORITHMS[name]), make_clients()
    model = fedsps.LogisticRegression(4, 3).double()
    settings = {
        "rounds": 3, "local_steps": 2, "batch_size": 10, "cohort": 5 if "client" in name else 3, "weights": weights,
        "evaluate_every": 2,
    }  # fmt: skip
    swept = sweep(algorithms, model, clients, clients[0], **settings).run()
    assert_as_alone(swept, algorithms, model, clients, test=clients[0], **settings)


@pytest.mark.parametrize("name", SWEPT)
def test_every_algorithm_on_a_module(name):
    """Through vmap, with the batches shared."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    algorithms, clients = variants(ALGORITHMS[name]), make_clients(sizes=(4, 9, 9, 30, 12))
    settings = {"rounds": 2, "local_steps": 2, "batch_size": 8, "cohort": 5 if "client" in name else 3}
    assert_as_alone(sweep(algorithms, model, clients, **settings).run(), algorithms, model, clients, **settings)


@pytest.mark.parametrize("kind", ["linear", "module"])
@pytest.mark.parametrize("name", SWEPT)
def test_every_algorithm_with_seeds(name, kind):
    """Two settings and three seeds, one pair missing: each with its own start, split, cohorts and batches."""
    splits = [make_clients(seed=0), make_clients(seed=1), make_clients(sizes=(4, 9, 9, 30, 12), seed=2)]
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        hidden = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
        linear = fedsps.LogisticRegression(4, 3).double()
        nn.init.normal_(linear.weight, std=0.1)
        models.append(linear if kind == "linear" else hidden)
    plan = {
        "rounds": 3,
        "local_steps": 2,
        "batch_size": 8,
        "cohort": 5 if "client" in name else 3,
        "weights": "samples",
    }
    settings = variants(ALGORITHMS[name], factors=(1.0, 1.1))
    runs = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)]
    networks = [network_of(model) for model in models]
    setups = [
        Setup(Plan(**plan, seed=seed), networks[seed], ClientData.of(splits[seed]), settings[0]) for seed in range(3)
    ]
    tests = [held_out(split[0]) for split in splits]
    chosen, seeds = [settings[setting] for setting, _ in runs], [seed for _, seed in runs]
    for one, algorithm, seed in zip(Sweep(setups, chosen, seeds, tests).run(), chosen, seeds, strict=True):
        assert_as_alone([one], [algorithm], models[seed], splits[seed], test=splits[seed][0], seed=seed, **plan)


def test_of_runs_at_once_those_that_must_begin_anew_do(monkeypatch):
    rules = [replace(BEGUN_ANEW.stepsize, bold=bold, initial=share) for bold, share in ((1.0, 0.003), (0.1, 0.01))]
    algorithms = [replace(BEGUN_ANEW, stepsize=rule) for rule in rules]
    clients, lost, original = make_clients(), [], PlateauStepsize.anew
    monkeypatch.setattr(PlateauStepsize, "anew", lambda *given: lost.append(original(*given)) or lost[-1])
    model, settings = fedsps.LogisticRegression(4, 3).double(), {"rounds": 4, "batch_size": 5}
    swept = sweep(algorithms, model, clients, **settings).run()
    assert lost[1][0].tolist() == [True, False], "in the second round, and one of the two"
    assert_as_alone(swept, algorithms, model, clients, **settings)


def test_seeds_of_one_data_set_are_evaluated_in_one_product():
    """Whoever holds them and whatever their labels are; splits of other samples are told apart."""
    random = np.random.default_rng(0)
    inputs, targets = torch.rand(30, 4).double(), torch.randint(3, (30,))

    def dealt(rows, sizes):
        changed = targets.clone()
        changed[rows[:3]] = (changed[rows[:3]] + 1) % 3
        return ClientData(inputs[rows], changed[rows], np.array(sizes), np.asarray(rows))

    data = [dealt(random.permutation(30), (10, 20)), dealt(random.permutation(30), (25, 5))]
    data += [dealt(random.permutation(30)[:28], (14, 14)), replace(data[0], rows=None)]
    found = pools(data)
    assert [list(pool.data) for pool in found] == [[0, 1], [2], [3]]
    network = network_of(fedsps.LogisticRegression(4, 3).double())
    x, splits = torch.randn(3, 15).double(), [1, 0, 1]
    loss, accuracy = evaluate_pool(network, x, found[0], splits)
    for run, split in enumerate(splits):
        alone = evaluate_clients(network, x[run], {}, data[split])
        torch.testing.assert_close(loss[run], alone.loss, **CLOSE)
        torch.testing.assert_close(accuracy[run], alone.accuracy, **CLOSE)


def test_a_single_logit():
    clients = [(inputs, (targets == 1).double()) for inputs, targets in make_clients()]
    loss = nn.functional.binary_cross_entropy_with_logits
    algorithms = [fedsps.FedSPS(cap=cap) for cap in (0.1, 1.0, 5.0, 10.0, 20.0)]
    model = fedsps.LogisticRegression(4, 2).double()
    settings = {"rounds": 4, "batch_size": 4, "loss": loss, "test": clients[1]}
    assert_as_alone(sweep(algorithms, model, clients, **settings).run(), algorithms, model, clients, **settings)


def test_the_span_is_used_where_the_rules_need_no_coordinates(monkeypatch):
    used = []
    original = span.RoundSamples.loss_and_gradient
    monkeypatch.setattr(
        span.RoundSamples, "loss_and_gradient", lambda self, y, step: used.append(1) or original(self, y, step)
    )
    model, clients = fedsps.LogisticRegression(4, 3).double(), make_clients()
    for algorithm, spans in [(fedsps.FedSPS(), True), (fedsps.FedExP(), True), (fedsps.FedAMS(), True),
                             (fedsps.DeltaSGD(), True), (fedsps.FedProx(), False), (fedsps.Scaffold(), False)]:  # fmt: skip
        used.clear()
        sweep(variants(algorithm), model, clients, rounds=1, batch_size=3).run()
        assert bool(used) == spans

    class Own(fedsps.rules.SPS):
        """It may look at coordinates: what it extends says nothing of it."""

        in_sweep = True

    used.clear()
    sweep(variants(fedsps.Algorithm(stepsize=Own())), model, clients, rounds=1, batch_size=3).run()
    assert not used


def test_norms_and_means_of_the_span_are_those_of_the_vectors():
    random = torch.Generator().manual_seed(0)
    inputs = torch.rand(3, 2, 5, 4, generator=random, dtype=torch.float64)
    targets = torch.randint(3, (3, 2, 5), generator=random)
    x = torch.randn(7, 15, generator=random, dtype=torch.float64)
    samples = span.RoundSamples.of(x.unsqueeze(1), 3, inputs, targets)
    network = network_of(fedsps.LogisticRegression(4, 3).double())
    y, dense = samples.start(), x.unsqueeze(1).expand(-1, 2, -1)
    for step in range(3):
        loss, gradient = samples.loss_and_gradient(y, step)
        expected, slope, _ = network.loss_and_gradient(dense, {}, inputs[step], targets[step], shared=1)
        torch.testing.assert_close(loss, expected, **CLOSE)
        torch.testing.assert_close(gradient.norm_sq(), (slope**2).sum(-1), **CLOSE)
        gamma = torch.rand(7, 2, generator=random, dtype=torch.float64)
        y, dense = y - gradient.times(gamma), dense - gamma[..., None] * slope
    delta, moved = y - samples.start(), dense - x.unsqueeze(1)
    torch.testing.assert_close(delta.norm_sq(), (moved**2).sum(-1), **CLOSE)
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    torch.testing.assert_close(delta.mean(weights[None])[:, 0], 0.3 * moved[:, 0] + 0.7 * moved[:, 1], **CLOSE)
    assert delta.shape == moved.shape and delta.numel() == moved.numel()


def test_a_setting_that_diverges_leaves_without_costing_the_others():
    clients = [(inputs, inputs.sum(1, keepdim=True)) for inputs, _ in make_clients()]
    model = nn.Linear(4, 1).double()
    algorithms = [fedsps.FedAvg(client_stepsize=stepsize) for stepsize in (1e-3, 1e6, 1e-4, 1e3)]
    settings = {"rounds": 60, "loss": nn.functional.mse_loss, "batch_size": 3}
    swept = sweep(algorithms, model, clients, **settings).run()
    assert [one.diverged_at is None for one in swept] == [True, False, True, False]
    assert_as_alone([swept[0], swept[2]], [algorithms[0], algorithms[2]], model, clients, **settings)
    for place in (1, 3):
        alone = fedsps.train(model, clients, algorithm=algorithms[place], **settings)
        assert swept[place].diverged_at == alone.diverged_at == len(swept[place].rows)
        weights = torch.cat([parameter.detach().flatten() for parameter in alone.model.parameters()])
        torch.testing.assert_close(swept[place].x, weights, rtol=1e-6, atol=0.0)


def test_settings_can_be_dropped():
    model, clients = fedsps.LogisticRegression(4, 3).double(), make_clients()
    algorithms = [fedsps.FedAvg(client_stepsize=stepsize) for stepsize in (0.01, 0.1, 1.0)]
    seen = []

    def drop(round, rows):
        seen.append((round, sorted(rows)))
        return {0} if round == 2 else {2} if round == 4 else set()

    swept = sweep(algorithms, model, clients, rounds=6, evaluate_every=2).run(drop)
    assert seen == [(2, [0, 1, 2]), (4, [1, 2]), (6, [1])]
    assert [len(one.rows) for one in swept] == [2, 6, 4]
    assert [one.dropped for one in swept] == [True, False, True]
    assert_as_alone([swept[1]], [algorithms[1]], model, clients, rounds=6, evaluate_every=2)


def test_a_memory_limit_makes_chunks_and_changes_nothing():
    model, clients = fedsps.LogisticRegression(4, 3).double(), make_clients(sizes=(9, 9, 9, 4, 30))
    algorithms = [fedsps.FedDecSPS(cap=cap) for cap in (0.1, 1.0)]
    whole = sweep(algorithms, model, clients, rounds=4, batch_size=6)
    small = sweep(algorithms, model, clients, rounds=4, batch_size=6)
    small._roomy = [replace(small.setups[0], memory_limit=1)]
    for one, other in itertools.zip_longest(whole.run(), small.run()):
        torch.testing.assert_close(one.x, other.x, **CLOSE)


def test_a_loss_below_the_bound_of_one_setting_stops_the_sweep():
    algorithms = [fedsps.FedSPS(lower=lower) for lower in (0.0, 0.9)]
    with pytest.raises(
        fedsps.LowerBoundError, match=r"round 1: client \d saw a loss of .* below its lower bound of 0\.9"
    ):
        sweep(algorithms, fedsps.LogisticRegression(4, 3).double(), make_clients(), rounds=20).run()


def test_what_can_be_stacked():
    assert can_stack([fedsps.FedSPS(), fedsps.FedSPS(cap=2.0)])
    assert can_stack([fedsps.FedAMS(eps=eps, server_stepsize=eta) for eps in (0.1, 1.0) for eta in (1.0, 2)])
    assert can_stack([fedsps.FedSPSGlobal(cap=cap) for cap in (0.1, 1.0)])
    for other in (fedsps.FedAvg(), fedsps.FedSPS(smoothing="paper"), fedsps.FedSPS(lower=(0.0, 0.1))):
        assert not can_stack([fedsps.FedSPS(), other])
    assert not can_stack([fedsps.FedSPSGlobal(), fedsps.FedSPSGlobal(initial=0.1)])
    assert not can_stack([fedsps.FedAMS(option=1), fedsps.FedAMS(option=2)])
    assert can_stack([fedsps.FedAdam(b2=0.99), fedsps.FedAdam(b2=0.999)])
    assert not can_stack([fedsps.FedAdam(b2=0.99), fedsps.FedAdam(b2=0.9999)]), "1 - b2 in float32 is another number"

    class Own(fedsps.rules.Constant):
        """It may do with its number what only numbers can do."""

    assert not can_stack([fedsps.Algorithm(stepsize=Own(stepsize)) for stepsize in (0.1, 0.2)])
    one, two = stack([fedsps.FedSPS(cap=1.0), fedsps.FedSPS(cap=3.0)], torch.zeros(1).double()).stepsize.cap
    assert (one, two) == (1.0, 3.0)


def test_runs_of_a_sweep_are_kept_marked_and_run_again_where_exact_ones_are_asked_for(tmp_path):
    specs = [fedsps.Spec.of(f"fedavg:client_stepsize={stepsize}", rounds=4) for stepsize in (0.1, 0.5, 1.0)]
    together = run_all(specs, tmp_path)
    assert [one.provenance["sweep"] for one in together] == [3, 3, 3]
    assert [one.spec for one in together] == specs
    again = fedsps.run(specs[1], tmp_path)
    assert again.history.equals(together[1].history), "it is taken as it is"
    exact = fedsps.run(specs[1], tmp_path, exact=True)
    assert "sweep" not in exact.provenance
    np.testing.assert_allclose(exact.history["train_loss"], again.history["train_loss"], rtol=1e-5)
    assert fedsps.run(specs[1], tmp_path).history.equals(exact.history)
    alone = run_all(specs, tmp_path / "alone", exact=True)
    assert not any("sweep" in one.provenance for one in alone)
    assert alone[1].history.drop(columns="seconds").equals(exact.history.drop(columns="seconds"))


class KilledError(BaseException):
    """What a killed process leaves behind is what its files hold."""


@pytest.mark.parametrize("word", ["feddecsps:cap={}", "fedadam:client_stepsize={}", "fedexp:client_stepsize={}"])
def test_a_sweep_goes_on_where_it_was_killed(word, tmp_path, monkeypatch):
    """With client states, server states and output states, for a part of its runs too."""
    specs = [
        fedsps.Spec.of(word.format(value), rounds=8, seed=seed, cohort=4) for value in (0.1, 0.5) for seed in (0, 1)
    ]
    whole = run_all(specs, tmp_path / "whole")
    monkeypatch.setattr(Sweep.run, "__defaults__", (None, (), 0.0))

    def kill(number, row):
        if row["round"] == 5:
            raise KilledError

    with pytest.raises(KilledError):
        run_all(specs, tmp_path / "killed", watch=kill)
    assert len(list((tmp_path / "killed").glob("*/sweep.safetensors"))) == 4
    (tmp_path / "killed" / specs[2].digest / "sweep.safetensors").unlink()  # it begins again, by itself
    begun = []
    found = run_all(specs, tmp_path / "killed", watch=lambda number, row: begun.append((number, row["round"])))
    assert {number: min(round for own, round in begun if own == number) for number in range(4)} == {
        0: 5,
        1: 5,
        2: 1,
        3: 5,
    }
    assert not list((tmp_path / "killed").glob("*/*.safetensors.partial")) + list(
        tmp_path.glob("*/*/sweep.safetensors")
    )
    for one, other in zip(found, whole, strict=True):
        columns = [column for column in other.history.columns if column not in ("seconds", "events")]
        np.testing.assert_allclose(one.history[columns], other.history[columns], rtol=1e-4, atol=1e-6)


def test_fresh_forgets_what_a_killed_sweep_saved(tmp_path, monkeypatch):
    specs = [fedsps.Spec.of(f"fedsps:cap={cap}", rounds=4) for cap in (1.0, 2.0)]
    monkeypatch.setattr(Sweep.run, "__defaults__", (None, (), 0.0))

    def kill(number, row):
        if row["round"] == 3:
            raise KilledError

    with pytest.raises(KilledError):
        run_all(specs, tmp_path, watch=kill)
    rounds = []
    run_all(specs, tmp_path, fresh=True, watch=lambda number, row: rounds.append(row["round"]))
    assert min(rounds) == 1


def test_two_processes_share_a_sweep(tmp_path):
    specs = [fedsps.Spec.of(f"fedsps:cap={cap}", rounds=3) for cap in range(1, 11)]
    rows = []
    found = run_all(specs, tmp_path, jobs=2, watch=lambda number, row: rows.append(number))
    assert [one.provenance["sweep"] for one in found] == [5] * 10
    assert [one.spec for one in found] == specs
    assert set(rows) <= set(range(10))


def test_what_cannot_be_stacked_runs_alone(tmp_path):
    words = ["fedsps:smoothing=paper", "fedsps:cap=2", "fedavg", "sps+topk:share=0.5", "sps+topk:share=0.1"]
    found = run_all([fedsps.Spec.of(word, rounds=2) for word in words], tmp_path)
    assert not any("sweep" in one.provenance for one in found)
    ratios = [fedsps.Spec.of("sps+topk:share=0.5", rounds=2, seed=seed) for seed in (0, 1)]
    assert not any("sweep" in one.provenance for one in run_all(ratios, tmp_path))


def test_settings_and_seeds_of_a_task_in_one_sweep(tmp_path, monkeypatch):
    specs = [
        fedsps.Spec.of(f"fedsps:cap={cap}", rounds=6, seed=seed, flipped=0.1, evaluate_every=2, cohort=4)
        for cap in (1.0, 5.0)
        for seed in (3, 4, 5)
    ]
    together = run_all(specs, tmp_path)
    assert [one.provenance["sweep"] for one in together] == [6] * 6
    assert [one.spec for one in together] == specs
    for one, alone in zip(together, run_all(specs, tmp_path / "alone", exact=True), strict=True):
        assert one.data == alone.data
        columns = [column for column in alone.history.columns if column not in ("seconds", "events")]
        np.testing.assert_allclose(one.history[columns], alone.history[columns], rtol=1e-4, atol=1e-6)
    monkeypatch.setattr("fedsps.runs.sweep.MEMORY", 10**6)  # two seeds' data
    cramped = run_all(specs, tmp_path / "cramped")
    assert [one.provenance["sweep"] for one in cramped] == [4, 4, 2, 4, 4, 2]
    for one, other in zip(cramped, together, strict=True):
        np.testing.assert_allclose(one.history["train_loss"], other.history["train_loss"], rtol=1e-4)


def test_networks_that_gain_nothing_are_not_swept():
    assert network_of(fedsps.LogisticRegression(4, 3)).can_sweep
    assert network_of(nn.Linear(4, 3)).can_sweep
    for module in (
        nn.BatchNorm1d(4),
        fedsps.LeNet(),
        nn.Linear(1000, 300),
    ):
        assert not network_of(module).can_sweep


def test_models_that_draw_random_numbers_are_not_swept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(64, 10), nn.Dropout(0.5))\n"
    )
    specs = [fedsps.Spec.of(f"fedsps:cap={cap}", model="net.py:make", rounds=2) for cap in (1.0, 2.0)]
    assert not any("sweep" in result.provenance for result in run_all(specs, "runs"))


def test_a_sweep_refuses_models_that_it_would_compute_wrongly():
    for model, random in ((nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), False), (nn.Linear(4, 3), True)):
        network, data = network_of(model.double()), ClientData.of(make_clients())
        setup = Setup(Plan(), network, data, fedsps.FedSPS(), is_random=random)
        with pytest.raises(fedsps.ConfigurationError, match="cannot be swept"):
            Sweep([setup], [fedsps.FedSPS()] * 2)


def test_fresh_trains_again_what_cannot_be_swept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(64, 10), nn.Dropout(0.5))\n"
    )
    specs = [fedsps.Spec.of(f"fedsps:cap={cap}", model="net.py:make", rounds=2) for cap in (1.0, 2.0)]
    run_all(specs, "runs")
    seen = []
    run_all(specs, "runs", fresh=True, watch=lambda number, row: seen.append((number, row["round"])))
    assert sorted(seen) == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_an_interrupt_in_the_first_round_leaves_nothing_to_resume(tmp_path, monkeypatch):
    specs = [fedsps.Spec.of(f"fedsps:cap={cap}", rounds=3) for cap in (1.0, 2.0, 3.0)]

    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(Sweep, "_advance", interrupted)
        run_all(specs[:2], tmp_path)
    assert not list(tmp_path.glob("*/sweep.safetensors"))
    assert [len(one.history) for one in run_all(specs, tmp_path)] == [3, 3, 3]


def test_an_interrupt_between_two_assignments_saves_nothing_wrong():
    saved = []

    class Saver:
        def save(self, state, rows):
            saved.append((state.round, len(rows)))

    algorithms = [fedsps.FedAvg(client_stepsize=stepsize) for stepsize in (0.1, 1.0)]
    running = sweep(algorithms, fedsps.LogisticRegression(4, 3).double(), make_clients(), rounds=3)
    running._advance()
    running._save([Saver(), Saver()])
    assert saved == [(1, 1), (1, 1)]
    running.rows[0].append({})  # a round was broken off before its state was kept
    running._save([Saver(), Saver()])
    assert len(saved) == 2


def test_seeds_whose_models_keep_other_numbers_or_other_clients_run_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\nclass Own(nn.Linear):\n    def __init__(self):\n"
        "        super().__init__(64, 10)\n        self.omega = torch.randn(10)\n"
        "    def forward(self, inputs):\n        return super().forward(inputs.flatten(1)) + self.omega\n"
    )
    specs = [fedsps.Spec.of("fedsps", model="net.py:Own", rounds=2, seed=seed) for seed in (0, 1)]
    assert not any("sweep" in one.provenance for one in run_all(specs, "runs"))


def test_test_data_with_ignored_samples():
    model, clients = fedsps.LogisticRegression(4, 3).double(), make_clients()
    inputs, targets = clients[0]
    test = (inputs, torch.where(torch.arange(len(targets)) == 0, -100, targets))
    algorithms = [fedsps.FedSPS(cap=cap) for cap in (0.5, 1.0)]
    settings = {"rounds": 2, "test": test}
    assert_as_alone(sweep(algorithms, model, clients, **settings).run(), algorithms, model, clients, **settings)
