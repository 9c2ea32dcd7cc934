from __future__ import annotations

from itertools import combinations

import numpy as np
from sklearn.datasets import load_digits

from lossnet.data import digits_completion, digits_pairs
from lossnet.data.embedded import digit_pairs_images


def test_completion():
    data, split = digits_completion()
    images = load_digits().data
    np.testing.assert_allclose(data.x, images[:, :32] / 16)
    np.testing.assert_array_equal(data.y.toarray(), images[:, 32:] >= 8)
    assert data.feature_names[0] == "pixel_0_0"
    assert data.label_names[0] == "pixel_4_0"
    parts = np.concatenate([split.train, split.valid, split.test])
    np.testing.assert_array_equal(np.sort(parts), np.arange(1797))


def test_pairs():
    data, split = digits_pairs()
    assert data.x.shape == (3000, 64)
    assert data.x.min() == 0
    assert data.x.max() == 1
    assert data.label_names == tuple(f"digit_{i}" for i in range(10))
    assert set(data.y.sum(axis=1).tolist()) == {2}
    assert [len(split.train), len(split.valid), len(split.test)] == [1800, 600, 600]


def test_pairs_share_no_image_between_parts():
    sources = [set(np.concatenate(pair).tolist()) for pair in digit_pairs_images()]
    assert all(one.isdisjoint(other) for one, other in combinations(sources, 2))


def test_both_are_the_same_every_time():
    for make in (digits_completion, digits_pairs):
        (one, first), (two, second) = make(), make()
        np.testing.assert_array_equal(one.x, two.x)
        np.testing.assert_array_equal(first.test, second.test)
