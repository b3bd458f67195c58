"""The examples in docstrings run, and docstrings say more than a name does."""

import ast
import doctest
import importlib
import re

import pytest
import torch
from test_imports import FILES

MODULES = [name for name, path in FILES.items() if "\n    >>> " in path.read_text()]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    torch.manual_seed(0)
    module = importlib.import_module(f"fedsps.{name}".rstrip("."))
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert tried > 0
    assert failed == 0


def documented():
    """Every public class and function of the library: where, its name, and its docstring."""
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                yield name, node.name, ast.get_docstring(node)


def test_no_docstring_only_repeats_a_name():
    """Five words at least, and not those of the name alone."""
    bad = []
    for module, name, text in documented():
        if text is None:
            continue
        words = re.findall(r"[\w`]+", text)
        same = {word.lower() for word in words} <= set(re.findall(r"[a-z]+", name.lower())) | {"the", "a", "of"}
        if len(words) < 5 or same:
            bad.append(f"{module}.{name}: {text}")
    assert not bad, "\n".join(bad)
