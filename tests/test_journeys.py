"""What a newcomer does, from the first look to the end, as the documentation shows it."""

import runpy
import shlex
import sys
from pathlib import Path

import pandas as pd
import pytest

from fedsps.cli.main import main

ROOT = Path(__file__).parents[1]
JOURNEYS = ROOT / "tests" / "journeys"


def test_the_table_journey(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "hospitals" / "patients.py"))
    page = (ROOT / "docs" / "tables.md").read_text().replace(" \\\n    ", " ")
    shown = {}
    for line in (JOURNEYS / "table.sh").read_text().splitlines():
        assert f"$ {line}\n" in page
        words = shlex.split(line.replace("runs/*", str(next(tmp_path.glob("runs/*"), ""))))
        monkeypatch.setattr(sys, "argv", words)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code, line
        shown[words[1]] = capsys.readouterr().out
    assert "patient_id left out" in shown["data"] and "are standardised" in shown["data"]
    assert "final test" in shown["train"] and "best test" in shown["train"]
    assert "north" in shown["evaluate"] and "validation auc" in shown["evaluate"]
    said = pd.read_csv("predictions.csv")
    assert len(said) == 10 and set(said["prediction"]) <= {"no", "yes"}
    assert ((said["p(yes)"] > 0.5) == (said["prediction"] == "yes")).all()
    report = Path("report.html").read_text()
    assert "<h2>Clients</h2>" in report and "south" in report
    (folder,) = Path("runs").iterdir()
    assert (folder / "columns.json").is_file()


def test_the_own_network_journey(tmp_path, monkeypatch, capsys):
    script, page = JOURNEYS / "own_network.py", (ROOT / "docs" / "own-network.md").read_text()
    assert script.read_text() in page
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(script))
    result, own = found["result"], found["own"]
    assert result.summary["ended"] == "patience" and "ended by patience" in capsys.readouterr().out
    assert result.clients["client"].tolist() == own.table["client"].tolist() == ["north", "south", "east"]
    gain = own.table["personalised_accuracy"] - own.table["common_accuracy"]
    assert (gain > 0).all() and list(own.models) == ["north", "south", "east"]
    assert any(Path("logs").iterdir())
    inputs, targets = found["held_out"]["east"]
    right = (own.models["east"](inputs).argmax(1) == targets).float().mean().item()
    assert own.table["personalised_accuracy"][2] == pytest.approx(right)
