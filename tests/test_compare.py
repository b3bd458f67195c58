"""`fedsps.compare`, `fedsps.tune` and `fedsps.reproduce` from Python."""

import itertools

import numpy as np
import pytest
import torch
from conftest import make_clients
from torch import nn

import fedsps
from fedsps import Algorithm, ConfigurationError, Spec
from fedsps.report.plot import styles
from fedsps.rules import SPS, PolynomialAverage
from fedsps.runs.run import run

# how colours look to readers without one kind of cone (Machado, Oliveira, Fernandes 2009), on RGB
VISIONS = {
    "all": np.eye(3),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
}


def test_a_spec_is_compared_over_seeds(tmp_path):
    spec = Spec.of("fedavg", rounds=4, seed=5)
    words = ["fedsps", "fedavg:client_stepsize=0.1/1"]
    found = fedsps.compare(words, spec=spec, seeds=2, runs=tmp_path, local_steps=2)
    assert list(found.results) == list(found.table["algorithm"]) == [
        "fedsps", "fedavg client_stepsize=0.1", "fedavg client_stepsize=1",
    ]  # fmt: skip
    for runs in found.results.values():
        assert [one.spec.plan.seed for one in runs] == [5, 6]
        assert {one.spec.plan.local_steps for one in runs} == {2}
    alone = run(Spec.of("fedavg:client_stepsize=1", rounds=4, seed=6, local_steps=2), tmp_path / "alone")
    together = found.results["fedavg client_stepsize=1"][1]
    np.testing.assert_allclose(together.history["train_loss"], alone.history["train_loss"], rtol=1e-5)
    assert together.provenance["sweep"] == 4, "two stepsizes and two seeds"
    assert len(list(tmp_path.glob("*/summary.json"))) == 6, "and its runs are there to be read"


