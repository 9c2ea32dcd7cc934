from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from lossnet.data import DataError, Examples, FeatureTable, LabelTable, MultiLabelData, digest
from lossnet.data.examples import Resident
from lossnet.data.tables import SparseFeatures

X = [[0.5, 0.0], [0.0, 2.0], [1.0, np.nan]]
Y = [[1, 0, 1], [0, 0, 0], [0, 1, 1]]


def small(as_sparse: bool = False) -> MultiLabelData:
    return MultiLabelData.from_arrays(sparse.csr_array(X) if as_sparse else X, Y)


@pytest.mark.parametrize("as_sparse", [False, True])
def test_batches_are_the_rows(as_sparse):
    data = small(as_sparse)
    assert data.is_sparse == as_sparse
    assert data.has_missing
    for indices in (np.array([2, 0, 2]), torch.tensor([2, 0, 2])):
        batch = data.batch(indices)
        assert batch.x.dtype == batch.y.dtype == torch.float32
        np.testing.assert_array_equal(batch.x.numpy(), np.float32(X)[[2, 0, 2]])
        np.testing.assert_array_equal(batch.y.numpy(), np.float32(Y)[[2, 0, 2]])
    assert data.batch(np.array([], dtype=int)).y.shape == (0, 3)


@given(
    hnp.arrays(np.uint8, st.tuples(st.integers(1, 6), st.integers(0, 5)), elements=st.integers(0, 1)),
    st.data(),
)
def test_any_sparse_rows_can_be_batched(y, draw):
    rows = draw.draw(st.lists(st.integers(0, len(y) - 1), max_size=8))
    x = sparse.random_array((len(y), 4), density=0.5, random_state=0)
    data = MultiLabelData.from_arrays(x, y)
    batch = data.batch(np.array(rows, dtype=np.int64))
    np.testing.assert_array_equal(batch.y.numpy(), y[rows])
    np.testing.assert_array_equal(batch.x.numpy(), x.toarray().astype(np.float32)[rows])
    taken = data.take(rows)
    np.testing.assert_array_equal(taken.y.toarray(), y[rows])


@pytest.mark.parametrize("as_sparse", [False, True])
def test_resident_data_equal_plain_data(as_sparse):
    data = small(as_sparse)
    indices = torch.tensor([1, 2])
    assert isinstance(data.on("meta").source, Resident)
    assert isinstance(data.on("meta").target, Resident)
    assert data.on("meta").batch(indices.to("meta")).x.shape == (2, 2)
    assert data.on("meta", limit_bytes=10) is data
    resident = Examples(Resident(data.batch(torch.arange(3)).x), Resident(data.batch(torch.arange(3)).y))
    for other in (resident, data.on("cpu"), resident.take([0, 1, 2])):
        assert len(other) == 3
        for mine, plain in zip(other.batch(indices)[:2], data.batch(indices)[:2], strict=True):
            torch.testing.assert_close(mine, plain, equal_nan=True)


def test_wide_sparse_rows_stay_sparse_in_batches():
    table = FeatureTable(sparse.csr_array(X))
    assert table.sparse() is table
    assert FeatureTable(X).sparse(width=2).batch(np.array([0])).layout == torch.strided
    wide = table.sparse(width=2)
    assert isinstance(wide, SparseFeatures)
    for source, rows in ((wide, [2, 0, 2]), (wide.take(np.array([2, 0])), [0, 1, 0])):
        batch = source.batch(np.array(rows))
        assert batch.layout == torch.sparse_csr
        np.testing.assert_array_equal(batch.to_dense().numpy(), np.float32(X)[[2, 0, 2]])
    assert len(wide) == 3


def test_tables_are_joined():
    for data in (small(), small(as_sparse=True)):
        source, target = data.source.join([data.source]), data.target.join([data.target])
        both = Examples(source, target).batch(np.arange(6))
        once = data.batch(np.arange(3))
        torch.testing.assert_close(both.x, torch.cat([once.x, once.x]), equal_nan=True)
        torch.testing.assert_close(both.y, torch.cat([once.y, once.y]))


def test_labels_know_whether_there_are_any():
    assert LabelTable([[0, 0]]).is_empty
    assert not LabelTable([[0, 1]]).is_empty


def test_wrong_rows_are_refused():
    for indices in ([-1], [3]):
        with pytest.raises(IndexError, match="0 to 2"):
            small().batch(np.array(indices))
    with pytest.raises(TypeError, match="whole numbers"):
        small().take([0.5])


