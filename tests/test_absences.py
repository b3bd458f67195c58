"""Clients that are missing in some rounds: by a schedule, or a share drawn by the seed; the same in all engines."""

import json

import numpy as np
import pytest
import torch
from conftest import make_clients
from registry import ALGORITHMS
from test_engines import assert_engines_agree
from test_sweep import assert_as_alone, sweep, variants
from typer.testing import CliRunner

import fedsps
from fedsps.cli.main import app
from fedsps.core.plan import Plan
from fedsps.data.clients import ClientData
from fedsps.engine.setup import Setup
from fedsps.model.logistic import network_of
from fedsps.runs.sweep import groups

SOME = ["fedsps", "feddecsps, own clock", "global a", "mime", "scaffold", "fedavg, top-k"]
MISSING = {"absences": {1: [0], 2: [1, 2, 3], 3: [4]}, "rounds": 4, "local_steps": 2, "batch_size": 10}


def setup(**plan):
    network = network_of(fedsps.LogisticRegression(4, 3).double())
    return Setup(Plan(**plan), network, ClientData.of(make_clients()), fedsps.FedSPS())


def cohorts(rounds=4, **plan):
    made = setup(rounds=rounds, **plan)
    return [made.cohort_of(round).tolist() for round in range(rounds)]


def test_those_who_are_missing_are_taken_out_of_the_cohort():
    assert cohorts(absences="2:0/3,3..4:1") == [[0, 1, 2, 3, 4], [1, 2, 4], [0, 2, 3, 4], [0, 2, 3, 4]]
    drawn = cohorts(cohort=3)
    assert cohorts(cohort=3, absences={1: [drawn[0][1]]}) == [[drawn[0][0], drawn[0][2]], *drawn[1:]]


def test_a_share_is_missing_in_each_round_and_somebody_is_there():
    some = cohorts(rounds=400, absences="30%")
    assert np.mean([len(one) for one in some]) == pytest.approx(3.5, abs=0.2)
    assert some != cohorts(rounds=400, absences="30%", seed=1)
    most = cohorts(rounds=400, absences="99%")
    assert min(map(len, most)) == 1
    assert {one for cohort in most for one in cohort} == set(range(5)), "not always the same"


@pytest.mark.parametrize("name", SOME)
def test_engines_agree(name, unequal_clients):
    model = fedsps.LogisticRegression(4, 3).double()
    found = assert_engines_agree(model, unequal_clients, algorithm=ALGORITHMS[name], **MISSING)
    sent = found.history["bytes_down"]
    assert 5 * sent[1] == 2 * sent[3], "two of five were there in round 2"


@pytest.mark.parametrize("name", ["fedsps", "feddecsps, own clock", "scaffold"])
@pytest.mark.parametrize("absences", [MISSING["absences"], "40%"])
def test_sweeps_agree(name, absences):
    algorithms, clients = variants(ALGORITHMS[name]), make_clients()
    model, settings = fedsps.LogisticRegression(4, 3).double(), MISSING | {"absences": absences}
    assert_as_alone(sweep(algorithms, model, clients, **settings).run(), algorithms, model, clients, **settings)


def test_seeds_with_absences_are_swept_apart(unequal_clients):
    specs = [fedsps.Spec.of(f"fedsps:cap={cap}", seed=seed, absences="40%") for cap in (1, 2) for seed in (0, 1)]
    assert groups(specs) == [[0, 2], [1, 3]]
    own = {"model": fedsps.LogisticRegression(4, 3).double(), "clients": unequal_clients, "rounds": 3, "seeds": 2}
    words = {"algorithms": ["fedsps:cap=1/2"], "metric": "train_loss", "absences": "40%"}
    together, alone = (fedsps.compare(**own, **words, exact=exact) for exact in (False, True))
    for label, runs in alone.results.items():
        for one, other in zip(runs, together.results[label], strict=True):
            np.testing.assert_allclose(one.history["train_loss"], other.history["train_loss"], rtol=1e-9)
            assert one.history["bytes_down"].equals(other.history["bytes_down"])


def test_clients_who_are_missing_keep_their_state(unequal_clients):
    """FedDecSPS on its own clock counts a client's own steps: those of the rounds in which it was there."""
    model = torch.nn.Linear(4, 3).double()
    result = fedsps.train(model, unequal_clients, algorithm="feddecsps:clock=client", **MISSING)
    steps = result.clients["stepsize_mean"].notna()
    assert steps.all()
    without = fedsps.train(model, unequal_clients, rounds=2, absences={1: [0], 2: [0]})
    assert without.clients["stepsize_mean"].isna().tolist() == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("absences", "message"),
    [
        ("3", "absences has no meaning for '3': write"),
        ("0:1", "rounds count from 1"),
        ("5..3:1", "absences has no meaning for '5..3:1'"),
        ("0%", "no meaning for '0%'"),
        ("100%", "no meaning for '100%'"),
        ({1: []}, "no meaning for '1:'"),
        (0.2, "absences must be a text or a dictionary; got 0.2"),
        ("1:5", "absences names client 5, but there are only 5, counted from 0"),
        ("1:0/1/2/3/4", r"absences leaves nobody of the cohort \[0, 1, 2, 3, 4\] in round 1"),
    ],
)
def test_what_is_refused(absences, message):
    with pytest.raises(fedsps.ConfigurationError, match=message):
        setup(absences=absences)


def test_the_command(tmp_path):
    words = ["train", "fedsps", "--rounds", "3", "--absences", "2:0/3", "--json", "--runs", str(tmp_path)]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    (folder,) = tmp_path.iterdir()
    sent = fedsps.load(folder).history["bytes_down"]
    assert (10 * sent / sent[0]).tolist() == [10, 8, 10]
    assert json.loads((folder / "spec.json").read_text())["plan"]["absences"] == "2:0/3"