def test_ones_own_model_and_data_are_compared():
    torch.manual_seed(0)
    model, clients = nn.Linear(4, 3).double(), make_clients()
    own = Algorithm(stepsize=SPS(), output=PolynomialAverage())
    found = fedsps.compare(
        [fedsps.FedSPS(cap=2.0), own, "fedams"],
        model=model,
        clients=clients,
        test=clients[0],
        rounds=3,
        seeds=2,
        seed=7,
    )
    assert list(found.results) == ["fedsps cap=2", "sps+polyaverage", "fedams"]
    alone = fedsps.train(model, clients, algorithm=own, test=clients[0], rounds=3, seed=8)
    second = found.results["sps+polyaverage"][1]
    assert second.provenance["sweep"] == 2, "its two seeds are computed together"
    assert second.spec == alone.spec and second.data == alone.data
    columns = [column for column in alone.history if column not in ("seconds", "events")]
    np.testing.assert_allclose(second.history[columns], alone.history[columns], rtol=1e-9)
    for mine, theirs in zip(second.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    row = found.table.set_index("algorithm").loc["sps+polyaverage"]
    finals = [one.history["train_loss"].iloc[-1] for one in found.results["sps+polyaverage"]]
    assert row["final_train_loss"] == np.mean(finals)


def test_runs_on_ones_own_model_are_told_of_and_can_be_asked_for_one_by_one(monkeypatch):
    torch.manual_seed(0)
    model, clients, seen = nn.Linear(4, 3).double(), make_clients(), []
    words = ["fedavg:client_stepsize=0.1/1", "fedsps", "sps+topk:share=0.5"]
    how = {"model": model, "clients": clients, "rounds": 3, "seeds": 2}
    together = fedsps.compare(words, **how, watch=lambda number, row: seen.append((number, row["round"])))
    assert sorted(seen) == [(number, round) for number in range(8) for round in (1, 2, 3)]
    sizes = {label: [one.provenance.get("sweep") for one in runs] for label, runs in together.results.items()}
    assert list(sizes.values()) == [[4, 4], [4, 4], [2, 2], [None, None]]
    exact = fedsps.compare(words, **how, exact=True)
    assert not any("sweep" in one.provenance for runs in exact.results.values() for one in runs)
    np.testing.assert_allclose(together.table["final_train_loss"], exact.table["final_train_loss"], rtol=1e-9)
    monkeypatch.setattr("fedsps.runs.train_all.MEMORY", 1)
    cramped = fedsps.compare(words, **how)
    assert {one.provenance.get("sweep") for runs in cramped.results.values() for one in runs} == {1, None}
    np.testing.assert_allclose(cramped.table["final_train_loss"], exact.table["final_train_loss"], rtol=1e-9)


def test_the_target_is_the_best_final_loss_and_a_tenth(tmp_path):
    found = fedsps.compare(["fedsps", "fedavg"], spec=Spec.of(rounds=5), runs=tmp_path)
    assert found.target == pytest.approx(1.1 * found.table["final_train_loss"].min(), rel=1e-12)
    assert "times 1.1" in found.note
    given = fedsps.compare(["fedsps", "fedavg"], spec=Spec.of(rounds=5), runs=tmp_path, target=1.5)
    assert given.target == 1.5 and "as given" in given.note
    losses = given.results["fedsps"][0].history["train_loss"]
    assert given.table["rounds_to_target"][0] == 1 + int((losses <= 1.5).argmax())


def test_the_figure(tmp_path):
    found = fedsps.compare(["fedsps", "fedavg"], spec=Spec.of(rounds=3), runs=tmp_path)
    figure = found.figure(tmp_path / "out" / "figure.png")
    assert (tmp_path / "out" / "figure.png").read_bytes().startswith(b"\x89PNG")
    drawn = figure.axes[0].get_lines()
    assert [line.get_label() for line in drawn] == ["fedsps", "fedavg"]
    np.testing.assert_array_equal(drawn[0].get_ydata(), found.results["fedsps"][0].history["train_loss"])


def test_a_figure_leaves_the_callers_pyplot_alone(tmp_path):
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("svg")
    fedsps.compare("fedsps", model=nn.Linear(4, 3), clients=make_clients(), rounds=2).figure(tmp_path / "a.png")
    assert matplotlib.get_backend() == "svg" and not plt.get_fignums()


@pytest.mark.parametrize("size", [(6.5, 2.4), (3.3, 4.0), None])
def test_nothing_of_a_figure_is_cut_off(size):
    words = [
        "fedsps",
        "fedavgm:client_stepsize=0.1/0.5/1",
        "local-adaalter:client_stepsize=0.25/0.75",
        "sps+amsgrad+topk",
    ]
    found = fedsps.compare(words, model=nn.Linear(4, 3), clients=make_clients(), rounds=2, seeds=2)
    figure = found.figure(size=size)
    width = figure.get_size_inches()[0] * figure.dpi
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(found.table["algorithm"])
    for part in (legend, figure._suptitle):
        box = part.get_window_extent()
        assert 0 < box.width <= width, "else its ends would be outside"
    assert " ".join(figure.get_suptitle().split()) == found.title
    assert figure.axes[0].get_gridspec().ncols == (1 if size == (3.3, 4.0) else 2), "none narrower than two inches"


def test_the_axis_across_and_the_size_of_a_figure(tmp_path):
    found = fedsps.compare(["fedsps", "mime"], spec=Spec.of(rounds=3), runs=tmp_path, seeds=2)
    for across, columns in (
        ("gradient_evaluations", ["gradient_evaluations"]),
        ("bytes", ["bytes_up", "bytes_down"]),
        ("seconds", ["seconds"]),
    ):
        figure = found.figure(tmp_path / "figure.pdf", across=across, size=(6.5, 2.0))
        assert figure.axes[0].get_xlabel() == {"bytes": "bytes sent"}.get(across, across.replace("_", " "))
        spent = np.mean([run.history[columns].sum(axis=1).cumsum() for run in found.results["mime"]], axis=0)
        np.testing.assert_allclose(figure.axes[0].get_lines()[1].get_xdata(), spent)
        assert figure.get_size_inches().tolist() == [6.5, 2.0]
    written = (tmp_path / "figure.pdf").read_bytes()
    assert b"/TrueType" in written or b"/CIDFontType2" in written
    assert b"/Type3" not in written, "which journals refuse"
    with pytest.raises(ConfigurationError, match="unknown across 'second': did you mean seconds"):
        found.figure(across="second")
    with pytest.raises(ConfigurationError, match="the height of the figure must be a finite number above 0; got 0"):
        found.figure(size=(3, 0))


def test_own_methods_are_as_visible_as_ours():
    looks = styles({"a": "fedsps", "b": "fedavg", "c": "mine.py:One", "d": "mine.py:Two", "e": "fedams"})
    colours = [tuple(round(255 * part) for part in colour) for colour, _ in looks]
    assert len(set(colours)) == 5
    assert {style for _, style in looks} == {"-"}
    for vision in VISIONS.values():
        seen = [vision @ np.array(colour) for colour in colours]
        apart = [np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)]
        assert min(apart) > 60, "any two can be told apart, on a scale to 441 from black to white"


