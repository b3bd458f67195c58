"""Inputs that people have: loaders, data frames, dictionaries, single columns, losses by name; and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from conftest import make_clients
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedsps


def net():
    torch.manual_seed(0)
    return nn.Linear(4, 3).double()


def losses(clients, **settings):
    return fedsps.train(net(), clients, rounds=2, **settings).history["train_loss"].tolist()


def test_loaders_frames_and_dictionaries_are_what_they_hold():
    clients = make_clients()
    expected = losses(clients)
    assert losses([DataLoader(TensorDataset(*pair), batch_size=2, shuffle=True) for pair in clients]) == expected
    assert losses([(pd.DataFrame(x.numpy()), pd.Series(y.numpy())) for x, y in clients]) == expected
    named = {f"site {number}": pair for number, pair in enumerate(clients)}
    assert losses(named) == expected
    assert losses(clients, algorithm="fedpolyak", loss=nn.CrossEntropyLoss) == expected
    assert losses(clients, loss="cross-entropy") == expected


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("loss", ["squared", nn.MSELoss(), "binary", F.l1_loss])
def test_a_single_column_of_outputs_goes_with_targets_without_one(loss, engine):
    clients = [(x, (y > 0).double()) for x, y in make_clients()]
    column = nn.Linear(4, 1).double()
    result = fedsps.train(column, clients, loss=loss, rounds=2, engine=engine, test=clients[0])
    flat = fedsps.train(
        nn.Sequential(column, nn.Flatten(0)), clients, loss=loss, rounds=2, engine=engine, test=clients[0]
    )
    for name in ("train_loss", "test_loss"):
        np.testing.assert_allclose(flat.history[name], result.history[name], rtol=1e-12)
    assert "prediction" in result.predict(clients[0][0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "hinge"}, "unknown loss 'hinge'"),
        ({"loss": 3}, "loss must be a function of outputs and targets, or one of cross-entropy"),
        ({"loss": nn.NLLLoss()}, r"takes log-probabilities.*LogSoftmax\(1\), or use the cross-entropy"),
        ({"test": 3}, "test must be data, or a share above 0 and below 1; got 3"),
    ],
)
def test_what_is_refused_says_what_to_write(settings, message):
    with pytest.raises(fedsps.ConfigurationError, match=message):
        fedsps.train(net(), make_clients(), rounds=1, **settings)


def test_a_data_frame_alone_is_sent_to_table():
    with pytest.raises(fedsps.DataError, match=r"fedsps.data.Table\(frame, client=..., target=...\)"):
        fedsps.train(net(), pd.DataFrame({"a": [1.0]}))
    with pytest.raises(fedsps.DataError, match="client 'north'"):
        fedsps.train(net(), {"north": 3})


def test_nll_of_log_probabilities_is_taken():
    model = nn.Sequential(net(), nn.LogSoftmax(1))
    result = fedsps.train(model, make_clients(), loss=nn.NLLLoss(), rounds=1)
    assert result.data["outputs"] == "classes"


def test_a_module_of_a_file_is_a_model_and_a_file_alone_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from torch import nn\nnet = nn.Linear(64, 10)\n")
    result = fedsps.run(fedsps.Spec.of("fedsps", model="mine.py:net", rounds=1), tmp_path)
    assert result.final("train_loss") < result.start_loss
    with pytest.raises(fedsps.ConfigurationError, match="'mine.py'.* names a file: write mine.py:name"):
        fedsps.Spec.of("fedsps", model="mine.py")
    (tmp_path / "afile").touch()
    with pytest.raises(fedsps.ConfigurationError, match="runs must be a folder; 'afile' is a file"):
        fedsps.run(fedsps.Spec.of("fedsps", rounds=1), "afile")


def test_personalised_models_fit_their_client_and_the_common_one_stays():
    common = fedsps.train(net(), make_clients(), rounds=2)
    before = common.model.weight.detach().clone()
    found = fedsps.personalise(common, make_clients(), steps=5, test=make_clients())
    assert torch.equal(common.model.weight, before)
    inputs, targets = make_clients()[2]
    expected = {
        "common_loss": F.cross_entropy(common.model(inputs), targets).item(),
        "personalised_loss": F.cross_entropy(found.models["2"](inputs), targets).item(),
    }
    for name, value in expected.items():
        assert found.table[name][2] == pytest.approx(value)
    with pytest.raises(fedsps.DataError, match="test has 2 clients, and clients has 5"):
        fedsps.personalise(common, make_clients(), test=make_clients()[:2])


def test_held_out_data_of_each_client_may_be_a_list():
    clients = make_clients()
    by_list = fedsps.train(nn.Linear(4, 3).double(), clients, test=clients, validation=clients[::-1], rounds=1)
    assert by_list.clients["test_loss"].tolist() == by_list.clients["loss"].tolist()
    assert by_list.clients["validation_loss"].tolist() != by_list.clients["loss"].tolist()
    inputs, targets = clients[0]
    whole = fedsps.train(nn.Linear(4, 3).double(), clients, test=[inputs, targets], rounds=1)
    assert "test_loss" not in whole.clients and whole.history["test_loss"].notna().all()


def test_held_out_data_go_by_the_names_of_the_clients():
    first, second, third = make_clients()[:3]
    clients = {"north": first, "south": second, "east": third}
    start = nn.Linear(4, 3).double()
    result = fedsps.train(start, clients, test={"east": third, "north": first}, validation=dict([*clients.items()][::-1]), rounds=1)  # fmt: skip
    table = result.clients.set_index("client")
    assert table["validation_loss"].tolist() == pytest.approx(table["loss"].tolist())
    assert table["test_loss"].isna().tolist() == [False, True, False] and table.loc["south", "test_samples"] == 0
    assert table.loc["east", "test_loss"] == pytest.approx(table.loc["east", "loss"])
    own = fedsps.personalise(result, clients, test={"east": third, "south": second, "north": first}, steps=2)
    assert own.table["samples"].tolist() == [len(pair[1]) for pair in clients.values()]
    assert own.table["common_loss"].tolist() == pytest.approx(table["loss"].tolist())
    with pytest.raises(fedsps.DataError, match="test has data of 'west', which is no client: .*north, south, east"):
        fedsps.train(start, clients, test={"west": first}, rounds=1)
    compared = fedsps.compare(["fedsps"], model=start, clients=clients, test=0.2, rounds=1)
    assert compared.table["final_test_accuracy"].notna().all()


def test_a_frame_of_whole_numbers_and_truth_values_is_one_of_numbers():
    frame = pd.DataFrame({"age": [30, 40, 50, 60], "smoker": [True, False, True, False]})
    whole = pd.DataFrame({"age": [31, 41], "smoker": [0, 1]})
    targets = pd.Series([0, 1, 0, 1])
    start = nn.Linear(2, 2)
    result = fedsps.train(start, [(frame, targets), (whole, targets[:2])], rounds=1)
    numbers = [(frame.to_numpy(float), targets), (whole.to_numpy(float), targets[:2])]
    assert result.history["train_loss"].equals(fedsps.train(start, numbers, rounds=1).history["train_loss"])
    assert result.predict(frame).equals(result.predict(frame.to_numpy(float)))
    with pytest.raises(fedsps.DataError, match=r"holds words .* result.predict\(table.columns\(frame\)\)"):
        result.predict(frame.assign(smoker="yes"))


@pytest.mark.parametrize(
    ("inputs", "targets", "settings", "message"),
    [
        (torch.ones(6, 4).long(), torch.arange(6) % 3, {}, r"give floats, inputs.float\(\)"),
        (torch.ones(6, 4), torch.arange(6) % 3 * 1.0, {}, r"takes class numbers, targets.long\(\)"),
        (torch.ones(6, 4), (torch.arange(6) % 3)[:, None], {}, r"targets\[:, 0\]"),
        (torch.ones(6, 4), torch.arange(6) % 2, {"loss": "binary"}, r"nn.Linear\(..., 1\)"),
    ],
)
def test_a_batch_that_cannot_be_taken_says_what_to_write(inputs, targets, settings, message):
    with pytest.raises(fedsps.ConfigurationError, match=message):
        fedsps.train(nn.Linear(4, 3), [(inputs, targets)], rounds=1, **settings)


def test_a_single_sample_is_not_taken_for_several():
    result = fedsps.train(nn.Linear(4, 3).double(), make_clients(), rounds=1)
    sample = make_clients()[0][0][0]
    with pytest.raises(fedsps.DataError, match=r"give a single sample as inputs\[None\]"):
        result.predict(sample)
    assert len(result.predict(sample[None], client=0)) == 1  # a number is a name, where clients have no other


def test_words_in_a_frame_of_inputs_lead_to_the_table():
    frame = pd.DataFrame({"sex": ["f", "m"], "age": [30, 40]})
    with pytest.raises(fedsps.DataError, match="client 0's samples .* by fedsps.data.Table"):
        fedsps.train(nn.Linear(2, 2), [(frame, [0, 1])], rounds=1)


def test_a_batch_of_one_under_batch_norm_says_what_to_do():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    with pytest.raises(fedsps.ConfigurationError, match="a batch of client 0 .*: raise batch_size, leave such clients"):
        fedsps.train(model, make_clients(sizes=(1, 5)), rounds=1)


def test_a_model_function_with_arguments_is_told_that_it_gets_none(tmp_path):
    (tmp_path / "mine.py").write_text("def net(shape):\n    return None\n")
    with pytest.raises(fedsps.ConfigurationError, match="it is called without arguments, and must return a module"):
        fedsps.run(fedsps.Spec.of("fedsps", model=f"{tmp_path / 'mine.py'}:net", rounds=1), tmp_path / "runs")
