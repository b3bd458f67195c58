"""Tables as they are in life: ids, categories, gaps, sizes, separators, encodings; and what is saved of them."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedsps
from fedsps.cli.main import app
from fedsps.data import Columns, Table, sums
from fedsps.data.columns import MOST_CATEGORIES, looks_like
from fedsps.data.read import read_frame


def patients(rows=120, seed=0):
    """Three hospitals: an id, categories, gaps, numbers of very different size, a label in words."""
    random = np.random.default_rng(seed)
    age, income = random.integers(20, 90, rows), random.lognormal(10, 0.5, rows).round(2)
    smoker = random.choice(["never", "former", "daily"], rows)
    score = (age - 55) / 15 + 1.5 * (smoker == "daily") + random.normal(0, 0.5, rows)
    frame = pd.DataFrame(
        {
            "patient_id": random.permutation(rows) + 5000,
            "hospital": random.choice(["north", "south", "east"], rows),
            "age": age.astype(float),
            "smoker": smoker,
            "income": income,
            "ill": np.where(score > 0, "yes", "no"),
        }
    )
    frame.loc[random.random(rows) < 0.15, "age"] = np.nan
    frame.loc[random.random(rows) < 0.1, "smoker"] = None
    return frame


def test_all_findings_come_at_once():
    table = Table(patients(), target="ill", client="hospital")
    found = "\n".join(table.findings)
    for words in ("'patient_id' has another value in every row: an id: left out", "'smoker' holds words: 3 categories",
                  r"'age' has", "filled with the mean, and marked", "2 columns of numbers", "are standardised"):  # fmt: skip
        assert words in found
    assert table.columns.features == [
        "age", "age is missing", "smoker=daily", "smoker=former", "smoker=never", "income",
    ]  # fmt: skip
    roles = table.look.set_index("column")["role"]
    assert roles.to_dict() == {
        "patient_id": "left out", "hospital": "client", "age": "input", "smoker": "input", "income": "input", "ill": "target",
    }  # fmt: skip


def test_columns_are_fitted_to_the_training_rows_alone():
    frame = patients()
    table = Table(frame, target="ill", client="hospital")
    inputs = table.columns(frame.iloc[table.train])
    assert inputs[:, 5].mean() == pytest.approx(0, abs=1e-6) and inputs[:, 5].std() == pytest.approx(1, abs=1e-5)
    train = frame.iloc[table.train]
    age = (train["age"] - train["age"].mean()) / train["age"].std(ddof=0)
    np.testing.assert_allclose(inputs[:, 0], age.fillna(0), atol=1e-6)
    np.testing.assert_array_equal(inputs[:, 1], train["age"].isna())
    changed = frame.copy()
    changed.loc[table.test, "income"] = 1e9
    changed.loc[table.test, "smoker"] = "rarely"
    assert Table(changed, target="ill", client="hospital").columns == table.columns


def test_the_sums_of_sites_give_what_their_rows_together_give():
    frame = patients()
    sites = [own for _, own in frame.groupby("hospital")]
    together = Columns.of(frame, "ill", client="hospital")
    told = [json.loads(json.dumps(sums(own, "ill", client="hospital"))) for own in sites]
    added = Columns.from_sums(told)
    assert added.features == together.features and added.classes == together.classes == ("no", "yes")
    np.testing.assert_allclose(added(frame), together(frame), atol=1e-6)
    with pytest.raises(fedsps.DataError, match="sites have different columns"):
        Columns.from_sums([told[0], sums(sites[1].drop(columns="age"), "ill", client="hospital")])
    words = sites[1].assign(income="high")
    with pytest.raises(fedsps.DataError, match="'income' holds words at one site and numbers at another"):
        Columns.from_sums([told[0], sums(words, "ill", client="hospital")])


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("Unnamed: 0", range(12), "has no name: an index"),
        ("row", range(3, 15), "counts the rows: an index"),
        ("record_id", range(0, 24, 2), "has another value in every row: an id"),
        ("PatientID", range(0, 24, 2), "has another value in every row: an id"),
        ("patientid", range(0, 24, 2), "has another value in every row: an id"),
        ("patient_id", [number // 2 for number in range(120)], "is called an id, and has 60 different values"),
        ("department_id", [number % 12 for number in range(120)], ""),
        ("acid", [number // 2 for number in range(120)], ""),
        ("income", range(0, 24, 2), ""),
        ("name", [f"Anna {number}" for number in range(12)], "has another value in every row: an id"),
        ("notes", [f"word {number % 60}" for number in range(120)], "has 60 different words: too many for categories"),
        ("nothing", [np.nan] * 12, "is empty"),
        ("sex", ["f", "m"] * 6, ""),
        ("short", ["a", "b", "c"], ""),
    ],
)
def test_what_looks_like_no_input(name, values, why):
    assert MOST_CATEGORIES < 60
    assert looks_like(pd.Series(list(values), name=name)) == why


def test_odd_values():
    frame = pd.DataFrame({
        "age": ["30", "50", "unknown", "40"] * 5, "always": [7] * 20, "seen": pd.to_datetime(["2020-01-01", "2020-03-05"] * 10),
        "smokes": [True, False] * 10, "size": [1.0, np.inf, 3.0, 4.0] * 5, "y": [0.0, 1.0] * 10,
    })  # fmt: skip
    with pytest.raises(fedsps.DataError, match="unknown column 'none'"):
        Table(frame, target="y", drop=["none"])
    table = Table(frame.assign(age=["30"] * 9 + ["unknown"] + ["50"] * 10), target="y")
    assert [one.name for one in table.columns.inputs] == ["age", "seen", "smokes", "size"]
    assert table.columns.left_out == {"always": "has one value alone"}
    assert table.columns.classes == ("0", "1"), "1.0 is 1"
    assert np.isfinite(table.columns(frame)).all()
    assert Table(frame, target="y", drop=["age"], regression=True).columns.classes == ()


def test_rows_without_a_target_or_client_are_left_out_and_counted():
    frame = patients().reset_index(drop=True)
    frame.loc[[3, 7], "ill"] = None
    frame.loc[9, "hospital"] = None
    table = Table(frame, target="ill", client="hospital")
    assert len(table.frame) == 117
    assert "column 'ill' has no value in 2 rows, the first is sample 3: left out" in table.findings
    assert any("'hospital' has no value in 1 row" in one for one in table.findings)


def test_a_client_has_one_name_whether_or_not_others_have_gaps():
    frame = patients().assign(hospital=lambda rows: rows["hospital"].map({"north": 1, "south": 2, "east": 3}))
    frame.loc[0, "hospital"] = np.nan  # pandas makes floats of all of them
    assert list(Table(frame, target="ill", client="hospital").clients) == ["1", "2", "3"]


def test_a_client_of_a_single_row_is_trained_on_and_not_tested():
    frame = patients()
    frame.loc[0, "hospital"] = "cottage"
    table = Table(frame, target="ill", client="hospital")
    assert "cottage" in table.clients and "cottage" not in table.held_out
    net = nn.Linear(len(table.columns.features), 2)
    by_client = fedsps.train(net, table.clients, test=table.held_out, rounds=1).clients.set_index("client")
    assert by_client["test_samples"].to_dict() == {"cottage": 0} | {
        name: len(targets) for name, (_, targets) in table.held_out.items()
    }


def test_a_regression_needs_numbers():
    """A word among its targets is a gap; before, the run took it for NaN, and diverged in its first round."""
    frame = patients().assign(ill=lambda rows: rows["income"].astype(object))
    frame.loc[3, "ill"], frame.loc[4, "ill"] = "unknown", np.inf
    table = Table(frame, target="ill", client="hospital")
    assert len(table.frame) == len(frame) - 2 and not table.columns.classes
    assert "column 'ill' has no number in 2 rows, the first is sample 3: left out" in table.findings
    assert all(np.isfinite(targets).all() for _, targets in table.clients.values())
    with pytest.raises(fedsps.DataError, match="'ill' has no number in sample 3"):
        table.columns.targets(frame)
    with pytest.raises(
        fedsps.DataError, match=r"target 'ill' holds words, and a regression \(loss squared\) needs numbers"
    ):
        Table(patients(), target="ill", client="hospital", regression=True)


def test_words_and_gaps_that_come_later():
    frame = patients()
    columns = Columns.of(frame, "ill", drop=["patient_id", "hospital"])
    new = pd.DataFrame({"age": [None], "smoker": ["rarely"], "income": [20000.0]})
    assert columns(new)[0][:5].tolist() == [0, 1, 0, 0, 0]
    with pytest.raises(fedsps.DataError, match="no column 'age', 'smoker', which the model was trained on"):
        columns(new[["income"]])
    with pytest.raises(fedsps.DataError, match="column 'income' holds words"):
        columns(new.assign(income="much"))
    with pytest.raises(fedsps.DataError, match="column 'ill' has 'perhaps'; the classes are no, yes"):
        columns.targets(frame.assign(ill="perhaps"))
    for damage in ({}, {"inputs": [{"kind": "number"}]}, {"inputs": 3}):
        with pytest.raises(fedsps.DataError, match="damaged"):
            Columns.from_json(columns.json() | damage if damage else {})


# Files

TEXT = "site;äge;dose;ill\n" + "".join(f"{'ns'[row % 2]};{30 + row % 9};{row % 7},5;{row % 2}\n" for row in range(20))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_semicolons_decimal_commas_and_encodings(encoding, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_bytes(TEXT.encode(encoding))
    frame, notes = read_frame(path)
    assert list(frame) == ["site", "äge", "dose", "ill"]
    assert frame["dose"].tolist() == [row % 7 + 0.5 for row in range(20)]
    assert "its values are separated by semicolons" in notes and "column 'dose' has decimal commas" in notes
    assert any("Latin-1" in note for note in notes) == (encoding == "latin-1")


def test_tabs_bars_thousands_and_quotes(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("a\tb\n1.234,5\t0\n-2,0\t1\n")
    assert read_frame(path)[0]["a"].tolist() == [1234.5, -2.0]
    path.write_text('a,b,c\n"x, y",1,?\n"z",2,5\n')
    frame, notes = read_frame(path)
    assert frame["a"].tolist() == ["x, y", "z"] and frame["c"].isna().tolist() == [True, False] and notes == []


def test_decimal_commas_beside_words_and_small_numbers(tmp_path):
    path = tmp_path / "mine.csv"
    values = [f"{number},5" for number in range(18)] + ["9,3e-05", "unknown"]
    path.write_text("dose;ill\n" + "".join(f"{value};{number % 2}\n" for number, value in enumerate(values)))
    table = Table.read(path)
    assert "column 'dose' has decimal commas" in table.findings
    assert table.frame["dose"].tolist()[-3:] == [17.5, 9.3e-05, "unknown"]
    assert any("'dose' has 0 gaps, and 1 that are no finite numbers" in one for one in table.findings)
    path.write_text('dose,n,ill\n"3,75","1,234",0\n"0,5","2,5",1\n')
    frame, notes = read_frame(path)
    assert frame["dose"].tolist() == [3.75, 0.5] and notes == ["column 'dose' has decimal commas"]
    assert frame["n"].tolist() == ["1,234", "2,5"], "a thousand, or a little more than one: nobody knows"


def test_lists_of_a_parquet_file_are_words(tmp_path):
    patients().assign(codes=[[1, number % 3] for number in range(120)]).to_parquet(tmp_path / "mine.parquet")
    table = Table.read(tmp_path / "mine.parquet", client="hospital", target="ill")
    assert table.look.set_index("column").loc["codes", "becomes"] == "3 inputs"


def test_excels_line_about_the_separator_is_no_header(tmp_path):
    (tmp_path / "mine.csv").write_text("sep=;\na;b\n1,5;2\n")
    assert read_frame(tmp_path / "mine.csv")[0].to_dict("list") == {"a": [1.5], "b": [2]}
    (tmp_path / "mine.npz").write_bytes(b"")
    with pytest.raises(fedsps.DataError, match="mine.npz holds arrays, and a table is needed here: .csv"):
        read_frame(tmp_path / "mine.npz")


def test_test_rows_of_a_client_without_training_rows_are_nobodys(tmp_path):
    """They were counted as those of the client that comes next in the alphabet."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(100, 3))
    owners = np.repeat(["a", "b", "c", "d"], 25)
    np.savez(tmp_path / "mine.npz", inputs=inputs, targets=inputs[:, 0] > 0, clients=owners)
    few = fedsps.Spec.of("fedsps", data=str(tmp_path / "mine.npz"), partition="natural", rounds=1, samples=3, seed=1)
    result = fedsps.run(few, tmp_path)
    assert (
        result.clients["client"].tolist() == ["a", "d"]
        and "test_samples" not in result.clients
        and result.data["test_samples"] == 20
    )
    whole = fedsps.run(few.but(samples=None), tmp_path)
    assert whole.clients["test_samples"].tolist() == [5] * 4


