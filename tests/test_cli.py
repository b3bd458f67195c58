"""The command as a user meets it: in a process of its own for the exit codes, in this one for the rest."""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
import typer
from rich.console import Console

import fedsps
from fedsps.cli import terminal
from fedsps.cli.main import app, main
from fedsps.errors import unknown
from fedsps.methods.registry import PARTS
from fedsps.paper.reproduce import PAGES
from fedsps.runs.task import _data

QUICK = ["--rounds", "3", "--evaluate-every", "1"]


def call(monkeypatch, capsys, *words):
    """Run the command in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["fedsps", *words])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.fixture
def fed(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *words: call(monkeypatch, capsys, *words)


def test_version_and_help(fed):
    assert fed("--version")[1].strip() == f"fedsps {fedsps.__version__}"
    code, out, _ = fed("--help")
    assert code == 0
    for command in ("train", "compare", "evaluate", "data", "algorithms"):
        assert command in out
    assert "--local-steps" in fed("compare", "--help")[1]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("tune", ("fedavg:client_stepsize=0.01/0.1/1", "fedavg:client_stepsize=1e-4..1")),
        ("train", ("fedsps:cap=10,smoothing=paper", "sps+amsgrad+polyaverage")),
        ("compare", ("fedavg:client_stepsize=0.01/0.1/1", "file.py:Class")),
        ("report", ("Run folders",)),
        ("reproduce", ("all if none is named",)),
        ("algorithms", ("One algorithm, in full",)),
    ],
)
def test_help_explains_the_arguments(fed, command, words):
    shown = fed(command, "--help")[1]
    assert [word for word in words if word not in shown] == [], "click 8.5 drops it: install with constraints.txt"


def test_train_writes_a_run_folder_and_comes_back_from_it(fed, tmp_path):
    code, out, err = fed("train", "fedsps:cap=2", *QUICK, "--json")
    assert (code, err == "") == (0, False)
    found = json.loads(out)
    folder = tmp_path / found["folder"]
    assert folder.name == found["digest"]
    assert {path.name for path in folder.iterdir()} == {
        ".lock",
        "spec.json",
        "clients.csv",
        "history.parquet",
        "summary.json",
        "model.safetensors",
    }
    assert found["summary"]["rounds"] == 3
    data = found["summary"]["data"]
    assert data["train_samples"] + data["dropped_samples"] == 1797 - 359
    assert {key: data[key] for key in ("clients", "test_samples", "shape", "classes")} == {
        "clients": 10, "test_samples": 359, "shape": [64], "classes": 10,
    }  # fmt: skip
    spec = json.loads((folder / "spec.json").read_text())
    assert spec["parameters"]["cap"] == 2
    again = json.loads(fed("train", "fedsps:cap=2", *QUICK, "--json")[1])
    assert again["summary"] == found["summary"], "read, not trained again"
    fresh = json.loads(fed("train", "fedsps:cap=2", *QUICK, "--json", "--fresh")[1])
    assert fresh["summary"]["final_train_loss"] == found["summary"]["final_train_loss"]


def test_evaluate_agrees_with_the_history(fed, tmp_path):
    found = json.loads(fed("train", *QUICK, "--json")[1])
    code, out, _ = fed("evaluate", found["folder"], "--json")
    assert code == 0
    scores = json.loads(out)
    history = pd.read_parquet(tmp_path / found["folder"] / "history.parquet")
    assert scores["train_loss"] == pytest.approx(history["train_loss"].iloc[-1], rel=1e-5)
    assert scores["test_accuracy"] == pytest.approx(history["test_accuracy"].iloc[-1])
    assert "worst client loss" in fed("evaluate", found["folder"])[1]


def test_what_is_not_named_goes_with_layers_that_stay_with_their_clients(fed, tmp_path):
    net = "nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))"
    (tmp_path / "mine.py").write_text(f"from torch import nn\n\n\ndef net():\n    return {net}\n")
    words = ("--model", "mine.py:net", "--rounds", "2", "--local-batch-norm")
    for command in ("train", "compare"):
        code, out, err = fed(command, *words)
        assert code == 0, err
        assert "plateau+diagonal" in out
    code, _, err = fed("train", "")
    assert code == 2 and "unknown algorithm ''" in err


def test_compare_prints_a_table_and_draws(fed, tmp_path):
    code, out, _ = fed("compare", *QUICK, "fedsps", "fedavg:client_stepsize=0.01/0.1")
    assert code == 0
    assert "fedavg client_stepsize=0.01" in out
    assert "fedavg client_stepsize=0.1" in out
    assert "the best final train loss of these runs times 1.1" in out
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = fed(
        "compare", *QUICK, "--json", "--target", "1.5", "--seeds", "2", "--figure", "two.pdf", "fedsps", "fedavg"
    )
    found = json.loads(out)
    assert found["target_loss"] == 1.5
    assert [row["algorithm"] for row in found["rows"]] == ["fedsps", "fedavg"]
    assert {len(folders) for folders in found["runs"].values()} == {2}
    assert (tmp_path / "two.pdf").read_bytes().startswith(b"%PDF")


def test_compare_over_seeds_writes_tables_for_papers(fed, tmp_path):
    words = ["compare", *QUICK, "--seeds", "3", "fedsps", "fedavg", "--latex", "out/table.tex", "--csv", "table.csv"]
    code, out, _ = fed(*words, "--size", "6x2", "--across", "bytes", "--figure", "f.pdf", "--statistic", "wilcoxon")
    assert code == 0
    assert "±" in out and "best" in out and "Wilcoxon's signed-rank test against the best, Holm-corrected" in out
    assert "table: out/table.tex" in out
    assert (tmp_path / "out" / "table.tex").read_text().count("\\pm") >= 4
    assert pd.read_csv(tmp_path / "table.csv")["seeds"].tolist() == [3, 3]
    for wrong, message in (
        (("--size", "6"), "--size must look like 6.5x2.4, in inches; got '6'"),
        (("--size", "0x2"), "--size must be above 0"),
        (("--latex", "out"), "out is a folder: name a file for the table"),
        (("--across", "years"), "Invalid value for '--across'"),
    ):
        code, _, err = fed("compare", *QUICK, *wrong)
        assert code == 2 and message in err


@pytest.mark.parametrize("words", [("algorithms",), ("algorithms", "fedams"), ("reproduce", "--list")])
def test_no_word_is_broken_at_80_columns(fed, monkeypatch, words):
    wide = fed(*words)[1]
    monkeypatch.setattr(terminal, "paper", Console(width=80, force_terminal=True))
    narrow = fed(*words)[1]
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    assert narrow.split() == wide.split()


def test_piped_progress_is_a_line_from_time_to_time(fed, monkeypatch):
    monkeypatch.setattr(terminal, "PAUSE", 0.0)
    err = fed("compare", *QUICK, "fedsps")[2]
    assert [line.split(" train loss")[0] for line in err.splitlines()[:3]] == ["fedsps 1/3", "fedsps 2/3", "fedsps 3/3"]
    assert "tuning fedavg 2/2\n" in fed("tune", "fedavg:client_stepsize=0.1/1", *QUICK)[2]


def test_tune_prints_what_can_be_pasted(fed):
    out = fed("tune", "fedams:client_stepsize=0.1/1", *QUICK)[1]
    best = re.search("^best: (.*)$", out, re.MULTILINE)[1]
    assert "are shown" not in out, "all of them are"
    assert best in ("fedams", "fedams:client_stepsize=1")  # 0.1 is its default
    assert fed("train", best, *QUICK)[0] == 0


def test_algorithms_shows_formulas(fed):
    out = fed("algorithms")[1]
    assert "min( (F_i(x_i; batch) - lower_i) / (scale ||g_i||^2), cap )" in out
    assert "smoothing" in fed("algorithms", "fedsps")[1]
    assert json.loads(fed("algorithms", "--json")[1])["fedavg"]["parameters"]["client_stepsize"] == 0.1


@pytest.mark.parametrize("word", PARTS)
def test_algorithms_shows_every_part(fed, word):
    code, out, _ = fed("algorithms", word)
    assert code == 0
    assert out.startswith(word)
    shown = json.loads(fed("algorithms", word, "--json")[1])
    assert shown[word]["formula"]


def test_algorithms_shows_ones_own_docstring(fed):
    own = Path(__file__).parents[1] / "examples"
    out = fed("algorithms", f"{own / 'own_server.py'}:FedSPSNesterov")[1]
    assert "FedSPS under Nesterov's momentum on the server." in out and "cap=1.0, beta=0.5" in out
    out = fed("algorithms", f"sps+{own / 'own_server.py'}:Nesterov")[1]
    assert "Nesterov (server)  Nesterov's momentum on the server: the step looks ahead." in out
    assert "m <- beta m + Delta" in out
    assert "(it has no docstring)" in fed("algorithms", f"{own / 'own_stepsize.py'}:FedAdaGradNorm")[1]


def test_algorithms_shows_the_words_of_a_composition(fed):
    code, out, _ = fed("algorithms", "sps:cap=2+fedexp")
    assert code == 0
    assert "sps (stepsize)  The stochastic Polyak stepsize" in out
    assert "scale=0.5, cap=1.0, lower=0.0, smoothing=None" in out
    assert "fedexp (server)  FedExP's server" in out
    shown = json.loads(fed("algorithms", "sps+fedexp", "--json")[1])
    assert shown["fedexp"] == {
        "formula": "x <- x + eta Delta,    eta = max(1, mean_i ||x_i - x||^2 / (2 (||Delta||^2 + eps)))",
        "parameters": {"eps": 0.001},
    }
    assert "client_stepsize" in fed("algorithms", "fedexp")[1], "alone it is the method"


def test_data_commands(fed, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSPS_DATA", raising=False)
    assert "embedded" in fed("data", "list")[1]
    assert fed("data", "fetch", "digits")[0] == 0
    assert "missing" in fed("data", "verify", "mnist")[1]
    for damaged in ("mushrooms", "phishing"):
        file = tmp_path / "data" / "libsvm" / damaged
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1 1:1")
    monkeypatch.setenv("FEDSPS_DATA", str(tmp_path / "data"))
    code, out, error = fed("data", "verify")
    assert code == 2
    assert "a9a a9a: missing" in out
    assert "mushrooms" in error
    assert "phishing" in error


def test_own_data_with_a_client_column(fed, tmp_path):
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.normal(size=(60, 3)), columns=["a", "b", "c"])
    table["hospital"] = random.choice(["north", "south", "west"], size=60)
    table["ill"] = np.where(table["a"] > 0, "yes", "no")
    table.to_csv(tmp_path / "patients.csv", index=False)
    words = ["--data", "patients.csv", "--client-column", "hospital", "--target-column", "ill", *QUICK, "--json"]
    found = json.loads(fed("train", *words)[1])
    assert found["summary"]["data"]["clients"] == 3
    assert found["summary"]["data"]["shape"] == [3]
    table.iloc[::-1].to_csv(tmp_path / "patients.csv", index=False)
    assert json.loads(fed("train", *words)[1])["digest"] != found["digest"], "another file is another run"


def test_own_model_and_own_algorithm(fed, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch, fedsps\n"
        "from fedsps.rules import Constant\n"
        "def net():\n    return torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))\n"
        "class Half(fedsps.Algorithm):\n"
        "    'Halved steps.'\n"
        "    def __init__(self, *, size: float = 1.0) -> None:\n"
        "        super().__init__(stepsize=Constant(size / 2))\n"
    )
    code, out, _ = fed(
        "compare", "--model", "mine.py:net", *QUICK, "--json", "mine.py:Half", "mine.py:Half:size=0.2", "fedsps"
    )
    assert code == 0
    assert [row["algorithm"] for row in json.loads(out)["rows"]] == ["Half size=1", "Half size=0.2", "fedsps"]
    assert [row["stepsize_mean"] for row in json.loads(out)["rows"][:2]] == pytest.approx([0.5, 0.1])
    folder = json.loads(out)["runs"]["fedsps"][0]
    assert fed("evaluate", folder)[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "fedspss"], "unknown algorithm 'fedspss': did you mean fedsps"),
        (["train", "fedsps:capp=1"], "unknown parameter of fedsps 'capp': did you mean cap?"),
        (["train", "fedsps:cap=-1"], "cap must be a finite number above 0; got -1"),
        (["train", "fedsps:cap=lots"], "cap must be a finite number above 0; got 'lots'"),
        (["train", "fedsps:cap"], "'cap' in 'fedsps:cap' must look like name=value"),
        (["train", "fedavg:client_stepsize=1/2"], "train takes one, compare takes several"),
        (["train", "--data", "minst"], "unknown data set 'minst': did you mean mnist"),
        (["train", "--data", "no.csv"], "there is no file no.csv"),
        (["train", "--partition", "two-classes"], "did you mean two-class"),
        (["train", "--model", "lenett"], "did you mean lenet"),
        (["train", "--model", "lenet"], "lenet needs square images"),
        (["train", "--model", "nowhere:net"], "nowhere cannot be imported"),
        (["train", "--scaling", "unity"], "scaling 'unity' is not for digits"),
        (["train", "--loss", "cross"], "'cross' is not one of"),
        (["train", "--dtype", "float16"], "'float16' is not one of"),
        (["train", "--weights", "size"], "'size' is not one of"),
        (["train", "--engine", "stack"], "'stack' is not one of"),
        (["train", "--rounds", "0"], "rounds must be a whole number of at least 1; got 0"),
        (["train", "--rounds", "-3"], "rounds must be a whole number of at least 1; got -3"),
        (["train", "--clients", "0"], "--clients must be a whole number of at least 1; got 0"),
        (["train", "--clients", "5000"], "two-class over 5000 clients needs 1000 samples of class 0"),
        (["train", "--cohort", "11"], "cohort is 11, but there are only 10 clients"),
        (["train", "--partition", "dirichlet", "--alpha", "-1"], "alpha must be"),
        (["train", "fedsps:lower=2", "--rounds", "20"], "below its lower bound of 2"),
        (["evaluate", "nothing"], "not the folder of a finished run"),
        (["data", "fetch", "imagenet"], "unknown data set 'imagenet'"),
        (["algorithms", "fedavgg"], "did you mean fedavg"),
        (["algorithms", "sps+amsgrat"], "unknown part 'amsgrat': did you mean amsgrad"),
        (["algorithms", "sps+mime"], "SPS is not defined with the corrected direction of MIME"),
        (["compare", "--figure", "figure.xyz", "--rounds", "1", "fedsps"], "xyz"),
    ],
)
def test_wrong_input_is_one_line_without_a_traceback(fed, words, message):
    code, _, err = fed(*words)
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_a_word_is_never_suggested_for_itself():
    assert str(unknown("algorithm", "sps", ["sps", "fedsps"])) == "unknown algorithm 'sps': did you mean fedsps?"


def test_a_real_process_exits_with_2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fedsps", "train", "fedspss"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "did you mean" in done.stderr
    assert "Traceback" not in done.stderr


def commands(group, *names):
    """Every command and group below a group, by the words that call it."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield (*names, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)


