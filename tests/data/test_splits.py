from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from lossnet.data import DataError, Split, hold_out, stratified_split


def labels(rows: int, width: int, seed: int = 0) -> sparse.csr_array:
    random = np.random.default_rng(seed)
    chance = random.uniform(0.02, 0.4, width)
    return sparse.csr_array((random.random((rows, width)) < chance).astype(np.uint8))


def test_labels_keep_their_share():
    y = labels(2000, 12)
    split = stratified_split(y)
    total = y.sum(axis=0)
    for part, share in zip((split.train, split.valid, split.test), (0.6, 0.2, 0.2), strict=True):
        assert part.dtype == np.int64
        assert len(part) == pytest.approx(share * 2000, rel=0.05)
        np.testing.assert_allclose(y[part].sum(axis=0) / total, share, atol=0.05)


def test_rare_labels_reach_every_part():
    y = np.zeros((100, 2), dtype=int)
    y[:, 0] = 1
    y[:5, 1] = 1
    split = stratified_split(y)
    assert [int(y[part, 1].sum()) for part in (split.train, split.valid, split.test)] == [3, 1, 1]


@given(st.integers(3, 40), st.integers(0, 4), st.integers(0, 5))
def test_parts_are_a_partition(rows, width, seed):
    split = stratified_split(labels(rows, width, seed), seed=seed)
    parts = [split.train, split.valid, split.test]
    assert all(len(part) for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(rows))


def test_the_seed_decides():
    y = labels(200, 5)
    one, same, other = (stratified_split(y, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.train, same.train)
    assert not np.array_equal(one.train, other.train)


def test_rows_without_labels_fill_the_parts():
    split = stratified_split(np.zeros((100, 3)))
    assert [len(split.train), len(split.valid), len(split.test)] == [60, 20, 20]


def test_a_large_set_is_split_into_its_fractions():
    random = np.random.default_rng(0)
    y = sparse.csr_array((random.random((16000, 983)) < 0.02).astype(np.uint8))
    split = stratified_split(y)
    assert abs(len(split.train) - 9600) < 200
    assert np.array_equal(np.sort(np.concatenate([split.train, split.valid, split.test])), np.arange(16000))


def test_complaints():
    with pytest.raises(ValueError, match="sum to 1"):
        stratified_split(np.ones((9, 1)), fractions=(0.5, 0.2, 0.2))
    with pytest.raises(DataError, match="cannot be split"):
        stratified_split(np.ones((2, 1)))


def test_written_splits_are_read_back(tmp_path):
    split = stratified_split(labels(50, 3))
    split.write(tmp_path / "split.json")
    again = Split.read(tmp_path / "split.json", rows=50)
    for part in ("train", "valid", "test"):
        np.testing.assert_array_equal(getattr(again, part), getattr(split, part))


def test_rows_held_out_keep_the_labels_shares():
    y = labels(2000, 12)
    train, valid = hold_out(y, 0.25, seed=3)
    assert sorted([*train, *valid]) == list(range(2000))
    assert len(valid) == pytest.approx(500, rel=0.05)
    np.testing.assert_allclose(y[valid].sum(axis=0) / y.sum(axis=0), 0.25, atol=0.05)
    assert (hold_out(y, 0.25, seed=3)[1] == valid).all()
    assert not np.array_equal(hold_out(y, 0.25, seed=4)[1], valid)


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_neither_part_is_empty(fraction):
    assert [len(part) for part in hold_out(np.zeros((2, 0)), fraction)] == [1, 1]


def test_nothing_can_be_held_out_of_one_row():
    with pytest.raises(DataError, match="n_samples=1"):
        hold_out(np.ones((1, 2)), 0.5)
    for fraction in (0, 1, -1, float("nan")):
        with pytest.raises(ValueError, match="above 0 and below 1"):
            hold_out(np.ones((5, 2)), fraction)