def test_a_regressions_table_shows_its_loss(tmp_path):
    patients().assign(ill=lambda rows: rows["income"] / 1e4).to_csv(tmp_path / "mine.csv", index=False)
    where = ["--data", str(tmp_path / "mine.csv"), "--target-column", "ill", "--runs", str(tmp_path / "runs")]
    how = ["--model", "linear", "--partition", "iid", "--clients", "3", "--rounds", "2"]
    found = CliRunner().invoke(app, ["train", *where, *how])
    assert found.exit_code == 0, found.output
    assert "final test best test" in found.stdout and "accuracy" not in found.stdout


def test_names_are_stripped_and_each_is_there_once(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a, b ,c \n1,2,3\n")
    assert list(read_frame(path)[0]) == ["a", "b", "c"]
    path.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(fedsps.DataError, match="two columns are called 'a': rename one"):
        read_frame(path)


@pytest.mark.parametrize("first", ["63,1,2.5", "north,63,1.2", "1,2,3,4", "-1,a,b,c,d"])
def test_a_missing_header_is_refused_by_name(first, tmp_path):
    (tmp_path / "mine.csv").write_text(f"{first}\n{first}\n")
    with pytest.raises(fedsps.DataError, match="mine.csv has no header: its first line, .* looks like data"):
        read_frame(tmp_path / "mine.csv")


@pytest.mark.parametrize("first", ["0,1,2", "name,2019,b,c", "a,b"])
def test_names_that_are_numbers_are_names(first, tmp_path):
    row = ",".join("7" for _ in first.split(","))
    (tmp_path / "mine.csv").write_text(f"{first}\n{row}\n")
    assert list(read_frame(tmp_path / "mine.csv")[0]) == first.split(",")


@pytest.mark.parametrize("suffix", ["parquet", "feather", "csv"])
def test_all_formats_hold_the_same_table(suffix, tmp_path):
    frame, path = patients(), tmp_path / f"mine.{suffix}"
    getattr(frame, f"to_{suffix}")(path, **({"index": False} if suffix == "csv" else {}))
    table = Table.read(path, target="ill", client="hospital")
    assert table.columns == Table(frame, target="ill", client="hospital").columns


# Runs


@pytest.fixture
def run(tmp_path):
    patients(200).to_csv(tmp_path / "patients.csv", index=False)
    spec = fedsps.Spec.of(
        "fedsps", data=str(tmp_path / "patients.csv"), client_column="hospital", target_column="ill", rounds=10
    )
    with pytest.warns(fedsps.TableWarning, match="patients.csv: column"):
        return fedsps.run(spec, tmp_path / "runs")


def test_a_run_keeps_columns_and_names(run, tmp_path):
    folder = tmp_path / "runs" / run.spec.digest
    again = fedsps.load(folder)
    assert again.columns == run.columns and run.columns.classes == ("no", "yes")
    assert run.data["class_names"] == ["no", "yes"]
    assert run.clients["client"].tolist() == ["east", "north", "south"]
    assert run.clients["test_samples"].sum() == run.data["test_samples"]
    assert run.summary["final_test_accuracy"] > 0.75
    said = again.predict(patients(200, seed=3).drop(columns=["ill", "patient_id", "hospital"]))
    assert list(said) == ["prediction", "p(no)", "p(yes)"]
    np.testing.assert_allclose(said["p(no)"] + said["p(yes)"], 1)
    assert ((said["p(yes)"] > 0.5) == (said["prediction"] == "yes")).all()
    assert (said["prediction"] == patients(200, seed=3)["ill"]).mean() > 0.75
    (folder / "columns.json").write_text("{}")
    with pytest.raises(fedsps.DataError, match="columns.json is damaged"):
        fedsps.load(folder)


def test_what_new_rows_have_that_the_training_rows_had_not_is_said(run):
    frame = patients(20).assign(smoker=["Never", "daily"] * 10, income=["a lot", 20000] * 10)
    with pytest.warns(fedsps.TableWarning) as said:
        run.predict(frame)
    texts = [str(one.message) for one in said]
    assert "column 'smoker' has 'Never', and the training rows daily, former, never: taken as none of them" in texts
    assert "column 'income' has 10 values that are no finite numbers: taken as the mean" in texts
    with warnings.catch_warnings():
        warnings.simplefilter("error", fedsps.TableWarning)
        run.predict(patients(20))


def test_predictions_stand_behind_the_columns_as_they_were_written(run, tmp_path):
    """An id of 007 that comes back as 7 belongs to nobody."""
    new, folder = tmp_path / "new.csv", tmp_path / "runs" / run.spec.digest
    new.write_text("patient_id;hospital;age;smoker;income\n007;north;3,50e1;NA;20000\n008;south;;daily;1e4\n")
    found = CliRunner().invoke(app, ["predict", str(folder), str(new)])
    assert found.exit_code == 0, found.output
    rows = [line.split(",no,")[0].split(",yes,")[0] for line in found.stdout.splitlines()[1:]]
    assert rows == ['007,north,"3,50e1",NA,20000', "008,south,,daily,1e4"]
    refused = CliRunner().invoke(app, ["predict", str(folder), str(new), "-o", str(tmp_path)])
    assert "is a folder: name a file in it" in str(refused.exception)


def test_the_digest_knows_how_tables_are_prepared(run):
    spec = run.spec
    assert spec.files["preparation"] == "2"
    digests = {spec.digest, spec.but(raw=True).digest, spec.but(drop="age").digest}
    assert len(digests) == 3
    assert fedsps.Spec.of("fedsps").digest == fedsps.Spec.of("fedsps", drop="", raw=False, metrics="").digest


def test_raw_takes_numbers_as_they_are_and_names_all_that_is_none(tmp_path):
    frame = patients(40)
    frame.to_csv(tmp_path / "mine.csv", index=False)
    with pytest.raises(fedsps.DataError, match="'age' has .* missing.*; column 'smoker' holds words.*leave raw out"):
        Table.read(tmp_path / "mine.csv", target="ill", raw=True)
    table = Table(frame, target="ill", client="hospital", drop=["age", "smoker"], raw=True)
    np.testing.assert_array_equal(table.columns(frame), frame[["patient_id", "income"]].to_numpy(np.float32))
    assert table.findings == []


def test_a_table_goes_into_train_and_a_regression_has_a_linear_model(tmp_path):
    table = Table(patients(), target="ill", client="hospital")
    net = nn.Linear(len(table.columns.features), 2)
    result = fedsps.train(net, table.clients, test=table.held_out, rounds=5, metrics="auc")
    assert result.clients["client"].tolist() == ["east", "north", "south"]
    assert result.history["test_auc"].iloc[-1] > 0.7
    frame = patients()
    frame["cost"] = (frame["age"].fillna(50) * 3.5 + 0.25).round(2)
    frame.drop(columns="ill").to_csv(tmp_path / "costs.csv", index=False)
    settings = {"data": str(tmp_path / "costs.csv"), "client_column": "hospital", "rounds": 30}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fedsps.TableWarning)
        with pytest.raises(fedsps.ConfigurationError, match="logistic needs classes.*with a fraction.*model linear"):
            fedsps.run(fedsps.Spec.of("fedsps", **settings), tmp_path)
        costs = fedsps.run(fedsps.Spec.of("fedsps", model="linear", metrics="r2,rmse", **settings), tmp_path)
    assert costs.final("test_r2") > 0.9
    assert list(costs.predict(frame)) == ["prediction"]
    assert costs.predict(frame)["prediction"].corr(frame["cost"]) > 0.9


def test_predictions_without_a_table():
    torch.manual_seed(0)
    inputs = torch.randn(60, 4)
    clients = [(inputs, (inputs[:, 0] > 0).long())] * 2
    result = fedsps.train(nn.Linear(4, 2), clients, rounds=10)
    said = result.predict(inputs.numpy())
    assert list(said) == ["prediction", "p(0)", "p(1)"]
    assert (said["prediction"].to_numpy() == (inputs[:, 0] > 0).long().numpy()).mean() > 0.9
    with pytest.raises(fedsps.DataError, match=r"cannot take inputs of shape \(3, 7\)"):
        result.predict(torch.zeros(3, 7))
    yes = fedsps.train(nn.Linear(4, 1), [(x, y.float()) for x, y in clients], loss="binary", rounds=10)
    assert list(yes.predict(inputs)) == ["prediction", "p(0)", "p(1)"]
    assert yes.history["train_loss"].iloc[-1] < 0.4
    with pytest.raises(fedsps.ConfigurationError, match="no model"):
        fedsps.Result(None, yes.history, yes.spec).predict(inputs)