def test_every_command_and_every_option_has_help():
    found = dict(commands(typer.main.get_command(app)))
    assert ("train",) in found and ("federation", "up") in found
    for words, command in found.items():
        assert command.help, words
        assert [one.name for one in command.params if not one.help] == [], words


def test_an_edited_file_is_read_again_in_the_same_process(fed, tmp_path):
    def write(sign):
        random = np.random.default_rng(0)
        table = pd.DataFrame(random.normal(size=(60, 3)), columns=list("abc"))
        table.assign(target=(sign * table["a"] > 0).astype(int)).to_csv(tmp_path / "p.csv", index=False)

    words = ["train", "--data", "p.csv", "--partition", "iid", "--clients", "3", *QUICK, "--json"]
    write(1)
    first = json.loads(fed(*words)[1])
    write(-1)
    _data.cache_clear()  # as in a new process
    code, _, err = fed("evaluate", first["folder"])
    assert code == 2
    assert "p.csv has changed" in err
    weights = [json.loads(fed(*words)[1])["folder"]]
    one, two = (fedsps.load(tmp_path / folder).model.weight for folder in (first["folder"], weights[0]))
    assert (one * two).sum().item() < 0, "opposite labels, opposite weights"
    (tmp_path / "net.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(64, 10)\n")
    net = ["train", "--model", "net.py:make", *QUICK, "--json"]
    fed(*net)
    (tmp_path / "net.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(64, 10, bias=False)\n")
    folder = json.loads(fed(*net)[1])["folder"]
    assert fedsps.load(tmp_path / folder).model.bias is None


