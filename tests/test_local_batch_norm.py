"""FedBN: batch norm stays with its client, on every engine, in every evaluation, and in what a run leaves behind."""

import io
import json

import in_process
import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from conftest import make_clients
from safetensors.torch import load_file
from torch import nn

import fedsps
from fedsps.cli.main import main
from fedsps.core import streams

SIZES = (4, 8, 13, 21)
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def model(context=None, statistics=True):
    with streams.torch_seed(3, "test model"):
        norm = nn.BatchNorm1d(6, track_running_stats=statistics)
        return nn.Sequential(nn.Linear(4, 6, bias=False), norm, nn.ReLU(), nn.Linear(6, 3)).double()


def clients():
    return dict(zip("abcd", make_clients(sizes=SIZES), strict=True))


def plain_fedbn(rounds, steps, stepsize):
    """FedBN in plain torch, on whole batches: every client has a module, of which all but the norm is averaged."""
    modules = {name: model().train() for name in clients()}
    for _ in range(rounds):
        for name, (inputs, targets) in clients().items():
            optimiser = torch.optim.SGD(modules[name].parameters(), lr=1.0)
            for _ in range(steps):
                optimiser.zero_grad()
                loss = F.cross_entropy(modules[name](inputs), targets)
                loss.backward()
                norm_sq = sum((parameter.grad**2).sum() for parameter in modules[name].parameters())
                optimiser.param_groups[0]["lr"] = stepsize(loss.item(), norm_sq.item())
                optimiser.step()
        for key in ("0.weight", "3.weight", "3.bias"):
            mean = torch.stack([one.state_dict()[key] for one in modules.values()]).mean(0)
            for one in modules.values():
                one.state_dict()[key].copy_(mean)
    return modules


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("name", ["fedavg", "fedsps"])
def test_it_is_fedbn_in_plain_torch(name, engine):
    algorithm, stepsize = {
        "fedavg": (fedsps.FedAvg(client_stepsize=0.05), lambda loss, norm_sq: 0.05),
        "fedsps": (fedsps.FedSPS(scale=0.5, cap=0.7), lambda loss, norm_sq: min(loss / (0.5 * norm_sq), 0.7)),
    }[name]
    settings = {"rounds": 3, "local_steps": 2, "batch_size": None, "engine": engine}
    found = fedsps.train(model(), clients(), algorithm=algorithm, local_batch_norm=True, test=clients(), **settings)
    modules, losses, right = plain_fedbn(3, 2, stepsize), [], []
    for client, module in modules.items():
        ours = found.model_of(client).state_dict()
        for key, value in module.state_dict().items():
            torch.testing.assert_close(ours[key], value, **EXACT, msg=f"{client}: {key}")
        inputs, targets = clients()[client]
        outputs = module.eval()(inputs)
        losses.append(F.cross_entropy(outputs, targets).item())
        right += (outputs.argmax(1) == targets).tolist()
    assert found.clients["loss"].tolist() == pytest.approx(losses)
    assert found.clients["test_loss"].tolist() == pytest.approx(losses)
    assert found.final("train_loss") == pytest.approx(np.mean(losses))
    assert found.final("test_loss") == pytest.approx(np.average(losses, weights=SIZES))
    assert found.final("test_accuracy") == pytest.approx(np.mean(right))
    middle = torch.stack([module[1].running_mean for module in modules.values()]).mean(0)
    torch.testing.assert_close(found.model[1].running_mean, middle, **EXACT)  # what a new client starts from


def same(one, other):
    assert one.layers.keys() == other.layers.keys() != set()
    for key, value in one.layers.items():
        torch.testing.assert_close(value, other.layers[key], **EXACT, msg=key)
    for key, value in one.model.state_dict().items():
        torch.testing.assert_close(value, other.model.state_dict()[key], **EXACT, msg=key)
    pd.testing.assert_frame_equal(one.clients, other.clients, rtol=1e-8)


