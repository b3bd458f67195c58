"""Names, parameters, compositions."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from registry import ALGORITHMS
from torch import nn

import fedsps
from fedsps import Algorithm, ConfigurationError, Spec
from fedsps.core.addresses import source_digest
from fedsps.flower.config import RunConfig
from fedsps.methods.notation import Named, build, defaults, name_of, named, parse, usual
from fedsps.methods.registry import CATALOGUE, PARTS
from fedsps.rules import (
    SPS,
    AMSGrad,
    Average,
    Constant,
    ControlVariates,
    Extrapolation,
    LastIterate,
    MeanOfLastTwo,
    Mimicry,
    PolynomialAverage,
    Proximal,
    ScaledSign,
    TopK,
)


class Twin(Constant):
    def server_init(self, x):
        return {"vhat": x}


def test_every_algorithm_is_exported_by_its_class_name():
    for kind in CATALOGUE.values():
        assert getattr(fedsps, kind.__name__) is kind


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_algorithm_builds_from_its_defaults_and_states_its_formula(name):
    assert named(name).build() == CATALOGUE[name]()
    title, formula, *rest = inspect.getdoc(CATALOGUE[name]).split("\n\n")
    assert title.endswith(".") and "\n" not in title
    assert formula.startswith("    ") and re.search("<-|=", formula)
    arguments = next(part for part in rest if part.startswith("Args:"))
    assert re.findall(r"^    (\w+): ", arguments, re.MULTILINE) == list(defaults(name))
    assert any(part.startswith("References:") for part in rest)


def test_defaults():
    """Defaults that the literature's readers will look for first."""
    polyak = {"scale": 0.5, "cap": 1.0, "lower": 0.0, "smoothing": None, "reset": False}
    assert defaults("fedsps") == polyak | {"server_stepsize": 1.0}
    assert defaults("fedams")["eps"] == 1e-3
    assert (defaults("fedams")["server_stepsize"], defaults("fedadam")["server_stepsize"]) == (1.0, 0.1)
    assert defaults("deltasgd") == {"initial": 0.2, "gamma": 2.0, "delta": 0.1, "server_stepsize": 1.0}
    assert defaults("fedprox")["mu"] == 0.1


def test_parse():
    (plain,) = parse("fedsps")
    assert plain.build() == fedsps.FedSPS()
    (one,) = parse("fedsps:cap=10,smoothing=paper,lower=-1e-3")
    assert one.build() == fedsps.FedSPS(cap=10, smoothing="paper", lower=-1e-3)
    several = parse("fedavg:client_stepsize=0.001/1e-2/1e+0,server_stepsize=1/2")
    assert [(each.build().stepsize.stepsize, each.build().server.stepsize) for each in several] == [
        (0.001, 1), (0.001, 2), (0.01, 1), (0.01, 2), (1.0, 1), (1.0, 2),
    ]  # fmt: skip
    assert parse("feddecsps:reset=true")[0].build() == fedsps.FedDecSPS(reset=True)
    assert parse("fedsps:lower=0.1;0.2;0")[0].build() == fedsps.FedSPS(lower=(0.1, 0.2, 0))
    assert parse("fedsps-global:initial=none,formula=c")[0].build() == fedsps.FedSPSGlobal(formula="c")


def test_compositions():
    (one,) = parse("sps+amsgrad")
    assert one.build() == Algorithm(stepsize=SPS(), server=AMSGrad())
    (one,) = parse("sps:cap=2+fedexp:eps=0.5+polyaverage:power=3")
    assert one.build() == Algorithm(stepsize=SPS(cap=2), server=Extrapolation(0.5), output=PolynomialAverage(3))
    assert one.parameters["fedexp.eps"] == 0.5
    assert one.label() == "sps+fedexp+polyaverage sps.cap=2 fedexp.eps=0.5 polyaverage.power=3"
    (one,) = parse("fedsps:cap=2+topk:share=0.5")
    assert one.build() == Algorithm(stepsize=SPS(cap=2), server=Average(), compression=TopK(0.5))
    (one,) = parse("constant:stepsize=0.3+prox:mu=2+sign")
    assert one.build() == Algorithm(stepsize=Constant(0.3), penalty=Proximal(2), compression=ScaledSign())
    (one,) = parse("fedexp+last")
    assert one.build() == Algorithm(stepsize=Constant(0.1), server=Extrapolation(), output=LastIterate())
    assert [each.parameters["amsgrad.eps"] for each in parse("sps:cap=1/2+amsgrad:eps=1/2")] == [1, 2, 1, 2]