def test_evaluate_follows_the_weights_of_the_run(fed, tmp_path):
    words = ["train", "--partition", "dirichlet", "--alpha", "0.1", "--weights", "samples", *QUICK, "--json"]
    found = json.loads(fed(*words)[1])
    scores = json.loads(fed("evaluate", found["folder"], "--json")[1])
    assert scores["train_loss"] == pytest.approx(found["summary"]["final_train_loss"], rel=1e-5)


def test_methods_of_one_name_stay_apart_and_one_method_named_twice_is_one_row(fed, tmp_path):
    for name, size in (("one.py", 0.1), ("two.py", 1.0)):
        (tmp_path / name).write_text(
            "import fedsps\nfrom fedsps.rules import Constant\n"
            f"class Ok(fedsps.Algorithm):\n    def __init__(self) -> None:\n        super().__init__(stepsize=Constant({size}))\n"
        )
    rows = json.loads(fed("compare", "one.py:Ok", "two.py:Ok", "fedsps", "fedsps:cap=1", *QUICK, "--json")[1])["rows"]
    assert [row["algorithm"] for row in rows] == ["one.py:Ok", "two.py:Ok", "fedsps"]


def test_brackets_in_names_are_no_markup(fed, tmp_path):
    code, _, err = fed("train", "[/foo]")
    assert code == 2
    assert "[/foo]" in err
    code, out, _ = fed("train", *QUICK, "--runs", "r[bold]x[/y]")
    assert code == 0
    assert "r[bold]x[/y]" in out


