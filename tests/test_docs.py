"""The documentation says what the code does: parameters, links, code, commands."""

import ast
import importlib.util
import inspect
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import typer
from conftest import make_clients

import fedsps
from fedsps import history
from fedsps.catalogue import CATALOGUE, PARTS, defaults, makers, parse
from fedsps.cli import app
from fedsps.models import LogisticRegression

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINKED = [*PAGES, *(page for page in [ROOT / "README.md"] if page.exists() and page.read_text().strip())]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page, *languages):
    return [code for language, code in FENCE.findall(page.read_text()) if language in languages]


def tables(page):
    """Every table of a page, as rows of cells without the heading; `code` is left in its backticks."""
    found, rows = [], []
    for line in [*FENCE.sub("", page.read_text()).splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


def plain(cell):
    return cell.strip("`")


# Methods


def test_every_method_has_a_page_and_every_page_a_method():
    assert {page.stem for page in (DOCS / "methods").glob("*.md")} == {*CATALOGUE, "README", "composition", "optim"}


def parameters_of(page):
    rows = next(rows for rows in tables(page) if len(rows[0]) == 4 and rows[0][0].startswith("`"))
    return {plain(name): ast.literal_eval(plain(default)) for name, _, default, _ in rows}


@pytest.mark.parametrize("name", CATALOGUE)
def test_hyper_parameters(name):
    assert repr(parameters_of(DOCS / "methods" / f"{name}.md")) == repr(defaults(name))


def test_hyper_parameters_of_the_optimisers():
    documented = parameters_of(DOCS / "methods" / "optim.md")
    for kind in (fedsps.optim.SPS, fedsps.optim.DecSPS):
        own = {key: one.default for key, one in inspect.signature(kind).parameters.items() if key != "params"}
        assert own == {key: value for key, value in documented.items() if key in own}
    assert documented.keys() == inspect.signature(fedsps.optim.SPS).parameters.keys() - {"params"}


def test_the_index_lists_the_catalogue():
    listed = {re.match(r"\[(.*?)\]", row[0])[1]: plain(row[1]) for row in tables(DOCS / "methods" / "README.md")[0]}
    assert listed == {name: kind.__name__ for name, kind in CATALOGUE.items()}


COSTS = {  # gradients at local steps as the index puts it -> of one client in a round of three steps on its whole data
    "1": 3,
    "2, first step 1": 5,
    "2, and the whole data once": 7,
    "1, and the whole data once": 4,
}
EXCHANGES = {"1": [1, 1], "2": [2, 2], "1, first round 2": [2, 1]}
STATES = {"none": [], "one number": [0], "one vector": [1], "two vectors": [1, 1]}  # the dimensions of each tensor


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_index_tells_what_a_round_costs(name):
    row = next(row for row in tables(DOCS / "methods" / "README.md")[0] if row[0].startswith(f"[{name}]"))
    algorithm, clients = CATALOGUE[name](), make_clients()
    model = LogisticRegression(4, 3).double()
    table = fedsps.train(model, clients, algorithm=algorithm, rounds=2, local_steps=3, batch_size=None).history
    assert table["exchanges"].tolist() == EXCHANGES[row[4]]
    assert table["gradient_evaluations"].iloc[-1] == COSTS[row[5]] * len(clients)
    state = algorithm.client_init(torch.zeros(7))
    assert [value.ndim for value in state.values()] == STATES[row[6].partition(";")[0]]


def test_the_parts():
    rows = {plain(row[0]): row for row in tables(DOCS / "methods" / "composition.md")[0]}
    assert rows.keys() == PARTS.keys()
    for word, (slot, make) in PARTS.items():
        _, place, kind, parameters = rows[word]
        own = ", ".join(f"{key}={one.default!r}" for key, one in inspect.signature(make).parameters.items())
        assert (place, plain(parameters)) == (slot, own)
        if inspect.isclass(make):
            assert plain(kind) == f"{make.__module__}.{make.__name__}"


def make_figures():
    description = importlib.util.spec_from_file_location("make_figures", DOCS / "make_figures.py")
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


def test_every_page_shows_what_the_script_compares():
    compared = make_figures().COMPARED
    assert compared.keys() == CATALOGUE.keys() | {"composition"}
    for name, words in compared.items():
        text = (DOCS / "methods" / f"{name}.md").read_text()
        (block,) = re.findall(rf"<!-- begin: {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
        image = f"images/methods/{name}.png"
        assert f"--figure docs/{image} {words}\n" in block
        assert f"](../{image})" in block
        chosen = [one for word in words.split() for one in parse(word)]
        shown = [row.split(" | ")[0].removeprefix("| ") for row in block.splitlines() if row.startswith("| ")]
        assert shown[2:] == [one.label(*chosen) for one in chosen]
        assert (DOCS / image).stat().st_size < 120_000


def test_the_source_package_has_no_tests_without_what_they_read():
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"][
        "include"
    ]
    folders = {name.strip("/") for name in included}
    assert "tests" not in folders or {"docs", "examples"} <= folders


# History


def test_history_and_summary():
    columns, summary, *_ = tables(DOCS / "history.md")
    assert [plain(row[0]) for row in columns] == list(history.COLUMNS)
    result = fedsps.train(LogisticRegression(4, 3).double(), make_clients(), rounds=1)
    assert [plain(row[0]) for row in summary] == list(result.summary)


# Links


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


# Code

RUNNABLE = [(page, code) for page in PAGES for code in blocks(page, "python") if code.startswith("# runs as is\n")]


@pytest.mark.parametrize(("page", "code"), RUNNABLE, ids=lambda one: name_of(one) if isinstance(one, Path) else "")
def test_code_runs_as_is(page, code, tmp_path, monkeypatch):
    shutil.copy(ROOT / "examples" / "own_stepsize.py", tmp_path)
    (tmp_path / "block.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_stepsize", raising=False)
    runpy.run_path(str(tmp_path / "block.py"))


def test_the_pages_that_teach_code_have_code_that_runs():
    assert {page.name for page, _ in RUNNABLE} >= {"own-stepsize.md", "optim.md", "data.md", "composition.md"}


def test_the_example_is_shown_verbatim():
    assert (ROOT / "examples" / "own_stepsize.py").read_text() in blocks(DOCS / "own-stepsize.md", "python")


# Commands

COMMANDS = [
    (page, line.removeprefix("$ "))
    for page in PAGES
    for code in blocks(page, "sh", "console")
    for line in code.replace("\\\n", " ").splitlines()
    if line.removeprefix("$ ").startswith("fedsps ")
]


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=lambda one: name_of(one) if isinstance(one, Path) else one)
def test_commands_parse(page, line, monkeypatch):
    monkeypatch.chdir(ROOT)  # own files are named from there
    command, words = typer.main.get_command(app), shlex.split(line, comments=True)[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), f"{line}: no such command"
    given = command.make_context(command.name, words).params  # refuses unknown options and values of the wrong kind
    if command.name in ("train", "compare"):
        for word in given["algorithms"] or [] if command.name == "compare" else [given["algorithm"]]:
            assert parse(word)
    if command.name == "algorithms" and given["name"]:
        assert makers(given["name"])


def test_commands_are_found():
    assert len(COMMANDS) > 2 * len(CATALOGUE)