def test_a_server_rule_brings_its_own_output_unless_another_is_asked_for():
    assert fedsps.FedExP().output_rule == MeanOfLastTwo()
    assert parse("sps+fedexp")[0].build().output_rule == MeanOfLastTwo()
    assert parse("sps+fedexp+last")[0].build().output_rule == LastIterate()
    assert fedsps.FedSPS().output_rule == LastIterate()


@pytest.mark.parametrize("word", PARTS)
def test_every_part_goes_into_a_composition(word):
    kind = PARTS[word]
    text = word if kind.slot == "stepsize" else f"constant+{word}"
    assert getattr(build(text), kind.slot) == kind()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parse("sps+mime"), "SPS is not defined with the corrected direction of MIME"),
        (lambda: parse("decsps+scaffold"), "DecSPS is not defined with the corrected direction of SCAFFOLD"),
        (lambda: Algorithm(stepsize=SPS(), direction=Mimicry()), "use a constant stepsize"),
        (
            lambda: Algorithm(stepsize=Constant(0.2), direction=ControlVariates(0.1)),
            "clients' stepsize 0.2; got stepsize=0.1",
        ),
        (
            lambda: parse("local-amsgrad+amsgrad"),
            "Local-AMSGrad's last local step is its server's",
        ),
        (
            lambda: Algorithm(stepsize=Twin(), server=AMSGrad()),
            "two parts keep a state of the name 'vhat'",
        ),
        (
            lambda: parse("fedexp+topk"),
            "compression is for algorithms that send delta alone; this one also sends delta_norm_sq",
        ),
        (lambda: parse("fedsps-global+sign"), "also sends local_stepsize"),
        (lambda: parse("scaffold+sign"), "also sends control_change"),
        (lambda: parse("sps+decsps"), "two parts for its stepsize"),
        (lambda: parse("amsgrad"), "has no stepsize rule: begin with adasps, common, constant, .*sps"),
        (lambda: parse("sps+amsgrat"), "did you mean amsgrad"),
        (
            lambda: parse("sps+amsgrad:epsilon=1"),
            "unknown parameter of sps.amsgrad 'amsgrad.epsilon': did you mean amsgrad.eps",
        ),
        (lambda: parse("fedams:option=3"), "option must be 1 .* or 2 .*; got 3"),
        (lambda: parse("fedams:b1=1"), "b1 must be at least 0 and below 1; got 1"),
        (lambda: parse("fedprox:mu=-1"), "mu must be a finite number above 0; got -1"),
        (lambda: parse("sps+topk:share=0"), "share must be above 0 and at most 1; got 0"),
        (lambda: parse("sps+polyaverage:power=-1"), "power must be a whole number of at least 0; got -1"),
        (lambda: named("fedsps", eta=1), "unknown parameter of fedsps 'eta'"),
        (
            lambda: Named("sps", defaults("sps") | {"cap": 2.0}).build(),
            "unknown parameter of sps 'cap': did you mean sps.cap",
        ),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_labels_show_what_differs():
    chosen = parse("fedavg:client_stepsize=0.1/1") + parse("fedsps")
    assert [one.label(*chosen) for one in chosen] == [
        "fedavg client_stepsize=0.1",
        "fedavg client_stepsize=1",
        "fedsps",
    ]


def test_a_label_names_the_very_value():
    chosen = parse("fedavg:client_stepsize=0.12345671/0.12345672/1e-05/10000000")
    labels = [one.label(*chosen).removeprefix("fedavg client_stepsize=") for one in chosen]
    assert labels == ["0.12345671", "0.12345672", "1e-05", "1e+07"]
    assert parse(f"fedavg:client_stepsize={'/'.join(labels)}") == chosen


