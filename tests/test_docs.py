"""The documentation says what the code does: parameters, links, code, commands."""

import ast
import importlib
import importlib.util
import inspect
import re
import runpy
import shlex
import shutil
import sys
import warnings
from pathlib import Path

import click
import mutants
import pytest
import typer
import yaml
from conftest import make_clients

import fedsps
from fedsps.cli.main import app
from fedsps.engine import history
from fedsps.methods.notation import defaults, makers, parse, usual
from fedsps.methods.registry import CATALOGUE
from fedsps.model.models import LogisticRegression

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINKED = [*PAGES, ROOT / "README.md"]
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


def script(name):
    description = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


def test_what_is_generated_is_as_the_classes_say():
    for path, text in script("generate").generated().items():
        assert path.read_text() == text, f"{path} is out of date: make generate"


def test_every_page_shows_what_its_command_compares():
    figures = script("make_figures")
    assert set(figures.pages()) == CATALOGUE.keys() | {"composition"}
    for name in figures.pages():
        words, (block,) = (
            figures.compared(name),
            figures.blocks_of(name).findall((DOCS / "methods" / f"{name}.md").read_text()),
        )
        image = f"images/methods/{name}.png"
        assert f"--figure docs/{image} " in block
        assert f"](../{image})" in block
        chosen = [one for word in words for one in parse(word)]
        shown = [row.split(" | ")[0].removeprefix("| ") for row in block.splitlines() if row.startswith("| ")]
        assert shown[2:] == [one.label(*chosen) for one in chosen]
        assert name == "composition" or any(one.name == name for one in chosen)
        assert (DOCS / image).stat().st_size < 120_000


# History


def test_history_and_summary():
    columns, more, summary, clients, *_ = tables(DOCS / "history.md")
    assert [plain(row[0]) for row in columns] == list(history.COLUMNS)
    sites = make_clients()
    result = fedsps.train(
        LogisticRegression(4, 3).double(), sites, test=sites[0], validation=0.2, metrics="f1", rounds=1
    )
    assert [plain(row[0]) for row in summary] == list(result.summary)
    own = [name for name in result.history if name not in history.COLUMNS]
    assert {plain(row[0]).replace("NAME", "f1") for row in more} == set(own)
    assert {*result.clients.columns} == {
        *(plain(row[0]).replace("NAME", "f1") for row in clients if "..." not in row[0]),
        *(f"validation_{name}" for name in ("samples", "loss", "accuracy", "f1")),
    }


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


def test_the_contents_lead_to_every_page():
    contents = [DOCS / "index.md", DOCS / "methods" / "README.md"]
    listed = {
        (page.parent / link).resolve()
        for page in contents
        for link in re.findall(r"^(?:- |\| )\[[^\]]+\]\((\S+\.(?:md|ipynb))\)", page.read_text(), re.MULTILINE)
    }
    assert {
        *PAGES,
        *DOCS.rglob("*.ipynb"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    } - listed == {contents[0]}


# Code

JOURNEY = (
    ROOT / "tests" / "journeys" / "own_network.py"
).read_text()  # test_journeys.py runs it, and sees that it is shown
RUNNABLE = [(page, code) for page in PAGES for code in blocks(page, "python") if code != JOURNEY]
APP = dict.fromkeys(
    ("model", "site_data", "server_test"), lambda context: ...
)  # a reader's own, where a block is a part


@pytest.mark.parametrize(("page", "code"), RUNNABLE, ids=lambda one: name_of(one) if isinstance(one, Path) else "")
def test_code_runs(page, code, tmp_path, monkeypatch):
    shutil.copy(ROOT / "examples" / "own_stepsize.py", tmp_path)
    (tmp_path / "block.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_stepsize", raising=False)
    if re.search("^(import|from) (lightning|accelerate|transformers)", code, re.MULTILINE):
        warnings.simplefilter("ignore")  # theirs, about machines with few cores and no GPU
    runpy.run_path(str(tmp_path / "block.py"), None if code.startswith("# runs as is\n") else APP)


def test_the_code_of_the_readme_runs_in_its_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in blocks(ROOT / "README.md", "python"):
        exec(compile(code.replace("rounds=50", "rounds=5"), "README.md", "exec"), names)
    assert (tmp_path / "compare.png").exists()


PUBLIC = ("fedsps", "fedsps.rules", "fedsps.data", "fedsps.optim", "fedsps.flower")
SHOWN = [(page, code) for page in LINKED for code in blocks(page, "python")] + [
    (path, path.read_text()) for path in sorted((ROOT / "examples").rglob("*.py"))
]


@pytest.mark.parametrize(("page", "code"), SHOWN, ids=lambda one: name_of(one) if isinstance(one, Path) else "")
def test_docs_and_examples_import_public_names_only(page, code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "fedsps":
            assert node.module in PUBLIC
            home = importlib.import_module(node.module)
            for alias in node.names:
                assert alias.name in getattr(home, "__all__", dir(home)), f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            assert all(alias.name in PUBLIC for alias in node.names if alias.name.split(".")[0] == "fedsps")


def test_the_pages_that_teach_code_have_code_that_runs():
    assert {page.name for page, _ in RUNNABLE} >= {"own-stepsize.md", "optim.md", "data.md", "composition.md"}


def test_the_example_is_shown_verbatim():
    assert (ROOT / "examples" / "own_stepsize.py").read_text() in blocks(DOCS / "own-stepsize.md", "python")


# Commands

COMMANDS = [
    (page, line.removeprefix("$ "))
    for page in LINKED
    for code in blocks(page, "sh", "console")
    for line in code.replace("\\\n", " ").splitlines()
    if line.removeprefix("$ ").startswith("fedsps ")
]


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=lambda one: name_of(one) if isinstance(one, Path) else one)
def test_commands_parse(page, line, monkeypatch):
    monkeypatch.chdir(ROOT)  # own files are named from there
    command, words = typer.main.get_command(app), shlex.split(line, comments=True)[1:]
    while isinstance(command, click.Group):
        command = command.get_command(None, words.pop(0))
        assert command is not None, f"{line}: no such command"
    given = command.make_context(command.name, words).params  # refuses unknown options and values of the wrong kind
    if command.name in ("train", "compare"):
        for word in given["algorithms"] or [] if command.name == "compare" else [given["algorithm"] or usual()]:
            assert parse(word)
    if command.name == "algorithms" and given["name"]:
        assert makers(given["name"])


def test_commands_are_found():
    assert len(COMMANDS) > 2 * len(CATALOGUE)


# Workflows


def test_workflows_call_make_targets():
    """All that can be checked of them here: they are YAML, and what they call is there."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    (workflow,) = (ROOT / ".github" / "workflows").glob("*.yml")
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    called = [step["run"].split() for job in jobs.values() for step in job["steps"] if "run" in step]
    assert called and all(words[0] == "make" and set(words[1:]) <= targets for words in called)
    assert jobs["suite"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


def test_every_mutant_can_be_made():
    assert [f"{why}: {one.title}" for one in mutants.MUTANTS if (why := mutants.problem(one)) is not None] == []