@pytest.mark.parametrize("name", ["fedsps", "feddecsps", "scaffold", "fedadam", "fedprox", "fedsps+topk"])
def test_engines_agree(name):
    settings = {"algorithm": name, "local_batch_norm": True, "rounds": 4, "batch_size": 6, "cohort": 3, "test": 0.2}
    stacked = fedsps.train(model(), clients(), engine="stacked", **settings)
    same(stacked, fedsps.train(model(), clients(), engine="loop", **settings))
    same(stacked, fedsps.train(model(), clients(), engine="loop", workers=2, **settings))
    same(stacked, fedsps.train(model(), clients(), engine="stacked", memory_limit=1, **settings))
    assert not torch.equal(stacked.layers["1.weight"][0], stacked.layers["1.weight"][1])


@pytest.mark.parametrize("cohort", [0, 3])
def test_nodes_keep_their_layers_and_score_by_them(cohort, tmp_path):
    data = list(clients().values())
    sent = []

    def look(partition, kind, reply):
        sent.append(reply.content)
        return reply

    grid = in_process.grid(tmp_path, data, model, look, test=data[1])
    found = in_process.run(grid, tmp_path, model=model, cohort=cohort, local_batch_norm=True)
    settings = {"algorithm": "fedsps", "rounds": 4, "batch_size": 5, "cohort": cohort or None}
    local = fedsps.train(model(), data, local_batch_norm=True, **settings)
    np.testing.assert_allclose(found.history["train_loss"], local.history["train_loss"], rtol=1e-9)
    for key in ("0.weight", "3.weight", "3.bias"):
        torch.testing.assert_close(found.model.state_dict()[key], local.model.state_dict()[key], **EXACT)
    torch.testing.assert_close(found.model[1].state_dict(), model()[1].state_dict(), msg="nothing of them came up")
    answers = [one.array_records["message"]["delta"].numpy() for one in sent if "message" in one.array_records]
    assert answers and not any(delta[24:36].any() for delta in answers)
    assert all(len(one.array_records["buffers"]) == 0 for one in sent if "buffers" in one.array_records)
    paths = {int(path.parent.name): path for path in (tmp_path / "states").rglob("*.safetensors")}
    assert {path.name for path in paths.values()} == {"layers.safetensors"}
    for number in range(4):
        for key, value in load_file(paths[number]).items():
            torch.testing.assert_close(value, local.layers[key][number], **EXACT)
    judged = local.model_of("0")  # all nodes were given the same test samples; each judges them by its own layers
    scores = [F.cross_entropy(local.model_of(str(one))(data[1][0]), data[1][1]).item() for one in range(4)]
    assert judged is not local.model
    assert found.final("client_test_loss") == pytest.approx(np.mean(scores))


@pytest.mark.parametrize("after", [1, 6])
def test_a_federation_goes_on_with_the_layers_of_its_nodes(after, tmp_path):
    data, settings = list(clients().values()), {"model": model, "local_batch_norm": True, "cohort": 3}
    whole = in_process.run(in_process.grid(tmp_path / "whole", data, model), tmp_path / "whole", **settings)
    grid = in_process.grid(tmp_path, data, model, in_process.crash_after(after))
    with pytest.raises(in_process.CrashError):
        in_process.run(grid, tmp_path, **settings)
    grid.spoil = None
    resumed = in_process.run(grid, tmp_path, **settings)
    assert torch.equal(in_process.weights(whole), in_process.weights(resumed))
    pd.testing.assert_frame_equal(whole.history.drop(columns="seconds"), resumed.history.drop(columns="seconds"))


