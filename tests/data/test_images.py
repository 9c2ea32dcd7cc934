from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lossnet.data import DataError, MaskData, MaskStack, Pictures
from lossnet.data.examples import Resident


def small(count: int = 4, channels: int = 3, size: tuple[int, int] = (5, 7), seed: int = 0) -> MaskData:
    random = np.random.default_rng(seed)
    images = random.random((count, channels, *size), dtype=np.float32)
    return MaskData(images, random.integers(2, size=(count, *size)))


def test_batches_are_the_rows():
    data = small()
    assert (len(data), data.channels, data.size) == (4, 3, (5, 7))
    for indices in (np.array([2, 0, 2]), torch.tensor([2, 0, 2])):
        batch = data.batch(indices)
        assert batch.x.dtype == batch.y.dtype == torch.float32
        assert batch.mask is None
        np.testing.assert_array_equal(batch.x.numpy(), data.images[[2, 0, 2]])
        np.testing.assert_array_equal(batch.y.numpy(), data.masks[[2, 0, 2]])
    assert data.batch(np.array([], dtype=int)).y.shape == (0, 5, 7)


def test_taken_rows():
    data = small()
    taken = data.take([3, 1])
    np.testing.assert_array_equal(taken.images, data.images[[3, 1]])
    np.testing.assert_array_equal(taken.masks, data.masks[[3, 1]])
    assert len(data.take([])) == 0


def test_wrong_rows_are_refused():
    for indices in ([-1], [4]):
        with pytest.raises(IndexError, match="0 to 3"):
            small().batch(np.array(indices))
    with pytest.raises(TypeError, match="whole numbers"):
        small().take([0.5])


def test_resident_data_equal_plain_data():
    data = small()
    resident = data.on("meta")
    assert isinstance(resident.source, Resident)
    assert isinstance(resident.target, Resident)
    assert data.on("meta", limit_bytes=10) is data
    assert isinstance(data.on("cpu").source, Pictures)
    assert isinstance(data.on("cpu").target, MaskStack)
    indices = torch.tensor([1, 3])
    batch, plain = resident.batch(indices.to("meta")), data.batch(indices)
    assert (batch.x.shape, batch.x.dtype) == (plain.x.shape, plain.x.dtype)
    assert (batch.y.shape, batch.y.dtype) == (plain.y.shape, plain.y.dtype)


@given(hnp.arrays(np.uint8, st.tuples(*[st.integers(1, 4)] * 4)), st.booleans())
def test_grey_levels_become_fractions(levels, flat):
    images = levels[..., 0] if flat else levels
    masks = (levels[..., 0] > 100).astype(np.uint8)
    data = MaskData.from_arrays(images, masks * 255)
    assert data.images.dtype == np.float32
    assert data.masks.dtype == np.uint8
    shown = data.images.transpose(0, 2, 3, 1) * 255
    np.testing.assert_allclose(shown[..., 0] if flat else shown, images, rtol=1e-6)
    np.testing.assert_array_equal(data.masks, masks)
    again = MaskData.from_arrays(data.images.transpose(0, 2, 3, 1), data.masks.astype(bool))
    np.testing.assert_array_equal(again.images, data.images)


@pytest.mark.parametrize("kind", [bool, np.int64, np.float32])
def test_masks_of_any_type(kind):
    data = MaskData.from_arrays(np.zeros((1, 1, 2)), np.array([[[0, 1]]]).astype(kind))
    assert data.masks.tolist() == [[[0, 1]]]


def test_arrays_are_not_changed_and_may_be_read_only():
    images = np.full((1, 2, 2), 51, dtype=np.uint8)
    masks = np.full((1, 2, 2), 255, dtype=np.uint8)
    for array in (images, masks):
        array.setflags(write=False)
    batch = MaskData.from_arrays(images, masks).batch(np.array([0]))
    batch.x.zero_()
    assert images.min() == 51
    assert batch.y.min() == 1


ZEROS = np.zeros((2, 3, 4))


@pytest.mark.parametrize(
    ("images", "masks", "message"),
    [
        (np.zeros((2, 3)), ZEROS, "2 dimension"),
        (np.zeros((1, 2, 3, 4, 1)), ZEROS, "5 dimension"),
        (np.zeros((1, 3, 4)), ZEROS, r"1 images of 3×4 .* shape \(2, 3, 4\)"),
        (np.zeros((2, 4, 4)), ZEROS, "2 images of 4×4"),
        (np.zeros((2, 3, 32, 32)), np.zeros((2, 32, 32)), "channels last"),
        (np.zeros((2, 0, 4)), np.zeros((2, 0, 4)), "pixels to see"),
        (np.zeros((2, 3, 4, 0)), ZEROS, "pixels to see"),
        (np.full((2, 3, 4), np.nan), ZEROS, "not finite"),
        (np.full((2, 3, 4), 1e300), ZEROS, "not finite"),
        (np.full((2, 3, 4), 128.0), ZEROS, "from 128 to 128; pixels must be from 0 to 1"),
        (np.full((2, 3, 4), -0.5), ZEROS, "from -0.5"),
        (np.full((2, 3, 4), 256), ZEROS, "from 256 to 256; grey levels"),
        (np.full((2, 3, 4), -1), ZEROS, "grey levels"),
        ([["a"]], ZEROS, "not arrays of numbers"),
        ([[[0.0]], [[0.0, 1.0]]], ZEROS, "not arrays of numbers"),
        (ZEROS, ZEROS[0], "masks have 2 dimension"),
        (ZEROS, ZEROS + 7, r"value 7.*0 and 1, or 0 and 255"),
        (ZEROS, ZEROS + np.nan, "value nan"),
        (ZEROS, ZEROS + 0.5, r"value 0\.5"),
        (ZEROS, ZEROS + np.array([0, 1, 255, 0]), "both 1 and 255"),
        (ZEROS, ZEROS + np.array([0, 0.2, 0.5, 1]), r"4 values \(0, 0.2, .*shares .* 0 and 1: masks > 0.5"),
        (ZEROS, ZEROS + np.array([0, 1, 20, 7]), r"4 values \(0, 1, 7, 20\); .* one of them .*: masks == 20"),
        (ZEROS, ZEROS + np.array([0, 128, 255, 0]), r"\(0, 128, 255\); .*of grey levels.* masks > 127"),
        (ZEROS, np.zeros((2, 3, 4, 3)), r"4 dimension\(s\); .* give one: masks\[..., 0\]"),
    ],
)
def test_what_is_no_data(images, masks, message):
    with pytest.raises(DataError, match=message):
        MaskData.from_arrays(images, masks)


def test_the_constructor_wants_channels_first():
    with pytest.raises(DataError, match=r"\(n, channels, height, width\)"):
        MaskData(np.zeros((2, 4, 4)), np.zeros((2, 4, 4)))
