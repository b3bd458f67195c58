"""The notebooks of the tutorials run, in an empty folder, and say what the kept outputs say."""

import copy
import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def script():
    description = importlib.util.spec_from_file_location("run_notebooks", ROOT / "docs" / "run_notebooks.py")
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


def outputs(notebook):
    """Of each output of each cell: its name, its text, and the kinds that it has."""
    return [
        [
            (one.get("name"), one.get("text") or one["data"]["text/plain"], sorted(one.get("data", ())))
            for one in cell.outputs
        ]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def same(kept, now, numbers_too=True):
    """Words must be the same; numbers within a hundredth, where sums are rounded as on the machine that kept them."""
    for before, after in zip(outputs(kept), outputs(now), strict=True):
        assert [(name, kinds) for name, _, kinds in before] == [(name, kinds) for name, _, kinds in after]
        for (_, text, _), (_, other, _) in zip(before, after, strict=True):
            assert NUMBER.sub("#", text).split() == NUMBER.sub("#", other).split()
            numbers = [[float(one) for one in NUMBER.findall(each)] for each in (text, other)]
            assert not numbers_too or numbers[1] == pytest.approx(numbers[0], rel=0.01, abs=0.01)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_what_it_said(path, tmp_path):
    kept, ours = nbformat.read(path, 4), script()
    same(kept, ours.run(path, tmp_path), numbers_too=kept.metadata["arithmetic"] == ours.arithmetic())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_pictures_names_no_machine_and_complains_of_nothing(path):
    shown = [one for cell in outputs(nbformat.read(path, 4)) for one in cell]
    assert any("image/png" in kinds for _, _, kinds in shown)
    assert not [text for name, text, _ in shown if name == "stderr"]
    assert not re.search(r"[\"' ]/(?:home|root|tmp|usr|work|Users)\b|https?://", path.read_text())


def test_what_a_cell_said_before_is_noticed():
    kept = nbformat.read(NOTEBOOKS[0], 4)
    (said,) = [cell.outputs[0] for cell in kept.cells if "error" in cell.source and cell.cell_type == "code"]
    (shown, *_) = [cell.outputs[0] for cell in kept.cells if cell.source.endswith("accuracy(model)")]
    before = copy.deepcopy(kept)
    said["text"] = said["text"].replace("gradients", "weights")
    with pytest.raises(AssertionError):
        same(before, kept)
    said["text"] = said["text"].replace("weights", "gradients")
    same(before, kept)
    shown["data"]["text/plain"] = "0.7"
    with pytest.raises(AssertionError):
        same(before, kept)


def test_there_is_one_for_each_user():
    assert [path.stem for path in NOTEBOOKS] == ["engineer", "practitioner", "researcher"]