def test_one_value_is_one_run():
    assert parse("fedsps:cap=1") == parse("fedsps:cap=1.0") == parse("fedsps")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedams:bias_correction=no", "bias_correction must be true or false; got 'no'"),
        ("feddecsps:reset=1", "reset must be true or false; got 1"),
        ("fedams:option=true", "option must be 1 .*; got True"),
        ("sps:cap=1+sps:cap=5", "names a part twice"),
        ("scaffold+scaffold", "names a part twice"),
        ("fedsps:cap=1,cap=2", "gives cap twice"),
        ("sps:cap", "must look like name=value"),
        ("sps+amsgrad:option", "must look like name=value"),
        ("fedams:client_stepsize=0.7+sps", "client_stepsize of fedams has no effect in fedams.sps"),
        ("fedavg:client_stepsize=0.5,server_stepsize=2+sps", "client_stepsize of fedavg has no effect in fedavg.sps"),
        ("fedavg:server_stepsize=3+adam", "server_stepsize of fedavg has no effect"),
        ("mime+topk", "this one also sends full_gradient"),
        ("constant:stepsize=0.2+scaffold", "give both the same"),
        ("local-amsgrad+constant:stepsize=0.3", "give both the stepsize 0.3"),
    ],
)
def test_more_that_is_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        parse(text)


def test_a_parameter_that_still_has_an_effect_may_be_given():
    built = build("fedavg:server_stepsize=2+sps")
    assert (built.stepsize, built.server) == (SPS(), Average(2.0))
    built = build("local-amsgrad:client_stepsize=0.3+constant:stepsize=0.3")
    assert built == fedsps.LocalAMSGrad(client_stepsize=0.3).with_parts()


def test_from_python():
    assert build("fedsps:cap=2+polyaverage") == fedsps.FedSPS(cap=2.0).with_parts(output=PolynomialAverage())
    assert build("fedams:option=1.0") == fedsps.FedAMS()
    with pytest.raises(ConfigurationError, match="names 2 algorithms"):
        build("fedsps:cap=1/2")
    for wrong in (
        {"stepsize": 0.1},
        {"stepsize": SPS(), "server": fedsps.FedAMS()},
        {"stepsize": SPS(), "output": LastIterate},
    ):
        with pytest.raises(ConfigurationError, match="must be a part of that kind"):
            Algorithm(**wrong)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_are_values(name):
    """Equal to themselves made again, whoever composes the parts; their repr can be evaluated; they have a name."""
    algorithm = ALGORITHMS[name]
    again = algorithm.with_parts()
    assert again == algorithm and hash(again) == hash(algorithm)
    assert (
        eval(
            repr(algorithm),
            vars(fedsps.rules) | {kind.__name__: kind for kind in CATALOGUE.values()} | {"Algorithm": Algorithm},
        )
        == algorithm
    )
    assert eval(repr(again), vars(fedsps.rules) | {"Algorithm": Algorithm}) == algorithm
    written = name_of(algorithm)
    if all(part.word for part in algorithm.composition.values() if part) or algorithm.given is not None:
        assert written.build() == algorithm


def test_other_parts_make_other_algorithms():
    different = [fedsps.FedSPS(), fedsps.FedSPS(cap=2.0), fedsps.FedAvg(), fedsps.FedSPS(server_stepsize=0.5)]
    different += [fedsps.FedSPS().with_parts(output=MeanOfLastTwo()), fedsps.FedSPS().with_parts(penalty=Proximal())]
    assert len(set(different)) == len(different)
    assert fedsps.FedSPS() != "fedsps"

    class Odd(fedsps.FedSPS):
        def exchanges(self, round):
            return super().exchanges(round) * 2

    assert Odd() != fedsps.FedSPS(), "it acts otherwise"
    assert Odd() == Odd().with_parts() and len(Odd().with_parts().exchanges(0)) == 2
    with pytest.raises(ConfigurationError, match="unknown part of an algorithm 'ouput': did you mean output"):
        fedsps.FedSPS().with_parts(ouput=LastIterate())


def test_names_of_algorithms():
    assert name_of(fedsps.FedSPS(cap=2)) == parse("fedsps:cap=2")[0]
    assert name_of(build("sps:cap=2+amsgrad")) == parse("sps:cap=2+amsgrad")[0]
    twins = [name_of(Algorithm(stepsize=Twin(stepsize))) for stepsize in (0.3, 0.4)]
    assert [twin.label(*twins) for twin in twins] == ["Twin Twin.stepsize=0.3", "Twin Twin.stepsize=0.4"]


