"""Specs: JSON, digest, and what a run's folder holds."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import fedsps
from fedsps.methods.notation import named, parse
from fedsps.runs.parallel import run_all
from fedsps.runs.run import is_done, run
from fedsps.runs.spec import Spec
from fedsps.runs.task import flip


def task(spec):
    return spec.task.load(spec.plan.seed)


def test_json_round_trip_and_digest():
    for word in ("fedsps:lower=0.1;0.2", "sps+amsgrad:eps=0.5", "feddecsps"):
        spec = Spec.of(parse(word)[0], rounds=7, seed=3)
        again = Spec.from_json(json.loads(json.dumps(spec.json())))
        assert again == spec
        assert again.digest == spec.digest
        assert again.named.build() == spec.named.build()


def test_every_setting_changes_the_digest():
    base = Spec.of(named("fedsps"))
    others = [
        Spec.of(named("fedsps", cap=2.0)), Spec.of(named("fedavg")), Spec.of(named("fedsps"), seed=1),
        Spec.of(named("fedsps"), rounds=7), Spec.of(named("fedsps"), data="mnist"), Spec.of(named("fedsps"), weights="samples"),
    ]  # fmt: skip
    assert len({spec.digest for spec in [base, *others]}) == 7
    assert Spec.of(named("fedsps", cap=1.0)).digest == base.digest, "defaults are written out"
    assert Spec.of(parse("fedsps:cap=1")[0]).digest == base.digest, "1 and 1.0 are one value"
    assert len(base.digest) == 12


def test_unknown_settings_are_refused():
    content = Spec.of(named("fedsps")).json()
    for place, name, near in (("plan", "round", "rounds"), ("task", "modle", "model"), ("", "algorithms", "algorithm")):
        changed = content | {place: content[place] | {name: 3}} if place else content | {name: 3}
        with pytest.raises(fedsps.ConfigurationError, match=f"unknown setting '{name}': did you mean {near}"):
            Spec.from_json(changed)
    with pytest.raises(fedsps.ConfigurationError, match="unknown setting 'round': did you mean rounds"):
        Spec.of("fedsps", round=3)


def test_some_settings_changed():
    spec = Spec.of("fedsps", rounds=7, clients=5)
    assert spec.but(seed=3, clients=6) == Spec.of("fedsps", rounds=7, clients=6, seed=3)
    assert spec.but() == spec
    with pytest.raises(fedsps.ConfigurationError, match="the spec has no task, and so no clients"):
        Spec(algorithm="fedsps", parameters={}, plan=fedsps.Plan()).but(clients=3)


def test_none_means_all():
    spec = Spec.of("fedsps", cohort=None, batch_size=None, samples=None)
    assert (spec.plan.active(9), spec.plan.batch_size) == (9, None)
    for name in ("cohort", "batch_size", "samples"):
        with pytest.raises(fedsps.ConfigurationError, match=f"{name} .None: all. must be a whole number of at least 1"):
            Spec.of("fedsps", **{name: 0})


def test_the_task_is_a_function_of_the_spec():
    spec = Spec.of(named("fedsps"), clients=7, partition="dirichlet", alpha=0.3, seed=2, dtype="float64")
    one, two = task(spec), task(spec)
    assert one.clients.digest == two.clients.digest
    other = Spec.of(named("fedsps"), clients=7, partition="dirichlet", alpha=0.3, seed=3, dtype="float64")
    assert task(other).clients.digest != one.clients.digest
    assert one.facts["clients"] == one.clients.clients == 7
    assert one.model.weight.dtype == one.clients.inputs.dtype
    assert one.clients.sizes.sum() == one.facts["train_samples"] == 1438
    assert len(one.test.inputs) == 359


def test_the_dropped_surplus_is_counted():
    facts = task(Spec.of(named("fedsps"), clients=10, partition="two-class")).facts
    assert facts["train_samples"] + facts["dropped_samples"] == 1438
    assert facts["dropped_samples"] > 0


def test_only_some_samples():
    facts = task(Spec.of(named("fedsps"), samples=300, partition="iid")).facts
    assert facts["train_samples"] == 300
    assert facts["test_samples"] == 359
    assert task(Spec.of(named("fedsps"), samples=10**6, partition="iid")).facts["train_samples"] > 1400
    one, two = (task(Spec.of(named("fedsps"), samples=300, seed=seed)).clients.digest for seed in (0, 1))
    assert one != two


def test_flipped_labels():
    plain, noisy = (task(Spec.of(named("fedsps"), flipped=share)) for share in (0.0, 0.4))
    changed = [
        float((a[1] != b[1]).double().mean()) for a, b in zip(plain.clients.pairs(), noisy.clients.pairs(), strict=True)
    ]
    assert (plain.clients.inputs == noisy.clients.inputs).all(), "the split is the same"
    assert abs(np.mean(changed) - 0.4) < 0.03
    assert min(changed) > 0.2
    assert (plain.test.targets == noisy.test.targets).all(), "the test labels stay"
    assert flip(np.array([0, 1, 2]), 3, 0.9, 0).tolist() != [0, 1, 2]
    with pytest.raises(fedsps.ConfigurationError, match="flipped must be at least 0 and below 1; got 1"):
        Spec.of(named("fedsps"), flipped=1.0)


def test_models_start_from_the_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(64, 10)\n")
    starts = [task(Spec.of(named("fedsps"), model="net.py:make", seed=seed)).model.weight for seed in (0, 0, 1)]
    assert (starts[0] == starts[1]).all()
    assert (starts[0] != starts[2]).any()


def test_a_model_whose_file_has_changed_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "import torch\ndef make():\n    return torch.nn.Linear(64, 10)\n"
    (tmp_path / "net.py").write_text(text)
    spec = Spec.of("fedsps", model="net.py:make", rounds=1)
    run(spec)
    assert fedsps.load(Path("runs", spec.digest)).model is not None
    (tmp_path / "net.py").write_text(text.replace("Linear(64, 10)", "Linear(64, 10).requires_grad_()"))
    found = fedsps.load(Path("runs", spec.digest))
    assert found.model is None
    assert len(found.history) == 1


def test_a_spec_takes_the_algorithm_by_name():
    assert Spec.of("fedsps:cap=10") == Spec.of(named("fedsps", cap=10.0))
    assert Spec.of("fedsps", rounds=np.int64(3), seed=np.int64(1)) == Spec.of("fedsps", rounds=3, seed=1)
    assert Spec.of(named("fedsps", cap=np.float32(2))).digest == Spec.of(named("fedsps", cap=2.0)).digest
    with pytest.raises(fedsps.ConfigurationError, match="2 algorithms in one spec"):
        Spec.of("fedsps:cap=1/10")
    with pytest.raises(fedsps.ConfigurationError, match="algorithm must be given by its name"):
        Spec.of(fedsps.FedSPS())
    with pytest.raises(fedsps.ConfigurationError, match="make specs by Spec.of"):
        run(Spec(algorithm="fedsps", parameters={}, plan=fedsps.Plan(rounds=2)))


def test_a_run_of_an_algorithm_that_is_composed_otherwise_by_now_is_run_again(tmp_path, monkeypatch):
    spec = Spec.of("fedsps", rounds=1)
    run(spec, tmp_path)
    assert is_done(spec, tmp_path)
    monkeypatch.setattr(fedsps.rules.SPS, "__repr__", lambda self: "SPS(of=another version)")
    assert not is_done(spec, tmp_path)
    run(spec, tmp_path)
    assert is_done(spec, tmp_path)


def test_run_is_cached_and_loads_its_model(tmp_path):
    spec = Spec.of(named("fedsps"), rounds=4)
    first = run(spec, tmp_path)
    calls = []
    again = run(spec, tmp_path, callback=calls.append)
    assert calls == []
    assert again.history.equals(first.history)
    assert (again.model.weight == first.model.weight).all()
    fresh = run(spec, tmp_path, fresh=True, callback=lambda row: calls.append(row["round"]))
    assert calls == [1, 2, 3, 4]
    np.testing.assert_array_equal(fresh.history["train_loss"], first.history["train_loss"])
    assert fedsps.load(tmp_path / spec.digest).spec == spec


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("summary.json", "{}", "summary.json is damaged (it has no diverged_at)"),
        ("summary.json", "", "summary.json cannot be read"),
        (
            "summary.json",
            '{"diverged_at": null, "data": {}, "provenance": {}}',
            "summary.json is damaged (its data has no shape or no classes)",
        ),
        ("spec.json", "{}", "spec.json is damaged (it has no algorithm)"),
        ("spec.json", None, "is damaged (it has no spec.json)"),
        ("history.parquet", None, "is damaged (it has no history.parquet)"),
        ("model.safetensors", None, "is damaged (it has no model.safetensors)"),
        ("model.safetensors", "?", "model.safetensors cannot be read"),
    ],
)
def test_a_damaged_cached_run_is_named_with_the_remedy(tmp_path, file, text, message):
    spec = Spec.of(named("fedsps"), rounds=2)
    run(spec, tmp_path)
    path = tmp_path / spec.digest / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(fedsps.DataError, match=f"{spec.digest}.*{re.escape(message)}") as found:
        run(spec, tmp_path)
    assert str(found.value).endswith("delete the folder and run again, or run with fresh=True")
    assert len(run(spec, tmp_path, fresh=True).history) == 2, "the remedy works"
    assert len(run(spec, tmp_path).history) == 2


def test_the_model_of_another_version_is_named(tmp_path):
    spec = Spec.of(named("fedsps"), rounds=2)
    run(spec, tmp_path)
    path = tmp_path / spec.digest / "spec.json"
    for change in ({"novelty": 1}, {"model": "newnet"}, {"dtype": "float8"}):
        path.write_text(json.dumps(spec.json() | {"task": spec.json()["task"] | change}))
        with pytest.raises(fedsps.DataError, match=f"{spec.digest}/spec.json is of another version .*unknown"):
            fedsps.load(path.parent)


def test_a_summary_is_there_in_full_or_not_at_all(tmp_path, monkeypatch):
    spec = Spec.of(named("fedsps"), rounds=2)
    run(spec, tmp_path)

    def killed(path, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        fedsps.load(tmp_path / spec.digest).save(tmp_path / spec.digest)
    assert not is_done(spec, tmp_path)
    monkeypatch.undo()
    assert len(run(spec, tmp_path).history) == 2
    assert is_done(spec, tmp_path)


def test_a_run_that_the_callback_stops_is_not_taken_for_a_finished_one(tmp_path):
    spec = Spec.of(named("fedsps"), rounds=6)
    stopped = run(spec, tmp_path, callback=lambda row: row["round"] == 2)
    assert len(stopped.history) == 2
    assert not is_done(spec, tmp_path)
    whole = run(spec, tmp_path)
    assert whole.history["round"].tolist() == [1, 2, 3, 4, 5, 6]
    straight = run(spec, tmp_path / "other")
    assert whole.history["train_loss"].equals(straight.history["train_loss"])


def test_a_run_that_diverged_is_finished(tmp_path):
    spec = Spec.of("fedavg:client_stepsize=1e38", rounds=10)
    found = run(spec, tmp_path)
    assert found.diverged_at == len(found.history) < 10
    assert is_done(spec, tmp_path)
    again = run(spec, tmp_path, callback=lambda row: pytest.fail("it is trained again"))
    assert again.diverged_at == found.diverged_at


def test_a_fresh_run_begins_at_the_first_round(tmp_path):
    spec = Spec.of(named("fedsps"), rounds=4)
    run(spec, tmp_path, callback=lambda row: row["round"] == 2)
    rounds = []
    run(spec, tmp_path, fresh=True, callback=lambda row: rounds.append(row["round"]))
    assert rounds == [1, 2, 3, 4]


def test_several_processes_give_what_one_gives(tmp_path):
    specs = [Spec.of(named(name), rounds=5, seed=seed) for name in ("fedsps", "fedavg") for seed in (0, 1)]
    rows = []
    two = run_all(specs, tmp_path / "two", jobs=2, watch=lambda number, row: rows.append(number))
    one = run_all(specs, tmp_path / "one")
    assert set(rows) == {0, 1, 2, 3}, "every run is heard of"
    for a, b in zip(one, two, strict=True):
        assert a.history.drop(columns="seconds").equals(b.history.drop(columns="seconds"))
    heard = set()
    run_all(specs[::2], tmp_path / "alone", jobs=2, watch=lambda number, row: heard.add(number))
    assert heard == {0, 1}, "and runs that are no sweep"
    bad = Spec.of(named("fedsps", lower=5.0), rounds=5)
    with pytest.raises(fedsps.FailedRunsError, match="fedsps lower=5 seed 0: .* below its lower bound of 5"):
        run_all([specs[0], bad], tmp_path / "two", jobs=2)


def test_regression_needs_a_model_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    inputs = random.normal(size=(50, 3)).astype(np.float32)
    np.savez("data.npz", inputs=inputs, targets=inputs.sum(1) + 0.5, clients=np.arange(50) % 4)
    with pytest.raises(fedsps.ConfigurationError, match="model linear or your own, file.py:name"):
        task(Spec.of(named("fedsps"), data="data.npz", partition="natural"))
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))\n"
    )
    result = run(Spec.of(named("fedsps"), data="data.npz", partition="natural", model="net.py:make", rounds=30))
    assert result.history["train_loss"].iloc[-1] < 0.2 * result.history["train_loss"].iloc[0]
    assert result.summary["best_test_accuracy"] is None