def test_the_figure_without_test_data_or_evaluations():
    found = fedsps.compare(["fedsps"], model=nn.Linear(4, 3).double(), clients=make_clients(), rounds=2)
    assert [axis.get_title() for axis in found.figure().axes] == ["training loss", "mean stepsize"]
    never = fedsps.compare(
        ["fedsps"], model=nn.Linear(4, 3).double(), clients=make_clients(), rounds=2, evaluate_every=0
    )
    assert [axis.get_title() for axis in never.figure().axes] == ["mean stepsize"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"algorithms": ["fedsps"]}, "either a spec, or a model and clients"),
        ({"algorithms": ["fedsps"], "model": nn.Linear(4, 3)}, "both a model and clients"),
        ({"algorithms": [], "spec": Spec.of()}, "nothing to compare"),
        ({"algorithms": ["fedsps"], "spec": Spec.of(), "seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"algorithms": ["fedsps"], "model": nn.Linear(4, 3), "clients": make_clients(), "jobs": 2}, "jobs is for a spec"),
        ({"algorithms": ["fedspss"], "spec": Spec.of()}, "did you mean fedsps"),
        ({"algorithms": ["fedsps"], "spec": Spec.of(), "jobs": 0}, "jobs must be a whole number of at least 1; got 0"),
        ({"algorithms": ["fedsps"], "spec": "digits"}, "spec must be made by Spec.of; got 'digits'"),
        ({"algorithms": ["fedsps"], "spec": Spec.of(), "round": 3}, "unknown setting 'round': did you mean rounds"),
        ({"algorithms": [fedsps.FedSPS], "spec": Spec.of()}, "an algorithm is named by a text"),
        ({"algorithms": ["fedsps"], "spec": Spec.of(), "test": make_clients()[0]}, "test, loss and metrics are for a model of your own"),
        ({"algorithms": ["fedsps"], "model": nn.Linear(4, 3), "clients": make_clients(), "fresh": True}, "fresh is for a spec"),
        ({"algorithms": ["sps+fedavg"], "spec": Spec.of()}, "fedavg is a whole algorithm, not a part: put it first"),
    ],
)  # fmt: skip
def test_what_is_refused(arguments, message, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        fedsps.compare(**arguments, runs=tmp_path)


def test_tune_from_python(tmp_path):
    found = fedsps.tune("fedavg:client_stepsize=0.01/1", runs=tmp_path, rounds=5)
    assert found.best.parameters["client_stepsize"] == 1.0
    assert found.search.spec.plan.seed == 1000
    with pytest.raises(ConfigurationError, match="unknown sampler 'gird': did you mean grid"):
        fedsps.tune("fedavg:client_stepsize=0.01/1", sampler="gird", runs=tmp_path)


def test_reproduce_from_python(tmp_path):
    (page,) = fedsps.reproduce("example1", output=tmp_path / "pages", runs=tmp_path / "runs")
    assert page.page.name == "example1"
    assert (tmp_path / "pages" / "README.md").read_text().startswith("# The paper, re-run")
    assert {verdict.claim.id for verdict in page.verdicts} == {claim.id for claim in page.page.claims}
    with pytest.raises(ConfigurationError, match="unknown page 'exampel1'"):
        fedsps.reproduce("exampel1", output=tmp_path / "pages")


def test_two_algorithms_of_one_name_are_not_taken_for_one():
    class Own(fedsps.rules.Constant):
        pass

    first = Algorithm(stepsize=Own())

    class Own(fedsps.rules.Constant):
        pass

    second = Algorithm(stepsize=Own())
    with pytest.raises(ConfigurationError, match="two different algorithms are called Own"):
        fedsps.compare([first, second], model=nn.Linear(4, 3), clients=make_clients(), rounds=1)


def test_an_engine_that_is_asked_for_runs_each_by_itself(tmp_path):
    words = ["fedavg:client_stepsize=0.1/1"]
    swept = fedsps.compare(words, spec=Spec.of(rounds=2), runs=tmp_path)
    alone = fedsps.compare(words, spec=Spec.of(rounds=2), runs=tmp_path, engine="loop")
    for label, (result,) in swept.results.items():
        assert result.provenance["sweep"] == 2
        assert "sweep" not in alone.results[label][0].provenance


def test_arrays_of_bounds_print_as_tuples():
    bounds = torch.tensor([0.0, 0.25])
    assert repr(fedsps.FedSPS(lower=bounds)) == repr(fedsps.FedSPS(lower=bounds.numpy())) == "FedSPS(lower=(0.0, 0.25))"


def test_a_class_of_ones_own_goes_with_a_spec_by_its_file(tmp_path):
    class Own(fedsps.rules.Constant):
        pass

    with pytest.raises(ConfigurationError, match="write a class of your own as 'file.py:Own', or compare with model"):
        fedsps.compare([Algorithm(stepsize=Own())], spec=Spec.of(rounds=1), runs=tmp_path)
