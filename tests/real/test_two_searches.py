"""Two processes on one search name the same winner, of the whole grid."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real
WORDS = ["tune", "fedavg:client_stepsize=0.01/0.1/1", "--rounds", "300", "--evaluate-every", "10", "--json", "--runs"]


def test_two_searches_agree(tmp_path):
    command = [sys.executable, "-m", "fedsps", *WORDS, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [json.loads(one.communicate(timeout=240)[0]) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    for one in found:
        assert sorted(row["client_stepsize"] for row in one["trials"]) == [0.01, 0.1, 1]
    assert found[0]["best"] == found[1]["best"]