@pytest.mark.parametrize(
    "text",
    [
        *CATALOGUE,
        "fedsps:cap=10,smoothing=paper",
        "fedsps:lower=-0.5;0.25",
        "fedavg:client_stepsize=1e-05",
        "fedams:bias_correction=True",
        "sps:cap=2+amsgrad:eps=0.01+polyaverage",
        "fedavg:client_stepsize=0.3+topk:share=0.5",
    ],
)
def test_a_named_algorithm_is_written_as_it_is_read(text):
    (one,) = parse(text)
    assert one.text == text
    assert parse(one.text) == [one]


# Parts of the user's own

MINE = str(Path(__file__).parents[1] / "examples" / "own_server.py")


def test_a_part_of_ones_own_in_a_composition(tmp_path):
    (one,) = parse(f"sps:cap=2+{MINE}:Nesterov:beta=0.25")
    made = one.build()
    assert type(made.server).__name__ == "Nesterov" and made.server.beta == 0.25
    assert made.stepsize == SPS(cap=2.0)
    assert one.label() == "sps+Nesterov sps.cap=2 Nesterov.beta=0.25"
    assert parse(one.text) == [one]
    assert [other.label() for other in parse(f"fedsps+{MINE}:Nesterov:beta=0.25/0.75")] == [
        "fedsps+Nesterov Nesterov.beta=0.25",
        "fedsps+Nesterov Nesterov.beta=0.75",
    ]
    assert Spec.of(f"sps+{MINE}:Nesterov").files["algorithm"] == source_digest(f"{MINE}:Nesterov")
    own = tmp_path / "mine.py"
    own.write_text(Path(MINE).read_text())
    before = Spec.of(f"sps+{own}:Nesterov").digest
    own.write_text(own.read_text().replace("beta: float = 0.5", "beta: float = 0.6"))
    assert Spec.of(f"sps+{own}:Nesterov").digest != before, "a changed file is another run"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"sps+{MINE}:FedSPSNesterov", "FedSPSNesterov is no part of an algorithm: extend one of fedsps.rules"),
        (f"sps+amsgrad+{MINE}:Nesterov", "has two parts for its server"),
        (f"{MINE}:Nesterov", "has no stepsize rule: begin with"),
        (f"sps+{MINE}:Nesterof", "unknown name in .*own_server.py 'Nesterof': did you mean Nesterov"),
        (f"sps+{MINE}:Nesterov:betta=1", "unknown parameter of .*: did you mean .*Nesterov.beta"),
        ("sps+gone.py:Nesterov", "there is no file gone.py"),
    ],
)
def test_what_is_no_part_is_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        parse(text)


def test_what_is_not_named_is_fedpolyak_everywhere(unequal_clients):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()

    def losses(**settings):
        return fedsps.train(net, unequal_clients, rounds=3, **settings).history["train_loss"].tolist()

    assert losses() == losses(algorithm=fedsps.FedPolyak())
    kept = {"local_batch_norm": True}  # beside layers that stay with their clients, without the average
    assert losses(**kept) == losses(algorithm="plateau+diagonal", **kept)
    with pytest.raises(ConfigurationError, match=r"of fedpolyak, plateau\+diagonal"):
        losses(algorithm="fedpolyak", **kept)
    assert Spec.of(rounds=3) == Spec.of("fedpolyak", rounds=3)
    assert Spec.of(**kept) == Spec.of("plateau+diagonal", **kept) == Spec.of(usual(**kept), **kept)


@pytest.mark.parametrize(
    ("given", "algorithm"),
    [
        ({}, "fedpolyak"),
        ({"local-batch-norm": True}, "plateau+diagonal"),
        ({"clip-norm": 1.0, "noise-multiplier": 2.0}, "fedsps"),
        ({"mean": "median"}, "fedsps"),
        ({"mean": "median", "algorithm": "fedavg"}, "fedavg"),
    ],
)
def test_a_federation_has_it_too_where_more_than_the_change_can_be_sent(given, algorithm):
    assert RunConfig.of(given).algorithm == algorithm
