"""The site's lists hold every public name, and what the build does to the pages is what it should (`make docs` builds it)."""

import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import fedsps

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"


def script(path):
    description = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


api = script(ROOT / "docs" / "api.py")
check_site = script(ROOT / ".ci" / "check_site.py")


@pytest.fixture(scope="module")
def documented():
    pages = "\n".join(api.expand(page.read_text()) for page in REFERENCE.glob("*.md"))
    return set(re.findall(r"^\.\. (?:auto\w+|py:type):: (\S+)$", pages, re.MULTILINE))


# Lists


@pytest.mark.parametrize("module", ["fedsps", "fedsps.data", "fedsps.flower"])
def test_every_exported_name_is_in_the_reference(module, documented):
    home = importlib.import_module(module)
    assert {f"{module}.{name}" for name in home.__all__} <= documented


def test_every_part_and_helper_is_in_the_reference(documented):
    rules = {name for name, value in vars(fedsps.rules).items() if not isinstance(value, ModuleType)}
    assert {f"fedsps.rules.{name}" for name in rules if not name.startswith("_")} <= documented
    assert {"fedsps.rules.SPS", "fedsps.rules.Part", "fedsps.rules.Tensors", "fedsps.rules.norm_sq"} <= documented


def test_every_optimiser_is_in_the_reference(documented):
    assert {"fedsps.optim.SPS", "fedsps.optim.DecSPS"} <= documented
    assert not {"fedsps.optim.Tensor", "fedsps.optim.ConfigurationError"} & documented


@pytest.mark.parametrize("module", api.PUBLIC)
def test_every_name_stands_under_one_heading(module):
    listed = [name for mine in api.groups(module).values() for name in mine]
    assert sorted(listed) == sorted(api.names(module))


def test_contributors_find_every_file():
    text = "\n".join(api.expand(page.read_text()) for page in (REFERENCE / "inside").glob("*.md"))
    found = set(re.findall(r"^\.\. automodule:: (\S+)$", text, re.MULTILINE))
    for package in ("core", "model", "data", "engine", "runs", "flower", "report", "paper"):
        assert set(api.modules(f"fedsps.{package}")) <= found
    assert {"fedsps.methods.registry", "fedsps.methods.notation"} <= found
    assert ":exclude-members: Plan" in text  # it is described where it is public


def test_no_comment_is_left():
    for page in REFERENCE.rglob("*.md"):
        assert "<!--" in page.read_text()
        assert "<!--" not in api.expand(page.read_text())


# Docstrings


def test_an_indented_block_is_code_and_sections_stay():
    text = inspect.cleandoc("""
        What it is.

            gamma = min(a, b)
              continued

            after a blank line
        which goes on.

        - a list

          with a paragraph

        Args:
            a: one,
                on two lines.

            b: after a blank line.

        >>> 1 + 1
        2
    """)
    assert "\n".join(api.to_rst(text.splitlines())) == text.replace(
        "    gamma", ".. code-block:: text\n\n    gamma"
    ).replace("after a blank line\nwhich", "after a blank line\n\nwhich")


def test_an_indented_import_is_python():
    assert api.to_rst(["So:", "", "    import fedsps"])[2] == ".. code-block:: python"


def test_a_table_of_markdown_is_a_table():
    rows = api.to_rst([r"| kind | says |", "| --- | --- |", r"| `a` | `\|x\|` |", "", "After."])
    assert rows == [
        ".. list-table::", "   :header-rows: 1", "   :widths: auto", "",
        "   * - kind", "     - says", "   * - `a`", "     - `|x|`", "",
        "", "After.",
    ]  # fmt: skip


# The built pages


def site(folder, body):
    (folder / "index.html").write_text(f"<html><body id=here>{body}</body></html>")
    (folder / "own.css").write_text("a { background: url(own.png) }")
    (folder / "own.png").write_text("")
    return check_site.problems(folder)


@pytest.mark.parametrize(
    "body",
    [
        '<script src="https://elsewhere.org/a.js"></script>',
        '<link rel="stylesheet" href="//elsewhere.org/a.css">',
        '<link rel="preload" as="font" href="http://elsewhere.org/a.woff2">',
        '<img src="https://elsewhere.org/a.png">',
        '<img srcset="own.png 1x, https://elsewhere.org/a.png 2x">',
        '<style>@font-face { src: url("https://elsewhere.org/a.woff2") }</style>',
        '<p style="background: url(https://elsewhere.org/a.png)">',
    ],
)
def test_what_comes_from_another_host_is_found(body, tmp_path):
    (problem,) = site(tmp_path, body)
    assert "from another host" in problem


def test_a_style_sheet_that_loads_from_another_host_is_found(tmp_path):
    (tmp_path / "other.css").write_text("@import url('https://elsewhere.org/a.css');")
    assert len(site(tmp_path, "")) == 1


@pytest.mark.parametrize("body", ['<a href="gone.html">', '<a href="#gone">', '<img src="gone.png">'])
def test_links_to_nothing_are_found(body, tmp_path):
    assert len(site(tmp_path, body)) == 1


def test_links_to_other_hosts_and_to_places_that_are_there_are_fine(tmp_path):
    body = '<a href="https://elsewhere.org">x</a> <a href="index.html#here">x</a> <a href="#here">x</a>'
    assert site(tmp_path, f'{body} <img src="own.png"> <link rel="stylesheet" href="own.css">') == []


def test_a_folder_without_a_site_is_a_problem(tmp_path):
    assert check_site.problems(tmp_path)
