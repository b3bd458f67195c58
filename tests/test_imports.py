"""The layers import one way only, and what is heavy is imported in one place, when it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedsps

PACKAGE = Path(fedsps.__file__).parent

FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix("."): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

LAYERS = [  # each imports only from the layers above it, or from its own
    {"version", "errors"},
    {"checks", "shapes", "streams", "objects", "lock"},
    {"data", "data.sources", "data.partition", "data.load", "data.own", "data.augment", "data.federated"},
    {"parts", "models", "objective"},
    {"stepsize", "server", "direction", "output", "compression", "network", "robust"},
    {"client", "logistic", "evaluate", "optim"},
    {"algorithm", "privacy"},
    {name for name in FILES if name.startswith("methods")},
    {
        "engine",
        "engine.setting",
        "engine.work",
        "engine.round",
        "engine.answer",
        "engine.loop",
        "engine.stacked",
        "catalogue",
    },
    {"history", "checkpoint", "result", "spec"},
    {"session", "compare"},
    {"training", "plot"},
    {name for name in FILES if name.startswith("engine.flower")},
    {"run"},
    {"many"},
    {"tune"},
    {name for name in FILES if name.startswith("paper")},
    {"options", "terminal"},
    {"federation", "federation.keys", "federation.processes", "federation.programs"},
    {"federation.state"},
    {"federation.up", "federation.run"},
    {"federation.hosts"},
    {name for name in FILES if name.startswith("report")},
    {name for name in FILES if name.startswith("commands")},
    {"cli"},
    {"__main__"},
    {""},  # the package itself: the public names
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_file_has_its_layer():
    assert set(FILES) == set(LEVEL)


@pytest.mark.parametrize("name", FILES)
def test_imports_go_one_way(name):
    for imported in imports(FILES[name]):
        target = imported.removeprefix("fedsps").removeprefix(".")
        if imported.startswith("fedsps") and target in LEVEL and target:
            assert LEVEL[target] <= LEVEL[name], f"{name} imports {target}"


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("matplotlib", {"plot"}),
        ("sklearn", {"data.load"}),
        ("pooch", {"data.sources"}),
        ("dp_accounting", {"privacy"}),
        ("cryptography", {"federation.keys"}),
        ("plotly", {"report.page"}),
    ],
)
def test_heavy_libraries_are_imported_in_one_place(library, home):
    assert {name for name, path in FILES.items() if any(one.split(".")[0] == library for one in imports(path))} <= home


def test_import_is_light():
    heavy = {"matplotlib", "sklearn", "pooch", "flwr", "optuna", "plotly", "dp_accounting", "cryptography"}
    program = f"import sys, fedsps; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_text_files_are_utf_8_whatever_the_locale():
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("read_text", "write_text"):
                assert "encoding" in [one.arg for one in node.keywords], f"{name}, line {node.lineno}"


def test_no_pickle_anywhere():
    for path in PACKAGE.rglob("*.py"):
        names = {name.split(".")[0] for name in imports(path)}
        assert not names & {"pickle", "joblib", "cloudpickle", "dill", "shelve"}, path
        text = path.read_text()
        assert "torch.load(" not in text
        assert "allow_pickle=True" not in text
