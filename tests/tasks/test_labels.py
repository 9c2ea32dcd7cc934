"""What may be given to a model that predicts labels."""

import numpy as np
import pandas as pd
import pytest
import torch
from lossnet.tasks import LabelTask
from scipy import sparse

from lossnet.build import build
from lossnet.data.errors import DataError
from lossnet.model import Model
from lossnet.settings import Settings


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    settings = Settings(task_hidden=4)
    task = LabelTask(("minutes", "country=fr", "country=in"), ("long", "musical"))
    return Model(
        build("cross-entropy", "none", settings, task), ("cross-entropy", "none"), settings, task, 0.5
    )


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
    rows = model.task.inputs(pd.DataFrame({"country": ["fr", None], "minutes": [None, 2.0]})).x
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
        (pd.DataFrame({"minutes": [1.0]}), "lacks 2 of the model's input columns"),
        ([{"minutes": 1, "country": "de"}], "row 1: 'de' in 'country' did not occur in training"),
        (pd.DataFrame({"minutes": ["x"], "country": ["fr"]}), "row 1: 'minutes' is text"),
    ],
)
def test_what_cannot_be_read_is_said(model, given, message):
    with pytest.raises(DataError, match=message):
        model.predict(given)