def test_data_frames_give_their_names():
    x = pd.DataFrame({"a": [1, 2], "b": [0.5, None]})
    data = MultiLabelData.from_arrays(x, pd.DataFrame({"fun": [True, False]}))
    assert data.feature_names == ("a", "b")
    assert data.label_names == ("fun",)
    assert np.isnan(data.x[1, 1])
    assert data.y.toarray().tolist() == [[1], [0]]


def test_arrays_are_not_changed():
    y = sparse.csr_array((np.array([1, 0, 1]), np.array([2, 0, 1]), np.array([0, 2, 3])), shape=(2, 3))
    before = y.data.copy(), y.indices.copy()
    data = MultiLabelData.from_arrays(np.zeros((2, 1)), y)
    np.testing.assert_array_equal(y.data, before[0])
    np.testing.assert_array_equal(y.indices, before[1])
    assert data.y.nnz == 2
    frozen = np.ones((2, 1), dtype=np.float32)
    frozen.setflags(write=False)
    assert MultiLabelData.from_arrays(frozen, y).batch(np.array([0])).x.item() == 1


@pytest.mark.parametrize(
    ("x", "y", "names", "message"),
    [
        ([[1.0]], [[1], [0]], {}, "1 rows but y has 2"),
        ([[np.inf]], [[1]], {}, "infinite"),
        ([[1e300]], [[1]], {}, "infinite"),
        ([[1.0]], [[2]], {}, "neither 0 nor 1"),
        ([[1.0]], sparse.csr_array([[3]]), {}, "neither 0 nor 1"),
        ([1.0], [[1]], {}, "dimension"),
        ([[1.0]], [1], {}, "dimension"),
        ([["a"]], [[1]], {}, "not a matrix of numbers"),
        ([[1.0], [1.0, 2.0]], [[1], [1]], {}, "not a matrix of numbers"),
        ([[1.0, 2.0]], [[1]], {"feature_names": ["a"]}, "1 feature names for 2"),
        ([[1.0, 2.0]], [[1]], {"feature_names": ["a", "a"]}, "'a' is given twice"),
        ([[1.0]], [[1]], {"label_names": ["a", "b"]}, "2 label names for 1"),
    ],
)
def test_what_is_no_data(x, y, names, message):
    with pytest.raises(DataError, match=message):
        MultiLabelData.from_arrays(x, y, **names)


def test_errors_survive_pickling():
    error = DataError("bad; fix it", "a.arff", 3)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "a.arff:3: bad; fix it"
    assert (again.path, again.line) == ("a.arff", 3)
    assert isinstance(error, ValueError)


# ---------------------------------------------------------------- labels that are unknown

PARTLY = np.array([[1, np.nan, 0], [0, 1, 1], [np.nan, np.nan, 1]])


@pytest.mark.parametrize("y", [PARTLY, sparse.csr_array(PARTLY), PARTLY.tolist()], ids=type)
def test_unknown_labels_go_with_their_rows(y):
    table = LabelTable(y)
    whole = np.arange(3)
    assert table.batch(whole).tolist() == np.nan_to_num(PARTLY).tolist()
    assert table.known(whole).tolist() == (~np.isnan(PARTLY)).astype(float).tolist()
    assert table.take(np.array([2, 0])).known(np.array([0])).tolist() == [[0, 0, 1]]
    assert table.take(np.array([1])).known(np.array([0])) is None, "a part may be known"
    whole_table = LabelTable([[1, 1, 1]])
    for first, second in ((table, whole_table), (whole_table, table)):
        joint = first.join([second])
        assert joint.known(np.arange(4)).sum() == 9
        assert joint.batch(np.arange(4)).sum() == table.batch(whole).sum() + 3
    assert type(table.on("meta")) is LabelTable


def test_what_is_unknown_counts_in_content_hashes():
    tables = LabelTable(PARTLY), LabelTable(np.nan_to_num(PARTLY)), LabelTable(np.flip(PARTLY, 1).copy())
    assert len({digest(Examples(FeatureTable(np.eye(3)), table)) for table in tables}) == 3


def test_labels_become_unknown():
    table = LabelTable([[1, 0], [1, 1]])
    hidden = table.where_unknown(sparse.csr_array([[True, False], [False, False]]))
    assert hidden.batch(np.arange(2)).tolist() == [[0, 0], [1, 1]]
    assert hidden.known(np.array([0])).tolist() == [[0, 1]]
    assert table.known(np.array([0])) is None
