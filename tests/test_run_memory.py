"""`lossnet.train` on arrays, data frames, sentences, images and examples that are in memory."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import nn

import lossnet
from lossnet import Run, Settings, train
from lossnet.data import DataError, Examples, FeatureTable, LabelTable
from lossnet.loading import Loaded, gather, load
from lossnet.own import OwnParts

QUICK = {
    "method": "cross-entropy",
    "settings": Settings(epochs=2, task_hidden=8, task_lr=0.01, image_width=4),
    "progress": False,
    "device": "cpu",
}
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(80, 3))
Y = (X[:, :2] > 0).astype(int)
FRAME = pd.DataFrame(X.round(3), columns=["a", "b", "c"]).assign(
    country=RANDOM.choice(["it", "fr"], 80), is_fun=Y[:, 0], is_sad=Y[:, 1].astype(bool)
)
FRAME.loc[::7, "a"] = np.nan


def test_a_data_frame_is_what_its_file_is(tmp_path):
    path = tmp_path / "films.csv"
    FRAME.assign(is_sad=FRAME.is_sad.astype(int)).to_csv(path, index=False)
    run = Run(str(path), labels=["is_fun", "is_sad"], **QUICK)
    read, given = train(run), train(run, data=FRAME)
    assert given["metrics"] == read["metrics"]
    assert given["split"] == read["split"] == "stratified(seed=0)"
    assert given["data_digest"] == read["data_digest"]
    pattern = train(dataclasses.replace(run, labels="is_*"), data=FRAME)
    assert pattern["metrics"] == read["metrics"]


def test_texts_in_a_data_frame_are_what_its_file_is(tmp_path):
    texts = pd.DataFrame({"plot": ["a good film", "bad music"] * 20, "good": [1, 0] * 20})
    texts.to_csv(tmp_path / "texts.csv", index=False)
    run = Run(str(tmp_path / "texts.csv"), words="plot", labels=["good"], **QUICK)
    assert train(run, data=texts)["metrics"] == train(run)["metrics"]


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X, Y),
        (X.tolist(), Y.tolist()),
        (sparse.csr_array(X), sparse.csr_array(Y)),
        (FRAME[["a", "b"]], Y > 0),
    ],
    ids=["arrays", "lists", "sparse", "frame"],
)
def test_rows_and_label_sets(x, y):
    result = train(Run("mine", **QUICK), data=(x, y))
    assert result["dataset"] == "mine"
    assert set(result["metrics"]) == {"valid", "test"}
    assert "f1_tuned" in result["metrics"]["test"]


def test_dense_rows_are_standardised_as_those_of_files_are():
    assert load("mine", data=(X, Y)).train.source.matrix.std(0) == pytest.approx(1, abs=1e-5)
    assert load("mine", data=(sparse.csr_array(X), Y)).task.input.preprocessor.mean is None


def test_sentences_with_tags_and_with_labels(tmp_path):
    sentences, tags = [["Ann", "left"], ["Bo", "saw", "Ann"]] * 10, [["N", "V"], ["N", "V", "N"]] * 10
    result = train(Run("names", output=tmp_path / "run", **QUICK), data=(sentences, tags))
    assert set(result["metrics"]["test"]) == {"accuracy"}
    assert result["split"] == "random(seed=0)"
    assert lossnet.load(tmp_path / "run").tag(["Ann saw Bo"])[0][0][0] == "Ann"
    labels = np.eye(2, dtype=int)[[0, 1] * 10]
    assert (
        "f1"
        in train(Run("names", **QUICK), data=([" ".join(s) for s in sentences], labels))["metrics"]["test"]
    )


def test_images_with_masks_and_with_labels():
    images = RANDOM.random((15, 8, 8))
    assert "iou" in train(Run("bright", **QUICK), data=(images, images > 0.5))["metrics"]["test"]
    labels = (images.mean((1, 2)) > np.array([[0.4], [0.5]])).T.astype(int)
    assert "f1" in train(Run("bright", **QUICK), data=(images[..., None], labels))["metrics"]["test"]


def test_examples_loaded_data_and_a_split_file(tmp_path):
    examples = Examples(FeatureTable(X), LabelTable(Y, ["up", "right"]))
    given = train(Run("mine", **QUICK), data=examples)
    assert given["metrics"] == train(Run("mine", **QUICK), data=(X, Y))["metrics"]
    loaded = Loaded.from_parts(examples.take(range(50)), examples.take(range(50, 80)), name="mine")
    assert set(train(Run("other", **QUICK), data=loaded)["metrics"]) == {"valid"}
    rows = {"train": list(range(40)), "valid": list(range(40, 60)), "test": list(range(60, 80))}
    (tmp_path / "split.json").write_text(json.dumps(rows))
    split = load("mine", data=(X, Y), split=tmp_path / "split.json")
    assert (len(split.train), split.split_name) == (40, "split.json")


def test_parts_optimizer_scheduler_and_callbacks_of_a_run():
    entries = []
    run = Run(
        "mine",
        own=OwnParts(task_net=nn.Linear),
        optimizer=torch.optim.SGD,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        callbacks=[entries.append],
        **QUICK,
    )
    train(run, data=(X, Y))
    assert [entry["lr"] for entry in entries] == [{"task_net": 0.01}, {"task_net": 0.005}]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (X, {}, r"data are a ndarray; give \(X, Y\), \(X, Y, facts\)"),
        ((X, Y, Y, Y), {}, "data are a tuple"),
        ((X, Y[:5]), {}, "80 inputs but 5 outputs"),
        ((X, ["red"] * 80), {}, "the outputs, .*are of no known kind"),
        (([object()], Y), {}, "the inputs, .*are of no known kind"),
        ((X, Y * 2), {}, "neither 0 nor 1"),
        ((X, [["N"]] * 80), {}, "tags need features of each position"),
        (([["a", "b"]] * 9, [["N"]] * 9), {}, "give one of 'tags' per token"),
        ((X.reshape(10, 4, 6), np.ones((10, 4, 5))), {}, "pixels must be from 0 to 1"),
        ((np.ones((10, 4, 6)), np.ones((10, 4, 5))), {}, "give one mask"),
        ((X, Y), {"labels": ["a"]}, "these data have none"),
        (FRAME, {}, "which of the columns 'a', 'b'"),
        (FRAME, {"labels": ["colour"]}, "no column 'colour' for labels"),
        (FRAME, {"labels": ["is_fun"], "words": "plot"}, "no column 'plot' of texts"),
        ((X, Y), {"embeddings": ["glove.txt"]}, "'mine' has no sentences"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(data, options, message):
    with pytest.raises(DataError, match=message):
        train(Run("mine", **options, **QUICK), data=data)


def test_kinds_are_found_by_how_data_look():
    found = gather([["Ann", "left"]], np.array([[1, 0]]))
    assert type(found.source).__name__ == "Sentences"
    assert type(gather(["Ann left."], np.array([[1, 0]])).source).__name__ == "TextTable"
    assert type(found.target).__name__ == "LabelTable"
    assert type(gather(np.zeros((2, 4, 4, 3)), np.zeros((2, 4, 4))).target).__name__ == "MaskStack"
