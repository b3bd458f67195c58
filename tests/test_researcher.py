"""A researcher's way: an own client and server rule, five rivals tuned, five seeds, a table, a figure and a report."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from test_cli import call

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = ["--rounds", "4", "--local-steps", "2"]
RIVALS = ("fedavg", "fedams", "fedexp", "mime", "scaffold")


@pytest.fixture
def fed(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *words: call(monkeypatch, capsys, *words)


def test_from_an_own_method_to_the_table_of_a_paper(fed, tmp_path):
    for name in ("own_stepsize.py", "own_server.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    own = "own_stepsize.py:FedAdaGradNorm+own_server.py:Nesterov"
    assert "Nesterov (server)" in fed("algorithms", own)[1]
    tuned = []
    for rival in RIVALS:
        code, out, _ = fed("tune", f"{rival}:client_stepsize=0.03/0.3", *QUICK)
        assert code == 0
        tuned.append(re.search("^best: (.*)$", out, re.MULTILINE)[1])
    assert all(best.startswith(f"{rival}:client_stepsize=") for best, rival in zip(tuned, RIVALS, strict=True))
    files = ["--latex", "table.tex", "--csv", "table.csv", "--figure", "curves.pdf", "--size", "6.5x2.4"]
    code, out, _ = fed("compare", own, *tuned, *QUICK, "--seeds", "5", *files, "--across", "gradient_evaluations")
    assert code == 0 and "5 seeds: mean ± standard deviation; p: paired t-test" in out
    table = pd.read_csv(tmp_path / "table.csv")
    assert table["algorithm"][0] == "FedAdaGradNorm+Nesterov" and len(table) == 6
    assert table["final_train_loss_p"].notna().sum() == 5, "all but the best are tested against it"
    assert (tmp_path / "table.tex").read_text().count("\\pm") >= 12
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")
    code, out, _ = fed("report", "runs", "-o", "report.html")
    assert code == 0 and "runs: 40" in out, "30 runs, and 10 trials"
    page = (tmp_path / "report.html").read_text()
    assert "Searches" in page and "FedAdaGradNorm+Nesterov" in page
