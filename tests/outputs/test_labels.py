"""Labels of feature vectors, of sentences and of images, from files to predictions, small."""

import csv
import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import lossnet
from lossnet import stream
from lossnet.build import METHODS
from lossnet.cli import main
from lossnet.data import DataError, FeatureTable, LabelTable, Sentences, TagColumn
from lossnet.decoding import Decision, ExpectedF1, Threshold
from lossnet.inputs import Features, Images, Words
from lossnet.loading import describe, load
from lossnet.model import load_energy
from lossnet.outputs import Labels, Predicted
from lossnet.outputs.labels import DecodedLabels
from lossnet.run import Run, train
from lossnet.settings import Settings
from lossnet.spaces import MultiLabel
from lossnet.task import Task

QUICK = Settings(
    epochs=1, batch_size=8, samples=2, inference_steps=2, task_hidden=6, energy_hidden=6, global_hidden=4,
    image_width=2, implicit_weight=1.0,
)  # fmt: skip
LEARNING = dataclasses.replace(
    QUICK, epochs=25, task_hidden=12, task_lr=1e-2, energy_lr=1e-2, task_dropout=0.0
)
MOODS = {"fun": ("funny", "merry", "jolly"), "sad": ("tears", "gloomy", "bleak")}
OTHER = ("the", "film", "was", "and", "so", "it", "Rome", "ended")


