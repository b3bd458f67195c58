"""What is promised when something breaks, see `docs/reliability.md`: edited checkpoints, full disks, shared folders."""

import json

import pytest
import torch
from conftest import make_clients
from safetensors import safe_open
from safetensors.torch import save_file

import fedsps
from fedsps.runs.files import only_one
from fedsps.runs.parallel import run_all

SAVED = {"rounds": 3, "checkpoint_seconds": 0.0, "algorithm": "feddecsps:clock=client"}


def saved(folder, **more):
    torch.manual_seed(0)
    return fedsps.train(torch.nn.Linear(4, 3).double(), make_clients(), checkpoint=folder, **(SAVED | more))


def test_an_edited_state_is_refused(tmp_path):
    saved(tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        notes, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["x"].view(torch.uint8)[0] ^= 1
    save_file(tensors, path, notes)
    before = path.read_bytes()
    with pytest.raises(fedsps.DataError, match="was changed since it was written: delete it to start again"):
        saved(tmp_path)
    assert path.read_bytes() == before, "it is for the user to delete"


def test_an_edited_history_is_refused(tmp_path):
    saved(tmp_path)
    path = tmp_path / "checkpoint.json"
    rows = json.loads(path.read_text())
    rows[1]["train_loss"] /= 2
    path.write_text(json.dumps(rows))
    with pytest.raises(fedsps.DataError, match=r"checkpoint.json beside it, was changed"):
        saved(tmp_path)


def test_one_that_was_not_edited_goes_on(tmp_path):
    first = saved(tmp_path)
    again = saved(tmp_path)
    assert first.history.equals(again.history), "also its seconds: no round was computed again"


def test_a_run_whose_disk_was_full_goes_on(tmp_path):
    """The system itself says that there is no space: what is written to /dev/full never fits."""

    def fill(row):
        if row["round"] == 3:
            (tmp_path / "checkpoint.json.partial").symlink_to("/dev/full")

    with pytest.raises(
        fedsps.DiskFullError,
        match=rf"no space left for checkpoint.json in {tmp_path}: make room there, then start the same again",
    ):
        saved(tmp_path, rounds=6, callback=fill)
    begun = []
    found = saved(tmp_path, rounds=6, callback=lambda row: begun.append(row["round"]))
    assert begun == [4, 5, 6], "from what was saved last"
    expected = saved(tmp_path / "straight", rounds=6)
    assert found.history.drop(columns="seconds").equals(expected.history.drop(columns="seconds"))


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path):
    saved(tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    refusal = f"another process trains this run in {tmp_path}: wait for it, or stop it"
    with only_one(tmp_path, ""), pytest.raises(fedsps.ConfigurationError, match=refusal):
        saved(tmp_path, rounds=5)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert len(saved(tmp_path, rounds=5).history) == 5, "the lock goes with its process"


def test_a_sweep_does_not_work_in_a_folder_that_another_process_holds(tmp_path):
    specs = [fedsps.Spec.of(f"fedsps:cap={cap}", rounds=3) for cap in (1.0, 2.0, 3.0)]
    held = tmp_path / specs[1].digest
    held.mkdir()
    with only_one(held, ""), pytest.raises(fedsps.FailedRunsError, match="another process trains this run") as caught:
        run_all(specs, tmp_path)
    assert [failure.what for failure in caught.value.failures] == ["fedsps cap=2 seed 0"]
    assert len(run_all(specs, tmp_path)) == 3