def test_errors_of_the_users_own_code_are_one_line(fed, tmp_path):
    (tmp_path / "bad.py").write_text(
        "import fedsps\nfrom fedsps.rules import StepsizeRule\n"
        "def needs(x):\n    return x\n"
        "def fails():\n    raise RuntimeError('no network')\n"
        "class Rule(StepsizeRule):\n    def __call__(self, state, seen):\n        return 1 / 0, state\n"
        "class Loud(fedsps.Algorithm):\n    def __init__(self) -> None:\n        raise RuntimeError('no')\n"
        "class Needs(fedsps.Algorithm):\n    def __init__(self, *, size) -> None:\n        pass\n"
        "class Late(fedsps.Algorithm):\n    def __init__(self) -> None:\n        super().__init__(stepsize=Rule())\n"
    )
    for words, expected, message in (
        (["--model", "bad.py:needs"], 2, "missing 1 required positional argument"),
        (["--model", "bad.py:fails"], 2, "no network"),
        (["bad.py:Loud"], 2, "bad.py:Loud cannot be made: RuntimeError: no"),
        (["bad.py:Late"], 1, "ZeroDivisionError"),
        (["bad.py:Needs"], 2, "parameter 'size' of bad.py:Needs has no default value"),
    ):
        code, _, err = fed("train", *words, *QUICK)
        assert code == expected
        assert message in " ".join(err.split())
        assert "Traceback" not in err


