"""Tables at sites: one exchange of sums, after which each site's rows become inputs as if all were in one table."""

import json

import in_process
import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Context, RecordDict
from test_policy import under
from torch import nn

import fedsps
from fedsps.core import streams
from fedsps.data import Columns
from fedsps.errors import ConfigurationError
from fedsps.flower import SiteData, SiteTable, client_app, columns_of, server_app
from fedsps.flower import server as servers


def rows(site):
    """A site's patients: other words, sizes and gaps at each."""
    random = np.random.default_rng(site)
    size = 30 + 5 * site
    frame = pd.DataFrame(
        {
            "patient": np.arange(1000, 1000 + size),
            "age": random.normal(50 + 10 * site, 9, size).round(),
            "income": random.normal(3e4, 9e3, size),
            "smoker": random.choice(["no", "yes", f"former {site}"], size),
        }
    )
    frame["ill"] = np.where(frame["age"] + random.normal(0, 5, size) > 55, "yes", "no")
    if site == 1:
        frame.loc[::7, "income"] = np.nan
    return frame


def model(context):
    with streams.torch_seed(3, "test model"):
        return nn.Linear(len(columns_of(context).features), len(columns_of(context).classes)).double()


def site_table(context):
    return SiteTable(rows(context.node_config["partition-id"]), target="ill", drop=["patient"])


def grid(folder, data=site_table):
    return in_process.Grid(client_app(model, data), 3, folder / "states")


def serve(grid, folder, monkeypatch, **config):
    """The server's app, as Flower would start it; its result."""
    config = {"dtype": "float64", "rounds": 3, "deadline": 5.0, "runs": str(folder / "runs")} | config
    grid.config = {name.replace("_", "-"): value for name, value in config.items()}
    kept, federate = [], servers.federate
    monkeypatch.setattr(servers, "federate", lambda *given: kept.append(federate(*given)))
    server_app(model, table=True)(grid, Context(1, 0, {}, RecordDict(), dict(grid.config)))
    return kept[0]


def parts(number):
    """A site's training and test rows, as `fedsps.data.Table` splits them."""
    table = fedsps.data.Table(rows(number), target="ill", drop=["patient"])
    return table.frame.iloc[table.train], table.frame.iloc[table.test]


def test_it_is_the_training_on_one_table_of_all_sites(tmp_path, monkeypatch, capsys):
    found = serve(grid(tmp_path), tmp_path, monkeypatch)
    columns = Columns.of(pd.concat([parts(site)[0] for site in range(3)]), "ill", drop=["patient"])
    assert found.columns.features == columns.features and found.columns.classes == ("no", "yes")
    assert "income is missing" in columns.features and "smoker=former 2" in columns.features
    for ours, theirs in zip(found.columns.inputs, columns.inputs, strict=True):
        if hasattr(ours, "mean"):
            assert (ours.mean, ours.std) == pytest.approx((theirs.mean, theirs.std))
    sites = [tuple(map(torch.from_numpy, (columns(one), columns.targets(one)))) for one, _ in map(parts, range(3))]
    context = Context(1, 0, {}, RecordDict(), {"table.columns": json.dumps(columns.json())})
    with streams.torch_seed(0, "model"):
        local = fedsps.train(model(context), [(x.double(), y) for x, y in sites], rounds=3)
    torch.testing.assert_close(found.model.weight, local.model.weight, rtol=1e-6, atol=1e-7)
    assert found.history["client_test_accuracy"].notna().all()
    read = fedsps.load(tmp_path / "runs" / found.spec.digest, model(context))
    assert set(read.predict(rows(1))["prediction"]) <= {"no", "yes"}
    assert "the tables of 3 clients: 8 inputs, 2 classes" in capsys.readouterr().out


def test_what_leaves_a_site_is_sums_and_words(tmp_path, monkeypatch):
    sent = []
    one = grid(tmp_path)

    def look(partition, kind, reply):
        sent.extend([reply.content] if kind == "query.table" else [])
        return reply

    one.spoil = look
    serve(one, tmp_path, monkeypatch, rounds=1)
    assert [kind for kind, _ in one.asked[:7]] == ["query.table"] * 3 + ["query"] * 3 + ["train.train"]
    told = [json.loads(content.config_records["facts"]["sums"]) for content in sent]
    assert all(site["columns"].keys() == {"patient", "age", "income", "smoker"} for site in told)
    assert all(site["columns"]["patient"] == {} for site in told), "nothing of a dropped column"
    assert all(site["columns"]["age"].keys() == {"count", "gaps", "sum", "squares", "words"} for site in told)
    assert not any(content.array_records for content in sent)


@pytest.mark.parametrize(
    ("rules", "settings", "words"),
    [
        ({"table_sums": "false"}, {}, "the policy of this site tells no sums of its table"),
        ({"table_sums": 3}, {}, "table-sums cannot be 3"),
        ({}, {"clip_norm": 1.0, "noise_multiplier": 1.0}, "ConfigurationError, see the log of the client"),
    ],
)
def test_a_site_may_refuse_to_tell(rules, settings, words, tmp_path, monkeypatch):
    one = under(grid(tmp_path), tmp_path, **rules)
    with pytest.raises(ConfigurationError, match=f"node 100 cannot take part: .*{words}"):
        serve(one, tmp_path, monkeypatch, **settings)


def test_columns_that_were_agreed_on_need_no_exchange(tmp_path, monkeypatch):
    columns = Columns.of(pd.concat([parts(site)[0] for site in range(3)]), "ill", drop=["patient"])
    one = under(grid(tmp_path), tmp_path, table_sums="false")
    found = serve(one, tmp_path, monkeypatch, **{"table.columns": json.dumps(columns.json())})
    assert found.columns == columns and "query.table" not in {kind for kind, _ in one.asked}


def told(change):
    def spoil(partition, kind, reply):
        if kind == "query.table" and partition == 1:
            facts = reply.content.config_records["facts"]
            content = json.loads(facts["sums"])
            change(content)
            facts["sums"] = json.dumps(content)
        return reply

    return spoil


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda site: site.pop("columns"), r"client 1: the sums of its table cannot be used \(KeyError\)"),
        (lambda site: site["columns"]["age"].update(sum=float("inf")), "client 1: the sums of its table"),
        (lambda site: site["columns"]["age"].update(squares=0.0), "client 1: the sums of its table"),
        (lambda site: site["columns"]["age"].update(count=-4), "client 1: the sums of its table"),
        (lambda site: site["columns"].update(more={}), "do not go together: sites have different columns"),
        (lambda site: site["columns"]["age"].update(words=["old"]), "'age' holds words at one site and numbers"),
    ],
)
def test_sums_that_cannot_be_are_refused_by_name(change, words, tmp_path, monkeypatch):
    one = grid(tmp_path)
    one.spoil = told(change)
    with pytest.raises(ConfigurationError, match=words):
        serve(one, tmp_path, monkeypatch)


def test_what_is_no_table_says_so(tmp_path, monkeypatch):
    plain = SiteData((torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(ConfigurationError, match=r"asks for a table \(table=True\); the data are SiteData"):
        serve(grid(tmp_path, lambda context: plain), tmp_path, monkeypatch)
    with pytest.raises(ConfigurationError, match="the run has no table.columns: make the server by"):
        columns_of(Context(1, 0, {}, RecordDict(), {}))
