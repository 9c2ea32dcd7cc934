"""Rows without labels: which they are, what else is wrong, and how batches mix them with others."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from lossnet.data import (
    DataError,
    Facts,
    MultiLabelData,
    Weighted,
    WithUnlabelled,
    digest,
    labelled_rows,
    rows_of,
)
from lossnet.data.examples import concatenated
from lossnet.data.readers import read_inputs
from lossnet.loading import load

NAN = float("nan")


@pytest.mark.parametrize(
    "y",
    [
        [[1, 0], None, [0, 1]],
        [[1, 0], [None, None], [0, 1]],
        [[1, 0], [NAN, NAN], [0, 1]],
        [["news"], None, []],
        [{"news"}, None, {"sport"}],
        [["N", "V"], None, ["N"]],
        ["cat", None, "dog"],
        [3.0, NAN, 4.0],
        np.array([[1.0, 0], [NAN, NAN], [0, 1]]),
        np.array(["cat", None, "dog"], dtype=object),
        np.array([np.zeros((2, 2)), None, np.ones((2, 2))], dtype=object),
        pd.DataFrame({"a": [1, NAN, 0], "b": [0, NAN, 1]}),
        pd.Series(["cat", None, "dog"]),
        pd.Series([1, None, 0], dtype="Int64"),
    ],
    ids=str,
)
def test_rows_without_labels_are_found(y):
    known = labelled_rows(y)
    assert known.tolist() == [True, False, True]
    assert len(rows_of(y, known)) == 2
    assert labelled_rows(rows_of(y, known)).all()


@pytest.mark.parametrize(
    "y", [[[1, 0], [0, 1]], np.ones((3, 2), int), sparse.eye_array(4), ["a", "b"], [["nan"], []]]
)
def test_other_rows_have_labels(y):
    assert labelled_rows(y).all()


@pytest.mark.parametrize("row", [[1, None], [NAN, 0.0], np.array([1, None], dtype=object)])
def test_of_a_label_set_some_may_be_known(row):
    y = [[1, 0], row, [None, None]]
    assert labelled_rows(y).tolist() == [True, True, False]


@pytest.mark.parametrize("row", [["N", None], np.array([[1.0, NAN], [0, 1]])])
def test_tags_and_masks_are_known_as_a_whole(row):
    with pytest.raises(DataError, match="row 1 of y is known in part, which only label sets"):
        labelled_rows([["N", "V"] if isinstance(row, list) else np.ones((2, 2)), row])


def test_chosen_rows_of_anything():
    rows = np.array([False, True, True])
    assert rows_of((1, 2, 3), rows) == [2, 3]
    assert rows_of(np.arange(6).reshape(3, 2), rows).tolist() == [[2, 3], [4, 5]]
    assert rows_of(sparse.csr_array(np.eye(3)), rows).toarray().tolist() == np.eye(3)[1:].tolist()
    assert rows_of(pd.DataFrame({"a": [1, 2, 3]}), rows)["a"].tolist() == [2, 3]


# ---------------------------------------------------------------- facts


def test_facts_go_with_their_rows():
    data = MultiLabelData.from_arrays(np.eye(4), np.eye(4)).with_facts(
        Facts({"total": [0, 1, 2, NAN], "may": np.eye(4)})
    )
    batch = data.take([3, 1]).batch(torch.tensor([1, 0]))
    assert batch.facts["total"].tolist()[0] == 1
    assert torch.equal(batch.facts["may"], batch.x)
    assert data.without_target().batch(torch.tensor([2])).facts["total"].item() == 2
    twice = concatenated([data, data])
    assert twice.batch(torch.tensor([5])).facts["total"].item() == 1
    assert concatenated([data, data.with_facts(None)]).facts is None
    assert type(data.take([0])) is MultiLabelData
    assert data.batch(torch.tensor([1])).to("cpu").facts["may"].shape == (1, 4)


def test_facts_of_one_kind_are_a_tensor():
    assert Facts(pd.DataFrame({"total": [1, 2]})).batch(torch.tensor([1]))["total"].tolist() == [2]
    assert torch.equal(Facts([1, 2, 3]).take(np.array([2])).batch(torch.tensor([0])), torch.tensor([3.0]))


def test_facts_count_in_content_hashes():
    data = MultiLabelData.from_arrays(np.eye(2), np.eye(2))
    hashes = {digest(data), digest(data.with_facts(Facts([1, 2]))), digest(data.with_facts(Facts([1, 3])))}
    assert len(hashes) == 3


def test_facts_that_are_none():
    with pytest.raises(DataError, match="facts are not numbers"):
        Facts(["a", "b"])
    with pytest.raises(DataError, match=r"facts have the shapes .*each needs an entry for each instance"):
        Facts({"a": [1, 2], "b": [1]})
    for scalar in (3.0, {"a": 3.0}):
        with pytest.raises(DataError, match="each needs an entry for each instance"):
            Facts(scalar)
    assert Facts(pd.Series([1, 2], index=[7, 9])).batch(torch.tensor([1])).tolist() == [2]
    with pytest.raises(DataError, match="there are 2 inputs but 3 facts; give one fact for each input"):
        MultiLabelData.from_arrays(np.eye(2), np.eye(2)).with_facts(Facts([1, 2, 3]))


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("known", "others", "size"), [(2, 9, 6), (10, 4, 6), (3, 3, 2), (1, 1, 8), (7, 60, 5)]
)
def test_batches_have_both_and_an_epoch_has_all(known, others, size):
    data = WithUnlabelled(
        MultiLabelData.from_arrays(np.arange(known)[:, None], np.ones((known, 1))),
        MultiLabelData.from_arrays(1000 + np.arange(others)[:, None], np.ones((others, 1))).without_target(),
    )
    assert len(data) == known + others
    order = data.arranged(torch.randperm(known + others), size)
    seen, counts = [], []
    for rows in order.split(size):
        batch = data.batch(rows)
        assert batch.unlabelled.y is None
        assert len(batch.y) == batch.size == min(size // 2, known)
        assert len(set(batch.x.flatten().tolist())) == batch.size, "no row twice in a batch"
        seen += batch.x.flatten().tolist() + batch.unlabelled.x.flatten().tolist()
        counts.append(batch.unlabelled.size)
    assert set(seen) == {*range(known), *range(1000, 1000 + others)}
    assert all(count == size - min(size // 2, known) for count in counts[:-1])
    assert min(map(seen.count, range(known))) >= max(map(seen.count, range(known))) - 1


def test_weights_stay_with_labelled_rows():
    known = MultiLabelData.from_arrays(np.eye(2), np.eye(2))
    data = WithUnlabelled(Weighted(known, torch.tensor([0.5, 1.5])), known.without_target())
    batch = data.batch(torch.tensor([1, 2, 3]))
    assert batch.weight.tolist() == [1.5]
    assert batch.unlabelled.weight is None


def test_a_batch_of_one_row_is_refused():
    known = MultiLabelData.from_arrays(np.eye(2), np.eye(2))
    with pytest.raises(ValueError, match="batch_size must be above 1"):
        WithUnlabelled(known, known.without_target()).arranged(torch.arange(4), 1)


# ---------------------------------------------------------------- tables


def test_empty_cells_of_label_columns_are_unknown(tmp_path):
    lines = ["size,a,b", *(f"{row},{row % 2},{'' if row % 3 == 0 else 1}" for row in range(60))]
    lines += [f"{row},," for row in range(20)]
    path = tmp_path / "partly.csv"
    path.write_text("\n".join(lines))
    data = load(path, labels=["a", "b"])
    parts = [data.train, data.valid, data.test]
    assert sum(map(len, parts)) + len(data.unlabelled) == 80
    assert data.unlabelled.target is None
    known = data.train.batch(torch.arange(len(data.train))).known
    assert known.any(1).all(), "rows of which nothing is known are apart"
    assert (known == 0).any()
    assert load(path, labels=["a", "b"], unlabelled=False).unlabelled is None
    frame = pd.read_csv(path)
    assert torch.equal(
        load("frame", data=frame, labels=["a", "b"]).train.batch(torch.arange(9)).known, known[:9]
    )
    again = read_inputs(path, ["size"], ["b", "a"])
    assert again.target.known(np.array([0, 1])).tolist() == [[0, 1], [1, 1]]