def test_differential_privacy_takes_batch_norm_that_stays_local(tmp_path):
    private = {"clip_norm": 1.0, "noise_multiplier": 0.1, "model": model}
    data = list(clients().values())
    with pytest.raises(
        fedsps.ConfigurationError, match=r"this one has 1\.num_batches_tracked: .* \(local-batch-norm\)"
    ):
        in_process.run(in_process.grid(tmp_path, data, model), tmp_path, **private)
    found = in_process.run(in_process.grid(tmp_path, data, model), tmp_path, local_batch_norm=True, **private)
    assert len(found.history) == 4 and len(list((tmp_path / "states").rglob("layers.safetensors"))) == 4


def test_what_a_server_cannot_do_with_layers_that_it_never_sees(tmp_path):
    data = list(clients().values())
    for settings, words in (
        ({"test": data[0]}, "leave its test data out, and give the clients theirs"),
        ({"restore_best": True}, "restore-best is not for local-batch-norm"),
    ):
        with pytest.raises(fedsps.ConfigurationError, match=words):
            in_process.run(
                in_process.grid(tmp_path, data, model), tmp_path, model=model, local_batch_norm=True, **settings
            )


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_model_without_batch_norm_is_trained_as_ever(engine):
    settings = {"algorithm": "fedsps", "rounds": 3, "engine": engine, "test": 0.2, "batch_size": 5}
    plain = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)).double()
    before = fedsps.train(plain, clients(), **settings)
    with pytest.warns(UserWarning, match="has no batch-norm layer"):
        after = fedsps.train(plain, clients(), local_batch_norm=True, **settings)
    for key, value in before.model.state_dict().items():
        assert torch.equal(value, after.model.state_dict()[key])
    pd.testing.assert_frame_equal(before.history.drop(columns="seconds"), after.history.drop(columns="seconds"))


@pytest.mark.parametrize("restore_best", [False, True])
def test_it_goes_on_bitwise_from_a_checkpoint(restore_best, tmp_path):
    settings = {"local_batch_norm": True, "batch_size": 5, "cohort": 3, "restore_best": restore_best, "test": 0.3}
    settings |= {"monitor": "test_accuracy"} if restore_best else {}
    whole = fedsps.train(model(), clients(), rounds=6, **settings)
    fedsps.train(model(), clients(), rounds=3, checkpoint=tmp_path, **settings)
    resumed = fedsps.train(model(), clients(), rounds=6, checkpoint=tmp_path, **settings)
    for key, value in whole.layers.items():
        assert torch.equal(value, resumed.layers[key])
    pd.testing.assert_frame_equal(whole.clients, resumed.clients)
    if restore_best:
        _, best = whole.best("test_accuracy")
        short = fedsps.train(model(), clients(), rounds=best, **settings)
        assert best < 6
        for key, value in short.layers.items():
            assert torch.equal(value, whole.layers[key])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mime", "also sends full_gradient"),
        ("local-amsgrad", "also sends local_m"),
        ("fedsps-global:formula=c", "also sends local_gradient"),
        ("fedexp", "goes with the last iterate"),
        ("fedsps+polyaverage", "goes with the last iterate"),
    ],
)
def test_algorithms_that_would_carry_the_layers_to_others_are_refused(name, words):
    with pytest.raises(fedsps.ConfigurationError, match=words):
        fedsps.train(model(), clients(), algorithm=name, rounds=1, local_batch_norm=True)


def test_test_data_of_nobody_are_judged_as_by_a_new_client():
    inputs, targets = make_clients(seed=5)[4]
    found = fedsps.train(model(), clients(), rounds=2, local_batch_norm=True, test=(inputs, targets))
    assert found.final("test_loss") == pytest.approx(F.cross_entropy(found.model(inputs), targets).item())


