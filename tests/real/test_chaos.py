"""The small form of `make chaos`: sites are killed and late by a seed, and nothing that was promised is lost."""

import pytest
from chaos import chaos

pytestmark = pytest.mark.real


def test_killed_and_late_sites_cost_no_round_and_no_weight(tmp_path):
    outcome = chaos(sites=10, rounds=6, seed=0, deadline=20.0, folder=tmp_path / "federation")
    assert outcome.rounds == 6
    assert outcome.fewest >= 5, "the minimum cohort"
    assert outcome.killed == 5
    assert outcome.late == 1
    assert outcome.missing > 0, "nothing happened"
    assert outcome.unnamed == 0
    assert outcome.difference < 1e-9
