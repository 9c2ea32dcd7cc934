"""Pairs of inputs and outputs, and batches of like length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossnet.data import DataError, Examples, FeatureTable, LabelTable, MaskStack, Pictures, Sentences
from lossnet.data.examples import Source, arranged, by_length, concatenated

TABLE = FeatureTable([[0.5], [2.0], [4.0]])
LABELS = LabelTable([[1, 0], [0, 1], [1, 1]])


def test_any_inputs_go_with_any_outputs():
    words = Sentences((("a", "b"), ("c",), ("d",)))
    for source in (TABLE, words, Pictures(np.zeros((3, 1, 2, 2)))):
        for target in (LABELS, MaskStack(np.zeros((3, 2, 2)))):
            data = Examples(source, target)
            assert len(data) == 3
            assert len(data.take([2, 0])) == 2
            assert data.take([2, 0]).target.batch(np.array([1])).equal(target.batch(np.array([0])))
    with pytest.raises(DataError, match="3 inputs but 1 outputs; give one output for each"):
        Examples(TABLE, LabelTable([[1]]))


def test_inputs_without_outputs():
    data = Examples(TABLE)
    assert data.batch(np.array([1])).y is None
    assert data.take([0, 2]).target is None
    assert data.on("meta").target is None
    assert data.replace(TABLE, LABELS, masked=True).batch(np.array([1])).y.tolist() == [[0, 1]]
    assert concatenated([data, Examples(TABLE, LABELS)]).target is None
    assert len(concatenated([data, data])) == 6
    assert concatenated([data]) is data


def test_only_what_has_lengths_is_arranged():
    order = torch.tensor([3, 0, 2, 1])
    texts = Sentences((("a",) * 5, ("b",), ("c",) * 9, ("d",) * 2))
    assert arranged(Examples(texts), order, 2).tolist() == [0, 2, 1, 3]
    assert arranged(Examples(FeatureTable(np.eye(4))), order, 2) is order


def test_a_column_of_ones_own_needs_little_and_says_what_it_lacks():
    class Numbers(Source):
        def __len__(self):
            return 4

        def take(self, rows):
            return self

        def batch(self, indices):
            return torch.as_tensor(indices)

    data = Examples(Numbers())
    assert data.batch(np.array([3])).x.tolist() == [3]
    assert data.on("meta").batch(np.array([3])).mask is None
    with pytest.raises(DataError, match="Numbers cannot be joined"):
        concatenated([data, data])
    with pytest.raises(DataError, match="Numbers has no content hash; define `pieces`"):
        list(data.source.pieces())


@given(st.lists(st.integers(1, 60), min_size=1, max_size=300), st.integers(1, 9), st.integers(0, 3))
def test_every_sentence_comes_once_and_the_remainder_last(lengths, batch_size, seed):
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    arranged = by_length(order, torch.tensor(lengths), batch_size)
    assert sorted(arranged.tolist()) == list(range(len(lengths)))
    assert torch.equal(arranged, by_length(order, torch.tensor(lengths), batch_size))


def test_padding_falls_and_chance_still_decides_who_meets_whom():
    lengths = torch.randint(1, 60, (1000,), generator=torch.Generator().manual_seed(0))

    def padded(order):
        return sum(int(lengths[rows].max()) * len(rows) for rows in order.split(10))

    orders = [torch.randperm(1000, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    first, second = (by_length(order, lengths, 10) for order in orders)
    assert padded(first) < 0.65 * padded(orders[0])
    meetings = [{frozenset(rows.tolist()) for rows in order.split(10)} for order in (first, second)]
    assert not meetings[0] & meetings[1]
    means = torch.stack([lengths[rows].float().mean() for rows in first.split(10)])
    assert means[1:].sub(means[:-1]).abs().mean() > 10  # long and short batches alternate at random
