"""Data sets ready to train on."""

import numpy as np
import pytest

from lossnet.data import (
    DataError,
    Examples,
    FeatureTable,
    LabelTable,
    MaskData,
    MultiLabelData,
    TaggedSentences,
)
from lossnet.inputs import Fitting
from lossnet.loading import Loaded, describe, load


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(
        "size,kind,p,q\n" + "".join(f"{i},{'xy'[i % 2]},{i % 2},{i % 3 > 0:d}\n" for i in range(20))
    )
    return path


def test_data_in_memory_are_prepared_by_the_training_part(make_data):
    train, valid = make_data(30), make_data(10, seed=1)
    loaded = Loaded.from_parts(train, valid, fitting=Fitting(standardise=True))
    assert isinstance(loaded.train, MultiLabelData)
    np.testing.assert_allclose(loaded.train.x.mean(0), 0, atol=1e-5)
    assert abs(loaded.valid.x.mean(0)).max() > 1e-3
    assert len(loaded.test) == 0
    assert (loaded.name, loaded.split_name, loaded.digest) == ("arrays", "given", "")
    assert loaded.task.matches(loaded.test)
    as_they_are = Loaded.from_parts(train, valid, valid)
    np.testing.assert_array_equal(as_they_are.test.x, valid.x)


def test_a_model_says_how_data_are_prepared(table):
    first = load(table, labels=["p", "q"], seed=0)
    again = load(table, labels=["p", "q"], seed=1, task=first.task)
    assert again.task is first.task
    raw = [float(row) for row in range(20)]
    preprocessor = first.task.input.preprocessor
    scaled = (np.array(raw) - preprocessor.mean[0]) / preprocessor.scale[0]
    assert set(np.round(again.train.x[:, 0], 4)) <= set(np.round(scaled.astype(np.float32), 4))
    assert again.digest != first.digest


def test_options_for_sentences_are_refused_elsewhere(table):
    for options in ({"features": "case"}, {"embeddings": []}):
        with pytest.raises(DataError, match=r"has no sentences; features= and embeddings="):
            load(table, labels=["p"], **options)


@pytest.mark.parametrize(
    ("name", "kind", "title"),
    [
        ("digits-pairs", MultiLabelData, "sets of labels from feature vectors"),
        ("digits-scenes", MaskData, "foreground pixels from images"),
    ],
)
def test_embedded_sets(name, kind, title):
    loaded = load(name)
    assert isinstance(loaded.test, kind)
    assert loaded.task.title == title
    assert loaded.coverage == ()


def test_descriptions_count_inputs_and_outputs(table, tmp_path):
    facts = describe(table, labels=["p", "q"]).facts
    assert (facts["inputs"], facts["labels"]) == (3, 2)
    path = tmp_path / "news.conll"
    path.write_text("Ann N\nsaw V\n\n" * 10)
    told = describe(path)
    assert told.instances == {"train": 6, "valid": 2, "test": 2}
    assert told.facts["tokens"] == {"train": 12, "valid": 4, "test": 4}
    assert isinstance(load(path).train, TaggedSentences)


def test_parts_of_one_set_may_lack_outputs():
    labelled = Examples(FeatureTable([[1.0], [2.0]]), LabelTable([[1], [0]]))
    loaded = Loaded.from_parts(labelled, labelled, Examples(FeatureTable([[3.0]])))
    assert loaded.test.target is None
    assert loaded.test.batch(np.array([0])).y is None
