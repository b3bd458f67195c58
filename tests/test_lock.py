"""requirements.lock: it has what pyproject asks for, in the versions of constraints.txt, each with its hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "requirements.lock").read_text().replace("\\\n", "").splitlines()
FORM = re.compile(r"([a-z0-9-]+)==(\S+)( +--hash=sha256:[0-9a-f]{64})+")
LOCKED = {found[1]: found[2] for line in LINES if (found := FORM.fullmatch(line))}


def pinned():
    required = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().split("\n") if line.strip()]
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in required}


def asked(extra, project):
    """The names that an extra asks for, also through other extras of fedsps."""
    for text in project["dependencies"] if extra is None else project["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == "fedsps":
            for other in requirement.extras:
                yield from asked(other, project)
        else:
            yield requirement


def test_every_line_is_a_version_with_its_hashes_and_names_no_host():
    assert len(LOCKED) == len(LINES) > 100
    assert "://" not in (ROOT / "requirements.lock").read_text()


def test_the_versions_are_those_of_the_constraints():
    pins = pinned()
    assert {name: pins.get(name) for name in LOCKED} == {
        name: version if pins.get(name) == version else Version(version).public for name, version in LOCKED.items()
    }, "make lock"


@pytest.mark.parametrize("extra", [None, "dev", "docs"])
def test_all_that_is_asked_for_is_there(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in asked(extra, project):
        version = LOCKED.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name}: make lock"
        assert requirement.specifier.contains(version), requirement
