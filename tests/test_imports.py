"""The layers import one way only, and what is heavy is imported in one place, when it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedsps
from fedsps.methods.registry import CATALOGUE

PACKAGE = Path(fedsps.__file__).parent

FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix("."): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

MAY_IMPORT = {  # each package, and those that it may import beside itself; nobody imports what is below it
    "errors": "version",
    "checks": "errors",
    "core": "errors checks",
    "rules": "core errors checks",
    "methods": "rules core errors checks",
    "model": "core errors checks",
    "data": "core errors checks",
    "optim": "rules errors checks",
    "engine": "data model rules core errors checks",
    "runs": "engine data model methods rules core errors checks version",
    "flower": "runs engine data model methods rules core errors checks version",
    "deploy": "runs core errors checks",
    "report": "runs engine data model methods core errors checks version",
    "theory": "runs engine data model methods rules core errors checks",
    "paper": "theory report runs engine data model methods core errors checks",
    "cli": "paper theory report deploy runs engine data model methods core errors checks version",
    "__main__": "cli",
    "version": "",
    "": "version",  # the package itself: its public names are in the stub, and imported when they are used
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name):
    return name.partition(".")[0]


def test_every_file_has_its_room():
    assert {room(name) for name in FILES} == set(MAY_IMPORT)
    assert {name for name in FILES if "." not in name and FILES[name].name != "__init__.py"} == {
        "__main__", "version", "errors", "checks", "optim",
    }  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_packages_import_one_way(name):
    allowed = {room(name), *MAY_IMPORT[room(name)].split()}
    for imported in imports(FILES[name]):
        if imported.startswith("fedsps."):
            target = room(imported.removeprefix("fedsps."))
            assert target in allowed, f"{name} imports {imported}"


def test_the_rules_themselves_go_one_way():
    order = []
    left = dict(MAY_IMPORT)
    while left:
        free = [one for one, needs in left.items() if not set(needs.split()) & left.keys()]
        assert free, f"in a circle: {sorted(left)}"
        order += free
        left = {one: needs for one, needs in left.items() if one not in free}


def test_no_file_imports_its_own_importer():
    """Files of one package do not import each other in a circle either."""
    graph = {
        name: {
            target
            for imported in imports(path)
            if imported.startswith("fedsps.")
            and (target := imported.removeprefix("fedsps.")) in FILES
            and target != name
        }
        for name, path in FILES.items()
    }
    left = {name: targets - {room(name)} for name, targets in graph.items()}  # a package's own page may list its files
    while left:
        free = [name for name, targets in left.items() if not targets & left.keys()]
        assert free, f"in a circle: {sorted(left)}"
        left = {name: targets for name, targets in left.items() if name not in free}


@pytest.mark.parametrize(
    "name", sorted({name for name in FILES if FILES[name].name == "__init__.py"} & set(MAY_IMPORT) - {""})
)
def test_every_package_says_what_lives_in_it(name):
    text = ast.get_docstring(ast.parse(FILES[name].read_text()))
    assert "lives here" in text
    assert "import" in text


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("matplotlib", {"report.plot"}),
        ("sklearn", {"data.load", "engine.metrics"}),
        ("pooch", {"data.sources"}),
        ("dp_accounting", {"flower.privacy"}),
        ("cryptography", {"deploy.keys"}),
        ("plotly", {"report.page"}),
        ("optuna", {"runs.storage"}),
    ],
)
def test_heavy_libraries_are_imported_in_one_place(library, home):
    assert {name for name, path in FILES.items() if any(one.split(".")[0] == library for one in imports(path))} == home


HEAVY = {"matplotlib", "sklearn", "pooch", "flwr", "optuna", "plotly", "dp_accounting", "cryptography"}


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import fedsps", HEAVY | {"torch", "pandas", "numpy"}),
        ("import fedsps.cli.main", HEAVY | {"torch", "pandas"}),
        (
            "import fedsps; fedsps.train, fedsps.compare, fedsps.tune, fedsps.analyse, fedsps.reproduce, fedsps.FedSPS",
            HEAVY,
        ),
        ("import fedsps.engine.session, fedsps.rules, fedsps.methods.notation", HEAVY | {"pandas", "pyarrow"}),
    ],
)
def test_imports_are_light(program, absent):
    words = [sys.executable, "-c", f"import sys; {program}; print(sorted({absent} & set(sys.modules)))"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_stub_exports_every_method_and_nothing_that_is_not_there():
    methods = {kind.__name__ for kind in CATALOGUE.values()}
    assert methods <= set(fedsps.__all__)
    for name in fedsps.__all__:
        assert getattr(fedsps, name) is not None


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
