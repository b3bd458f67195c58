"""One plan: declared and checked once, and everything that contains it follows."""

import inspect
from dataclasses import fields, replace
from typing import get_type_hints

import click
import pytest
import typer
from conftest import make_clients

import fedsps
from fedsps import Plan, Spec
from fedsps.cli.main import app
from fedsps.core.plan import PLUMBING, Knobs
from fedsps.data.clients import ClientData
from fedsps.engine.setup import Setup
from fedsps.flower import RunConfig
from fedsps.model.logistic import network_of
from fedsps.runs.checkpoint import LATER, fingerprint

OTHER = {
    "rounds": 7, "local_steps": 2, "batch_size": None, "cohort": 3, "weights": "samples", "augment": "crop-flip", "seed": 4,
    "evaluate_every": 5, "evaluate_from": 3, "patience": 4, "restore_best": True, "monitor": "test_loss", "absences": "2:0/3,4..6:1", "local_batch_norm": True,
    "workers": 2, "device": "cuda:1",
}  # fmt: skip


def test_every_knob_is_listed():
    assert OTHER.keys() == {field.name for field in fields(Plan)}
    assert get_type_hints(Knobs) == get_type_hints(Plan)


@pytest.mark.parametrize("name", OTHER)
def test_a_knob_is_known_everywhere(name):
    value = OTHER[name]
    same = Spec.of("fedsps").digest == Spec.of("fedsps", **{name: value}).digest
    assert same == (name in PLUMBING)
    assert Spec.from_json(Spec.of("fedsps", **{name: value}).json()).plan == Plan(**{name: value})
    assert getattr(RunConfig.of({name.replace("_", "-"): 0 if value is None else value}).plan, name) == value
    for function in (fedsps.train, fedsps.compare):
        assert inspect.signature(function).parameters[name].default == getattr(Plan(), name)
    for command in ("train", "compare", "tune"):
        group = typer.main.get_command(app)
        options = group.get_command(click.Context(group), command).params
        assert name in {option.name for option in options}


@pytest.mark.parametrize("name", sorted(OTHER.keys() - {"augment"}))
def test_a_checkpoint_belongs_to_its_plan(name):
    network = network_of(fedsps.LogisticRegression(4, 3).double())
    setup = Setup(Plan(), network, ClientData.of(make_clients()), fedsps.FedSPS())
    other = replace(setup, plan=replace(setup.plan, **{name: OTHER[name]}))
    assert (fingerprint(setup) == fingerprint(other)) == (name in LATER)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1; got 0"),
        ({"rounds": True}, "rounds must be a whole number"),
        ({"local_steps": 1.5}, "local_steps must be a whole number"),
        ({"batch_size": 0}, r"batch_size \(None: all\) must be a whole number of at least 1; got 0"),
        ({"cohort": 0}, r"cohort \(None: all\) must be"),
        ({"seed": -1}, "seed must be a whole number of at least 0; got -1"),
        ({"evaluate_every": -1}, "evaluate_every must be"),
        ({"weights": "uniforn"}, "unknown weights 'uniforn': did you mean uniform"),
        ({"augment": "flip"}, "unknown augment 'flip': did you mean crop-flip"),
    ],
)
def test_a_plan_checks_itself(settings, message):
    with pytest.raises(fedsps.ConfigurationError, match=message):
        Plan(**settings)


def test_a_plan_fits_its_clients():
    with pytest.raises(fedsps.ConfigurationError, match="cohort is 6, but there are only 5 clients"):
        Plan(cohort=6).check(5)
    with pytest.raises(fedsps.ConfigurationError, match=r"crop-flip' needs images .* the inputs are \(4,\)"):
        Plan(augment="crop-flip").check(5, (4,))
    Plan(augment="crop-flip", cohort=5).check(5, (1, 8, 8))


def test_which_rounds_are_evaluated():
    plan = Plan(rounds=7, evaluate_every=3)
    assert [round for round in range(1, 8) if plan.is_evaluated(round)] == [3, 6, 7]
    late = Plan(rounds=20, evaluate_every=3, evaluate_from=10)
    assert [round for round in range(1, 21) if late.is_evaluated(round)] == [12, 15, 18, 20]
    assert not any(Plan(rounds=7, evaluate_every=0).is_evaluated(round) for round in range(1, 8))
