from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lossnet.data import DataError, FeatureTable, Preprocessor

N = np.nan


TRAIN = [[1.0, 0, 7, N, 2], [3.0, 1, 7, N, N], [N, 1, 7, N, 2], [5.0, N, 7, N, 2]]


@pytest.mark.parametrize("as_sparse", [False, True])
def test_imputes_by_the_training_mean(as_sparse):
    train = FeatureTable(sparse.csr_array(TRAIN) if as_sparse else TRAIN)
    fitted = Preprocessor.fit(train, standardise=False)
    applied = fitted.apply(train)
    assert applied.is_sparse == as_sparse
    assert not applied.has_missing
    np.testing.assert_allclose(fitted.impute, [3, 2 / 3, 7, 0, 2])
    x = applied.matrix.toarray() if as_sparse else applied.matrix
    np.testing.assert_allclose(x[2], [3, 1, 7, 0, 2])
    later = fitted.apply(FeatureTable([[N, N, N, N, N]]))  # the third column had no gaps in training
    np.testing.assert_allclose(later.matrix, [[3, 2 / 3, 7, 0, 2]], rtol=1e-6)


@pytest.mark.parametrize("as_sparse", [False, True])
def test_standardises_what_is_not_binary(as_sparse):
    train = FeatureTable(sparse.csr_array(TRAIN) if as_sparse else TRAIN)
    fitted = Preprocessor.fit(train, standardise=True)
    x = fitted.apply(train).matrix
    np.testing.assert_allclose(x.mean(axis=0)[[0, 2, 4]], 0, atol=1e-6)
    np.testing.assert_allclose(x.std(axis=0)[[0, 2]], [1, 0], atol=1e-6)
    np.testing.assert_allclose(x[:, 1], [0, 1, 1, 2 / 3], rtol=1e-6)
    assert fitted.scale[2] == fitted.scale[3] == fitted.scale[4] == 1


def test_constant_columns_stay_finite():
    train = FeatureTable(np.full((1000, 1), 0.1, dtype=np.float32))
    assert np.abs(Preprocessor.fit(train, standardise=True).apply(train).matrix).max() < 1e-6


def test_data_without_gaps_pass_through():
    train = FeatureTable([[1.0, 2.0]])
    assert Preprocessor.fit(train, standardise=False).apply(train) is train


@pytest.mark.parametrize("standardise", [False, True])
def test_state_round_trip(standardise):
    fitted = Preprocessor.fit(FeatureTable(TRAIN), standardise)
    again = Preprocessor.from_state(fitted.state())
    assert (again.mean is not None) == standardise
    np.testing.assert_array_equal(
        again.apply(FeatureTable(TRAIN)).matrix, fitted.apply(FeatureTable(TRAIN)).matrix
    )


def test_complaints():
    fitted = Preprocessor.fit(FeatureTable(TRAIN), True)
    with pytest.raises(DataError, match="1 input columns, but training had 5"):
        fitted.apply(FeatureTable([[1.0]]))
    with pytest.raises(DataError, match="not the state"):
        Preprocessor.from_state({"mean": np.zeros(2)})
    with pytest.raises(DataError, match="differ in shape"):
        Preprocessor.from_state({"impute": np.zeros(2), "mean": np.zeros(1), "scale": np.ones(1)})