def texts(count, seed):
    """Sentences with words of one mood, of both or of none, and whether they have them."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        moods = random.integers(0, 2, len(MOODS))
        words = random.choice(OTHER, random.integers(2, 9)).tolist()
        words += [random.choice(words_of) for has, words_of in zip(moods, MOODS.values(), strict=True) if has]
        yield " ".join(random.permutation(words)), moods.tolist()


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """A table with a column of texts, label columns, and one more."""
    path = tmp_path_factory.mktemp("texts") / "reviews.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["year", "said", *MOODS])
        writer.writerows([1990 + row, text, *moods] for row, (text, moods) in enumerate(texts(160, seed=0)))
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images that are bright on the left, green, both or neither, and a table that says so."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "images").mkdir()
    random, rows = np.random.default_rng(0), ["image,bright,green"]
    for number in range(80):
        bright, green = random.integers(0, 2, 2)
        pixels = random.integers(0, 60, (8, 6, 3))
        pixels[:, :, 0] += 150 * bright
        pixels[:, :, 1] += 150 * green
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "images" / f"{number:02}.png")
        rows.append(f"{number:02}{'.png' * int(number % 2)},{bright},{green}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


def run_on_texts(reviews, method="cross-entropy", loss="", settings=QUICK, **options):
    options = {"words": "said", "labels": list(MOODS), "device": "cpu", "progress": False, **options}
    return train(Run(str(reviews), method, loss, settings, **options))


def run_on_images(photos, method="cross-entropy", loss="", settings=QUICK, **options):
    return train(Run(str(photos), method, loss, settings, device="cpu", progress=False, **options))


#: methods that need rules have tests of their own
ALL = [
    (name, loss)
    for name, spec in METHODS.items()
    for loss in spec.losses
    if spec.suits(loss, MultiLabel(2)) and not spec.rules
]


@pytest.mark.parametrize(("method", "loss"), ALL)
def test_every_method_trains_on_texts_and_on_images(reviews, photos, method, loss):
    for result in (run_on_texts(reviews, method, loss), run_on_images(photos, method, loss)):
        assert set(result["metrics"]["test"]) == {metric.name for metric in Labels(("a",)).metrics}
        assert 0 <= result["metrics"]["test"]["f1"] <= 1


# ---------------------------------------------------------------- of sentences


@pytest.fixture(scope="module")
def reader(reviews, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    return run_on_texts(reviews, "seal", "nce", LEARNING, output=folder), folder


def test_labels_of_sentences_are_learned_and_come_back_from_a_folder(reviews, reader):
    result, folder = reader
    assert result["metrics"]["test"]["f1"] > 0.9  # all labels everywhere would be 2/3
    assert result["metrics"]["test"]["exact_match"] > 0.8
    assert result["source"]["words"] == "said"
    model = lossnet.load(folder)
    assert model.task.title == "sets of labels from sentences"
    assert model.label_names == tuple(MOODS)
    data = load(reviews, words="said", labels=list(MOODS), task=model.task)
    measured = model.task.output.meter(model.decision).measure(*model.probabilities(data.test))
    assert measured == pytest.approx(result["metrics"]["test"])
    assert model.predict_proba(data.test.source).shape == (len(data.test), 2)
    assert load_energy(folder)(data.test.batch(np.arange(3)).x, torch.rand(3, 4, 2)).shape == (3, 4)


def test_labels_are_predicted_from_texts_and_from_a_table(reviews, reader, tmp_path):
    model = lossnet.load(reader[1])
    said = ["The film was merry", "gloomy and bleak, so bleak!", ["funny", "tears"]]
    assert model.named(said) == [["fun"], ["sad"], ["fun", "sad"]]
    fresh = list(texts(50, seed=1))
    path = tmp_path / "new.csv"
    pd.DataFrame({"said": [text for text, _ in fresh]}).to_csv(path, index=False)
    parts = list(stream.predict(model, path))
    whole = model.predict_proba([text for text, _ in fresh])
    np.testing.assert_allclose(np.concatenate([part.relaxed for part in parts]), whole, atol=1e-6)
    truth = torch.tensor([moods for _, moods in fresh], dtype=torch.float32)
    table = pd.DataFrame(truth.int().numpy(), columns=list(MOODS))[["sad", "fun"]]
    table.assign(said=[text for text, _ in fresh]).to_csv(path, index=False)
    expected = DecodedLabels(model.decision).measure(torch.from_numpy(whole), truth)
    assert stream.evaluate(model, path) == pytest.approx(expected, rel=1e-6)
    assert expected["f1"] > 0.9


def test_the_command_line_labels_texts(reviews, reader, tmp_path, capsys):
    _, folder = reader
    answer, out = tmp_path / "answer.json", tmp_path / "out.csv"
    assert main(["evaluate", str(folder), str(reviews), "--output", str(answer)]) == 0
    assert json.loads(answer.read_text())["metrics"]["all rows"]["f1"] > 0.9
    assert main(["predict", str(folder), str(reviews), "-o", str(out)]) == 0
    with out.open() as file:
        head, *rows = csv.reader(file)
    assert head == ["row", "labels", *MOODS]
    assert len(rows) == 160
    capsys.readouterr()
    assert main(["predict", str(folder), "--text", "it was a merry film\nso gloomy and bleak"]) == 0
    assert [line.split(",")[1] for line in capsys.readouterr().out.splitlines()] == ["labels", "fun", "sad"]
    trained = ["train", str(reviews), "--words", "said", "--labels", *MOODS, "--method", "cross-entropy"]
    made = tmp_path / "made"
    assert main([*trained, "--epochs", "1", "--quiet", "--device", "cpu", "--output", str(made)]) == 0
    assert lossnet.load(made).task.title == "sets of labels from sentences"
    assert main(["data", "show", str(reviews), "--words", "said", "--labels", *MOODS]) == 0
    assert "frequent labels" in capsys.readouterr().out.replace("_", " ")


def test_texts_are_described(reviews):
    facts = describe(reviews, words="said", labels=list(MOODS)).facts
    assert facts["labels"] == 2
    assert facts["longest"] == max(len(text.split()) for text, _ in texts(160, seed=0))
    assert sum(facts["tokens"].values()) == sum(len(text.split()) for text, _ in texts(160, seed=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": "plot"}, "there is no column 'plot' of texts; there are year, said"),
        ({"words": "said", "labels": ["angry"]}, "angry"),
        ({"words": "said", "labels": ["fun"], "resize": (4, 4)}, "no folder of images"),
        ({"words": "said", "labels": ["fun"], "features": "colour"}, "no feature 'colour'"),
    ],
)
def test_what_cannot_be_read_as_texts_is_said(reviews, options, message):
    with pytest.raises(DataError, match=message):
        load(reviews, **{"labels": list(MOODS), **options})


def test_empty_texts_and_other_files_are_refused(tmp_path):
    path = tmp_path / "some.csv"
    path.write_text("said,fun\nok,1\n  ,0\n")
    with pytest.raises(DataError, match=r"some\.csv:3: the text in 'said' is empty"):
        load(path, words="said", labels=["fun"])
    (tmp_path / "rows.svm").write_text("0 1:1\n")
    with pytest.raises(DataError, match="names a column of texts in a CSV, TSV or Parquet file"):
        load(tmp_path / "rows.svm", words="said")
    with pytest.raises(DataError, match="words=, --words are for files"):
        load("digits-pairs", words="said")


# ---------------------------------------------------------------- of images


def test_labels_of_images_are_learned_and_come_back_from_a_folder(photos, tmp_path, capsys):
    settings = dataclasses.replace(LEARNING, image_net="unet", image_width=4)
    result = run_on_images(photos, settings=settings, output=tmp_path / "run")
    assert result["metrics"]["test"]["f1"] > 0.85
    model, data = lossnet.load(tmp_path / "run"), load(photos)
    assert model.task.title == "sets of labels from images"
    pixels = np.moveaxis(data.test.source.images, 1, -1)
    truth = torch.from_numpy(data.test.target.matrix.toarray()).float()
    measured = DecodedLabels(model.decision).measure(torch.from_numpy(model.predict_proba(pixels)), truth)
    assert measured == pytest.approx(result["metrics"]["test"])
    assert model.predict(pixels).shape == (len(data.test), 2)
    answer, out = tmp_path / "answer.json", tmp_path / "out.csv"
    assert main(["evaluate", str(tmp_path / "run"), str(photos), "--output", str(answer)]) == 0
    assert json.loads(answer.read_text())["metrics"]["test"] == pytest.approx(result["metrics"]["test"])
    assert main(["predict", str(tmp_path / "run"), str(photos / "images"), "-o", str(out)]) == 0
    with out.open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    assert list(rows) == [f"{number:02}" for number in range(80)]
    with (photos / "labels.csv").open() as file:
        known = {row["image"].removesuffix(".png"): row for row in csv.DictReader(file)}
    right = [(float(rows[name]["green"]) > 0.5) == (row["green"] == "1") for name, row in known.items()]
    assert np.mean(right) > 0.85


def test_the_command_line_trains_on_a_folder_of_labelled_images(photos, tmp_path):
    options = ["--method", "cross-entropy", "--image-width", "2", "--epochs", "1", "--device", "cpu"]
    assert main(["train", str(photos), *options, "--quiet", "--output", str(tmp_path / "run")]) == 0
    model = lossnet.load(tmp_path / "run")
    assert model.task.title == "sets of labels from images"
    assert model.label_names == ("bright", "green")


def test_some_columns_of_the_table_may_be_labels(photos):
    assert load(photos, labels=["green"]).task.output.names == ("green",)
    assert load(photos, resize=(4, 4)).task.input.size == (4, 4)
    facts = describe(photos).facts
    assert (facts["size"], facts["channels"], facts["labels"]) == ("8×6", 3, 2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("image,x\nnobody.png,1\n", r"labels\.csv:2: there is no image 'nobody\.png'"),
        ("picture,x\n00.png,1\n", "there is no column 'image'"),
        ("image,x\na.png,1\nb.png,0\n", "pass resize="),
    ],
)
def test_what_cannot_be_read_as_labelled_images_is_said(tmp_path, table, message):
    (tmp_path / "images").mkdir()
    for name, size in (("a", (4, 5)), ("b", (5, 5))):
        Image.new("L", size).save(tmp_path / "images" / f"{name}.png")
    (tmp_path / "labels.csv").write_text(table)
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_crops_are_refused_for_labels(photos):
    with pytest.raises(ValueError, match="change masks along with images"):
        run_on_images(photos, settings=dataclasses.replace(QUICK, flips=True))


# ---------------------------------------------------------------- by themselves


@pytest.mark.parametrize("source", [Features.of_size(3), Images(3, (8, 8)), None])
def test_energies_and_networks_are_those_of_any_input(source, reader):
    source = source or lossnet.load(reader[1]).task.input
    assert isinstance(source, Words | Features | Images)
    labels = Labels.of_size(4)
    x = next(source.examples(QUICK, "instance", 2, 0))
    inputs, mask = Task(source, labels).exported(torch.from_numpy(x))
    assert mask is None
    assert labels.task_net(source, QUICK)(inputs).shape == (2, 4)
    for conditioned in (False, True):
        energy = labels.energy(source, dataclasses.replace(QUICK, conditioned=conditioned))
        assert energy(inputs, torch.rand(2, 5, 4)).shape == (2, 5)
    assert labels.units(source) == labels.logits == 4


def test_decoders_have_names():
    labels = Labels.of_size(2)
    decision = Decision(0.3, (0.2, 0.4))
    assert labels.decoder(None, decision) == labels.decoder("tuned", decision) == Threshold(0.3)
    assert labels.decoder("0.5", decision) == Threshold(0.5)
    assert labels.decoder("per-label", decision) == Threshold((0.2, 0.4))
    assert labels.decoder("expected-f1", decision) == ExpectedF1()
    with pytest.raises(
        ValueError,
        match=r"labels cannot be decoded by .guess.; there are tuned, 0\.5, per-label, expected-f1",
    ):
        labels.decoder("guess", decision)


@pytest.mark.parametrize(("goal", "name"), [("f1", "expected-f1"), ("micro-f1", "tuned"), (None, "tuned")])
def test_the_goal_chooses_the_decoder(goal, name):
    labels, decision = Labels.of_size(2), Decision(0.3, goal=goal)
    assert labels.decoder(None, decision) == labels.decoder(name, decision)


def test_doubtful_probabilities_are_not_decoded_for_expected_f1():
    labels, space = Labels.of_size(2), MultiLabel(2)
    relaxed, truth = torch.full((4, 2), 0.5), torch.tensor([[1.0, 0.0]]).repeat(4, 1)
    decision = labels.decide(space, relaxed, truth, Decision(goal="f1"))
    assert labels.decoder(None, decision) == Threshold(decision.threshold)
    with pytest.raises(ValueError, match="cannot be taken for probabilities: after calibration"):
        labels.decoder("expected-f1", decision)


def test_predictions_are_written_with_numbers_or_names(tmp_path, capsys):
    labels, source = Labels(("a", "b;c")), FeatureTable([[1.0], [2.0]])
    parts = [
        Predicted(source, torch.tensor([[0.9, 0.6], [0.1, 0.2]]), names) for names in (None, ["one", "two"])
    ]
    labels.write(iter(parts), Threshold(), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[1] == ["0", "a;b;c", "0.9", "0.6"]
    assert [row[0] for row in rows[1:]] == ["0", "1", "one", "two"]
    labels.write(iter(parts[:1]), Threshold(), None)
    assert capsys.readouterr().out.splitlines()[2] == "1,,0.1,0.2"
    labels.write(iter(()), Threshold(), tmp_path / "none.csv")
    assert not (tmp_path / "none.csv").exists()


def test_what_matches():
    labels = Labels(("a", "b"))
    assert labels.matches(LabelTable([[0, 1]], ("a", "b")))
    assert not labels.matches(LabelTable([[0, 1]], ("b", "a")))
    assert not labels.matches(TagColumn((("a",),)))
    assert Labels.from_state(*labels.state()) == labels
    assert labels.named(torch.tensor([[1.0, 0.0]]), Sentences((("x",),))) == [["a"]]