def test_a_run_that_fails_is_named_at_the_end_and_the_others_are_shown(fed, tmp_path):
    words = ["compare", "fedsps", "fedsps:lower=5", "fedavg:client_stepsize=0.1", *QUICK]
    code, out, err = fed(*words)
    assert code == 1
    assert "fedavg" in out
    assert "lower=5" not in out
    err = " ".join(err.split())
    assert (
        "error: 1 run failed, the others are done. Ask for the same again, and it alone is run: fedsps lower=5" in err
    )
    (kept,) = tmp_path.glob("runs/*/failure.txt")
    assert f"({kept.relative_to(tmp_path)})" in err
    assert kept.read_text().startswith("Traceback")
    assert "Traceback" not in err
    assert json.loads(fed(*words, "--json")[1])["failed"] == [str(kept.relative_to(tmp_path))]
    assert "without --fresh, and" in " ".join(fed(*words, "--fresh")[2].split())

    code, out, err = fed("tune", "fedsps:lower=0/5", *QUICK)
    assert code == 1
    assert "best: fedsps" in out
    assert "Ask for the same again with --retry, and it alone is run" in " ".join(err.split())


def test_json_is_json_even_without_numbers(fed):
    out = fed("compare", "fedsps", "--rounds", "2", "--evaluate-every", "0", "--json")[1]
    assert json.loads(out, parse_constant=lambda word: pytest.fail(word))["target_loss"] is None


