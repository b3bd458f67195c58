"""Flower's engine over an in-process grid: equal to the local engines, resumable, and hard to spoil."""

import in_process
import numpy as np
import pytest
import torch
from conftest import make_clients
from registry import ALGORITHMS

import fedsps
from fedsps import history
from fedsps.catalogue import Named
from fedsps.engine.flower import Settings

NUMBERS = [name for name in history.COLUMNS if name not in ("seconds", "test_loss", "test_accuracy")]


@pytest.fixture
def by_registry(monkeypatch):
    """Run configurations name the registry's algorithms."""
    monkeypatch.setattr(Settings, "built", property(lambda self: ALGORITHMS[self.algorithm]))
    monkeypatch.setattr(Settings, "named", property(lambda self: Named(self.algorithm, {})))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("cohort", [0, 3])
def test_equals_the_stacked_engine(name, cohort, tmp_path, by_registry):
    found = in_process.run(in_process.grid(tmp_path), tmp_path, algorithm=name, cohort=cohort)
    local = fedsps.train(
        in_process.linear(), make_clients(), algorithm=ALGORITHMS[name], rounds=4, batch_size=5, cohort=cohort or None
    )
    assert torch.allclose(in_process.weights(found), in_process.weights(local), rtol=1e-9, atol=1e-12)
    ours, theirs = (in_process.as_numbers(one.history, NUMBERS) for one in (found, local))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
