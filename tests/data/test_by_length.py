"""Batches of sentences of like length."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lossnet.data.sentences import by_length


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
