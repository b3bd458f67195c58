"""The examples in docstrings run."""

import doctest
import importlib

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
