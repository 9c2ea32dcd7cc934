from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_sample_images

from lossnet.data import digits_completion, digits_pairs, digits_scenes, embedded
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


@pytest.fixture(scope="module")
def scenes():
    return digits_scenes()


def test_scenes(scenes):
    data, split = scenes
    assert data.images.shape == (1200, 3, 32, 32)
    assert [len(split.train), len(split.valid), len(split.test)] == [600, 200, 400]
    np.testing.assert_array_equal(np.concatenate([split.train, split.valid, split.test]), np.arange(1200))
    share = data.masks.mean((1, 2))
    assert share.min() > 0.05
    assert share.max() < 0.45
    assert len(np.unique(data.images.reshape(1200, -1), axis=0)) == 1200


def test_scenes_are_the_same_every_time(scenes):
    again, split = digits_scenes()
    np.testing.assert_array_equal(again.images, scenes[0].images)
    np.testing.assert_array_equal(again.masks, scenes[0].masks)
    np.testing.assert_array_equal(split.test, scenes[1].test)


def test_ink_shows_but_colour_alone_does_not_tell_it(scenes):
    """Pixels of ink differ from the scene's mean colour, yet no threshold on that finds the digit."""
    data, _ = scenes
    distance = np.linalg.norm(data.images - data.images.mean((2, 3), keepdims=True), axis=1)
    ink = np.array([d[m == 1].mean() for d, m in zip(distance, data.masks, strict=True)])
    rest = np.array([d[m == 0].mean() for d, m in zip(distance, data.masks, strict=True)])
    assert (ink > rest).mean() > 0.6
    found = distance[:, None] > np.linspace(0.05, 0.8, 16)[:, None, None]
    truth = data.masks[:, None] == 1
    overlap = (found & truth).sum((2, 3)) / (found | truth).sum((2, 3))
    assert 0.25 < overlap.max(1).mean() < 0.6  # even with the best threshold for each image


def test_scenes_share_no_region_between_parts():
    """Photographs whose pixels say which column they are from."""
    columns = [np.tile(np.arange(640.0)[None, :, None], (427, 1, 3))] * 2
    random = np.random.default_rng(1)
    seen = []
    for part in range(3):
        pieces = [embedded._background(columns, part, random) for _ in range(400)]
        assert all(piece.shape == (32, 32, 3) for piece in pieces)
        seen.append({int(column) for piece in pieces for column in np.unique(piece)})
    assert all(one.isdisjoint(other) for one, other in combinations(seen, 2))
    assert [photograph.shape for photograph in load_sample_images().images] == [(427, 640, 3)] * 2


def test_scenes_share_no_digit_between_parts(scenes):
    """The digits of a part, from their inks at any position, are those of that part's images."""
    data, split = scenes
    digits = np.stack([embedded._enlarged(image) >= 0.4 for image in load_digits().data.astype(np.float32)])
    shapes = {}
    for digit, shape in enumerate(digits):
        shapes.setdefault(trimmed(shape), set()).add(digit)
    parts = [set(part.tolist()) for part in embedded._image_parts(len(digits))]
    for rows, part in zip((split.train, split.valid, split.test), parts, strict=True):
        assert all(shapes[trimmed(data.masks[row])] & part for row in rows)


def trimmed(mask) -> tuple[tuple[int, ...], bytes]:
    """A shape wherever it stands."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    box = np.ascontiguousarray(mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], dtype=np.uint8)
    return box.shape, box.tobytes()


def test_scenes_without_pillow(monkeypatch):
    def absent():
        raise ImportError("no Pillow")

    monkeypatch.setattr("sklearn.datasets.load_sample_images", absent)
    with pytest.raises(ImportError, match=r"install lossnet\[images\]"):
        digits_scenes()
