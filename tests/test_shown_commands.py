"""Every command that a page shows is run, as it stands there but shorter, or stands here with the reason why not.

A page's commands run in their order in one folder, in this process. What is changed: SHORTER, `--rounds`, and a run's
folder for the word that stands for one.
"""

import re
import runpy
import shlex
import shutil

import numpy as np
import pytest
from test_cli import call
from test_docs import FENCE, LINKED, ROOT, name_of

NOT_RUN = {  # how a command begins: why it does not run here, and what does run it
    "fedsps federation": "servers and nodes, some on other hosts: tests/real/test_federation.py, make federation",
    "flower-": "the processes of three hosts: tests/real/test_federation.py starts the same on one",
    "python -P -m fedsps.flower.warm": "the same, as flower-supernode and flower-superexec",
    "flwr": "Flower's simulation: tests/test_flower.py, tests/real/test_secagg_simulation.py",
    "torchrun": "several processes, or hosts: tests/real/test_torchrun.py",
    "fedsps reproduce": "minutes, or hours at paper scale: make smoke runs every page",
    "fedsps report reproduction": "the folder of fedsps reproduce: tests/test_report.py",
    "fedsps tune fedams --rounds 100 --storage": "a PostgreSQL server: tests/real/test_postgresql.py",
    "fedsps compare fedpolyak --data mnist --model lenet": "minutes, and MNIST's files: make smoke trains LeNet on them",
    "fedsps data fetch": "a network: tests/test_sources.py",
    "make": "CI runs the targets, and benchmarks are for the reader's machine",
    "pip install": "make wheel installs the wheel into a new environment",
    ".venv/bin/python docs/make_figures.py": "the commands that it runs again are run here",
    "cd ": "of the commands for Flower",
    "export ": "of the commands for Flower and PostgreSQL",
    "mkdir -p flwr": "of the commands for Flower",
}
SHORTER = {
    "mnist": "digits",  # the others are not in every checkout
    "phishing": "digits",
    "--samples 5000": "--samples 500",
    "--trials 30": "--trials 3",
    "--jobs 2": "--jobs 1",  # each process imports torch
}
ROUNDS = {"--absences 3:0/4,5..9:1": 9}  # as many as the command speaks of; else two


def lines(page):
    """The commands of a page; in a block with prompts the other lines are what was printed."""
    found = []
    for language, code in FENCE.findall(page.read_text()):
        if language in ("sh", "console"):
            own = [line.strip() for line in code.replace("\\\n", " ").splitlines() if line.strip()]
            asked = [line.removeprefix("$ ") for line in own if line.startswith("$ ")]
            found += asked or own
    return [re.sub(r"\s+", " ", line) for line in found]


EXAMPLES = sorted(ROOT.glob("examples/*/README.md"))
COMMANDS = {page: lines(page) for page in [*LINKED, *EXAMPLES] if lines(page)}


def begins(line):
    return [start for start in NOT_RUN if line.startswith(start)]


def shorter(line, folder):
    """The words of a command, made short."""
    for long, short in SHORTER.items():
        line = line.replace(long, short)
    newest = max(folder.glob("runs/*/summary.json"), key=lambda path: path.stat().st_mtime, default=None)
    if newest is not None:
        line = re.sub(r"(runs|other)/(DIGEST|\*|0123456789ab)", newest.parent.relative_to(folder).as_posix(), line)
    words = shlex.split(line, comments=True)
    if words[:2] in (["fedsps", name] for name in ("train", "compare", "tune")):
        if "--rounds" in words:
            at = words.index("--rounds")
            del words[at : at + 2]
        words += ["--rounds", str(next((rounds for text, rounds in ROUNDS.items() if text in line), 2))]
    return words


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """What readers have: the examples, a table, and data of their own."""
    folder = tmp_path_factory.mktemp("start")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "docs" / "images" / "methods").mkdir(parents=True)
    sites = [f"{site},{age},{'sick' if age > 5 else 'well'}" for site in ("north", "south") for age in range(10)]
    (folder / "sites.csv").write_text("\n".join(["site,age,target", *sites]))
    inputs = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(folder / "sites.npz", inputs=inputs, targets=inputs[:, 0] > 0, clients=np.repeat(["a", "b", "c"], 20))
    return folder


@pytest.mark.parametrize("page", [page for page in COMMANDS if not all(map(begins, COMMANDS[page]))], ids=name_of)
def test_the_commands_of_a_page_run(page, start, tmp_path, monkeypatch, capsys):
    shutil.copytree(start, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSPS_DATA", raising=False)
    monkeypatch.setenv("FEDSPS_CACHE", str(tmp_path / "cache"))
    runpy.run_path("examples/hospitals/patients.py")
    own = [line for line in COMMANDS[page] if not begins(line)]
    if "runs/" in own[0] or "0123456789ab" in " ".join(own):
        call(monkeypatch, capsys, "train", "fedsps", "--rounds", "2")  # the reader's own
    for line in own:
        program, *words = shorter(line, tmp_path)
        if program == "python":
            runpy.run_path(*words)
            continue
        assert program == "fedsps", f"{line}: run it here, or say in NOT_RUN why not"
        code, _, err = call(monkeypatch, capsys, *words)
        assert code == 0, f"{line}: {err}"


def test_every_reason_is_needed_and_names_what_is_there():
    used = {start for page in COMMANDS.values() for line in page for start in begins(line)}
    assert used == NOT_RUN.keys()
    for reason in NOT_RUN.values():
        for path in re.findall(r"tests/[\w/]+\.py", reason):
            assert (ROOT / path).is_file(), path


def test_most_commands_run():
    shown = [line for page in COMMANDS.values() for line in page if line.startswith("fedsps ")]
    assert sum(not begins(line) for line in shown) > 0.8 * len(shown)
