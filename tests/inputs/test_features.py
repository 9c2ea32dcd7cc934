"""What may be given to a model that reads feature vectors."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from lossnet.build import build
from lossnet.data import DataError, FeatureTable, Preprocessor, Sentences
from lossnet.inputs import Features, Fitting
from lossnet.model import Model
from lossnet.outputs import Labels
from lossnet.settings import Settings
from lossnet.task import Task


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    settings = Settings(task_hidden=4)
    task = Task(Features(("minutes", "country=fr", "country=in")), Labels(("long", "musical")))
    return Model(build("cross-entropy", "none", settings, task), ("cross-entropy", "none"), settings, task)


ROWS = np.array([[0.9, 1, 0], [1.8, 0, 1]], np.float32)


@pytest.mark.parametrize(
    "given",
    [
        ROWS.tolist(),
        tuple(map(tuple, ROWS.tolist())),
        sparse.csr_array(ROWS),
        sparse.csr_matrix(ROWS),
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS, columns=["minutes", "country=fr", "country=in"])[
            ["country=in", "minutes", "country=fr"]
        ],
        pd.DataFrame({"title": ["a", "b"], "country": ["fr", "in"], "minutes": [0.9, 1.8], "long": [0, 1]}),
        [{"country": "fr", "minutes": 0.9}, {"minutes": 1.8, "country": "in"}],
    ],
)
def test_rows_come_in_many_forms(model, given):
    np.testing.assert_array_equal(model.predict_proba(given), model.predict_proba(ROWS))
    assert model.predict(given).shape == (2, 2)


def test_what_is_missing_in_named_rows_is_missing(model):
    rows = model.task.input.read(pd.DataFrame({"country": ["fr", None], "minutes": [None, 2.0]})).matrix
    np.testing.assert_array_equal(rows, [[np.nan, 1, 0], [2, np.nan, np.nan]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2, 3], r"shape \(3,\); they need \(rows, 3\)"),
        ([[1, 2]], r"shape \(1, 2\); they need \(rows, 3\)"),
        ([[1, 2, 3], [1]], "different lengths"),
        ([["a", "b", "c"]], "not a matrix of numbers"),
        ("new.csv", "read_inputs reads a file"),
        (None, "they need"),
        (pd.DataFrame({"minutes": [1.0]}), r"lacks 1 of the model's input columns \('country'\)"),
        (pd.DataFrame({"minutes": ["x"], "country": ["fr"]}), "row 1: 'minutes' is text"),
    ],
)
def test_what_cannot_be_read_is_said(model, given, message):
    with pytest.raises(DataError, match=message):
        model.predict(given)


def test_they_are_fitted_on_the_training_part_and_kept():
    train, valid = FeatureTable([[1.0, 0], [3.0, 1], [np.nan, 1]]), FeatureTable([[np.nan, 0.0]])
    plain, fitted = (Features.fit([train, valid], Fitting(standardise=flag)) for flag in (False, True))
    assert plain.prepare(valid).matrix.tolist() == [[2, 0]]
    assert fitted.prepare(train).matrix[:, 0].mean() == pytest.approx(0, abs=1e-6)
    content, arrays = fitted.state()
    again = Features.from_state(content, arrays)
    np.testing.assert_array_equal(again.prepare(train).matrix, fitted.prepare(train).matrix)
    assert again.matches(train)
    assert not again.matches(FeatureTable([[1.0, 2.0]], ("a", "b")))
    assert not again.matches(Sentences((("a",),)))
    with pytest.raises(ValueError, match="preprocessing and features differ in number"):
        Features.from_state({"features": ["one"]}, Preprocessor(np.zeros(2)).state())
    assert Features.from_state({"features": ["one"]}, {}).preprocessor is None


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        ([[1, 2.5]], True),
        (np.eye(2), True),
        (sparse.eye_array(2), True),
        (pd.DataFrame({"a": ["x"]}), True),
        (["a text"], False),
        ([["a", "text"]], False),
        ([[1], [1, 2]], False),
        (np.zeros((2, 3, 3)), False),
    ],
)
def test_rows_are_told_from_other_inputs(given, accepted):
    assert Features.accepts(given) is accepted


def test_settings_choose_networks():
    settings = Settings(task_hidden=4, task_layers=1, energy_hidden=6, energy_layers=2, task_dropout=0.3)
    features = Features.of_size(5)
    assert features.network(settings, "instance", outputs=3)(torch.rand(2, 5)).shape == (2, 3)
    assert features.network(settings, "instance", "energy").width == 6
    assert features.width == 5