def test_one_sample_a_client_and_integer_regression(fed, tmp_path):
    pd.DataFrame({"a": [0.1, 0.2, 0.9, 0.8], "who": list("wxyz"), "target": [0, 0, 1, 1]}).to_csv(
        tmp_path / "few.csv", index=False
    )
    found = json.loads(fed("train", "--data", "few.csv", "--client-column", "who", *QUICK, "--json")[1])
    assert found["summary"]["data"]["test_samples"] == 0
    pd.DataFrame({"a": [0.0, 1.0, 4.0, 5.0] * 5, "target": [0, 250, 1000, 1250] * 5}).to_csv(
        tmp_path / "price.csv", index=False
    )
    (tmp_path / "line.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(1, 1), nn.Flatten(0))\n"
    )
    words = [
        "--data",
        "price.csv",
        "--partition",
        "iid",
        "--clients",
        "2",
        "--model",
        "line.py:make",
        "--loss",
        "squared",
    ]
    found = json.loads(fed("train", *words, "fedavg:client_stepsize=1e-9", *QUICK, "--json")[1])
    assert found["summary"]["final_train_loss"] > 1e5, "the targets are the numbers themselves"


def test_a_missing_extra_is_named_before_anything_is_trained(fed, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [name for name in sys.modules if name.split(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    for words, message in (
        (["tune", "fedavg", *QUICK], "tuning needs optuna: pip install 'fedsps[tune]'"),
        (["reproduce", "example1"], "figures need matplotlib: pip install 'fedsps[plot]'"),
    ):
        code, _, err = fed(*words)
        assert code == 2
        assert message in " ".join(err.split())
    assert not list(tmp_path.rglob("spec.json"))
    assert fed("reproduce", "--list")[0] == 0
    code, out, err = fed("compare", "fedsps", *QUICK, "--json")
    assert code == 0
    assert json.loads(out)["figure"] is None
    assert "no figure: it needs matplotlib" in err


def test_the_list_of_pages_has_a_line_a_page(fed):
    """.ci/check-smoke reads it."""
    assert [line.split()[0] for line in fed("reproduce", "--list")[1].splitlines()] == list(PAGES)


def test_analyse_before_training_and_of_a_run(fed):
    code, out, _ = fed("analyse", "fedsps:cap=0.01", "--trial-rounds", "2")
    assert code == 0
    assert "softmax regression" in out
    assert "- your cap binds in 100 % of the steps: this is FedAvg with stepsize 0.01" in out
    assert "- the data are separable" in out
    folder = json.loads(fed("train", "fedsps:cap=0.01", *QUICK, "--json")[1])["folder"]
    code, out, _ = fed("analyse", folder, "--trial-rounds", "2", "--json")
    assert code == 0
    facts = {fact["name"]: fact["value"] for fact in json.loads(out)["facts"]}
    assert facts["f at the trained model"] < facts["f at the start"]
    assert facts["share of last steps at the cap"] == 1
    code, _, err = fed("analyse", folder, "--rounds", "7")
    assert code == 2
    assert "leave out all others" in err
    code, _, err = fed("analyse", "fedsps:cap=1/2")
    assert code == 2
    assert "analyse takes one" in err
    code, _, err = fed("analyse", "runs/0123456789ab")
    assert code == 2
    assert "there is no folder runs/0123456789ab" in err