def test_the_layers_are_saved_with_the_run_and_predict_for_their_client(tmp_path):
    found = fedsps.train(model(), clients(), rounds=3, local_batch_norm=True)
    found.save(tmp_path)
    read = fedsps.load(tmp_path, model())
    inputs = clients()["b"][0]
    for one in (found, read):
        shown = one.predict(inputs, client="b")[["p(0)", "p(1)", "p(2)"]].to_numpy()
        np.testing.assert_allclose(shown, one.model_of("b")(inputs).softmax(1).detach().numpy())
        assert not np.allclose(shown, one.predict(inputs)[["p(0)", "p(1)", "p(2)"]].to_numpy())
    with pytest.raises(fedsps.ConfigurationError, match="unknown client 'e'"):
        read.predict(inputs, client="e")
    fedsps.train(model(), clients(), rounds=1).save(tmp_path)
    assert fedsps.load(tmp_path, model()).layers == {}
    tuned = fedsps.personalise(found, clients(), steps=1, test=clients(), algorithm="fedavg:client_stepsize=1e-9")
    assert tuned.table["common_loss"].tolist() == pytest.approx(found.clients["loss"].tolist())
    for client, one in tuned.models.items():
        torch.testing.assert_close(one[1].weight, found.model_of(client)[1].weight, rtol=1e-6, atol=1e-6)


def test_runs_with_own_layers_are_no_sweep():
    """Batch norm without statistics has no buffers, which would keep it from sweeps."""
    bare = model(statistics=False)
    settings = {"rounds": 2, "seeds": 2, "local_batch_norm": True}
    found = fedsps.compare(["fedavg:client_stepsize=0.1/0.2"], model=bare, clients=list(clients().values()), **settings)
    runs = [run for line in found.results.values() for run in line]
    assert len(runs) == 4
    assert all(run.layers["1.weight"].shape == (4, 6) and "sweep" not in run.provenance for run in runs)


MODEL = """
from torch import nn


def net():
    return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
"""


def test_a_table_from_training_to_predictions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"site": ["north", "south"] * 60, "dose": random.normal(0, 1, 120), "age": random.random(120)})
    frame["ill"] = np.where(frame["dose"] > 0, "yes", "no")
    frame.loc[frame["site"] == "south", "dose"] = -3 - 2 * frame["dose"]
    frame.to_csv("patients.csv", index=False)

    def fed(*words):
        monkeypatch.setattr("sys.argv", ["fedsps", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out

    data = ["--data", "patients.csv", "--client-column", "site", "--target-column", "ill"]
    fed("train", "fedsps", *data, "--model", "mine.py:net", "--rounds", "8", "--local-batch-norm")
    (folder,) = (tmp_path / "runs").iterdir()
    result = fedsps.load(folder)
    assert result.spec.plan.local_batch_norm and result.layers["0.running_mean"].shape[0] == 2
    shown = json.loads(fed("evaluate", str(folder), "--json"))
    for row, (_, kept) in zip(shown["clients"], result.clients.iterrows(), strict=True):
        assert row["loss"] == pytest.approx(kept["loss"]) and row["test_loss"] == pytest.approx(kept["test_loss"])
    assert shown["train_loss"] == pytest.approx(result.final("train_loss"))
    assert shown["test_loss"] == pytest.approx(result.final("test_loss"))
    pd.concat([frame.head(4), frame.head(2).assign(site="east")]).to_csv("new.csv", index=False)
    said = pd.read_csv(io.StringIO(fed("predict", str(folder), "new.csv")))
    for row, client in enumerate(["north", "south", "north", "south"]):
        own = result.predict(frame.iloc[[row]], client=client)
        assert said["p(yes)"][row] == pytest.approx(own["p(yes)"][0])
    new = result.predict(frame.head(2).drop(columns="site"))["p(yes)"]  # nobody's: what a new client starts from
    assert said["p(yes)"][4:].tolist() == pytest.approx(new.tolist())
    by_client = json.loads(fed("evaluate", str(folder), "--data", "patients.csv", "--json"))
    south = frame[frame["site"] == "south"]
    right = (result.predict(south)["prediction"].to_numpy() == south["ill"].to_numpy()).mean()
    assert by_client["clients"][1]["accuracy"] == pytest.approx(right)
