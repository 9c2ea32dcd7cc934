from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossnet.data import Crops, DataError, Distortion, MaskData
from lossnet.data import crops as module
from lossnet.spaces import Batch
from lossnet.training.evaluation import predict

SIZES = st.integers(1, 12)


def numbered(count: int, height: int, width: int) -> MaskData:
    """Images whose first two channels say where a pixel is, and whose third is noise as in the mask."""
    places = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij")) / 255
    masks = np.random.default_rng(0).integers(2, size=(count, height, width))
    images = np.concatenate([np.broadcast_to(places, (count, 2, height, width)), masks[:, None]], 1)
    return MaskData(images, masks)


def places(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The row and column in the whole image of every pixel, ``(b, h, w)`` each."""
    where = (batch.x[:, :2] * 255).round().long()
    return where[:, 0], where[:, 1]


# ------------------------------------------------------------------ training


@settings(deadline=None)
@given(SIZES, SIZES, st.data(), st.booleans())
def test_training_sees_whole_rectangles_of_image_and_mask(height, width, draw, flips):
    rows, columns = draw.draw(st.integers(1, height)), draw.draw(st.integers(1, width))
    data = numbered(3, height, width)
    crops = Crops((rows, columns), flips=flips).training(data)
    indices = torch.tensor([2, 0, 1, 1])
    batch = crops.batch(indices)
    assert len(crops) == 3
    assert batch.x.shape == (4, 3, rows, columns)
    assert batch.y.shape == (4, rows, columns)
    assert batch.mask is None
    down, across = places(batch)
    assert (down == down[:, :1, :1] + torch.arange(rows).view(1, -1, 1)).all()
    steps = torch.arange(columns)
    forth, back = across[:, :1, :1] + steps, across[:, :1, :1] - steps
    upright = (across == forth).flatten(1).all(1)
    assert (upright | (across == back).flatten(1).all(1)).all()
    assert flips or upright.all()
    torch.testing.assert_close(batch.x[:, 2], batch.y)
    for row, crop, y, x in zip(indices, batch.y, down, across, strict=True):
        np.testing.assert_array_equal(crop.numpy(), data.masks[row][y.numpy(), x.numpy()])


def test_every_offset_and_both_sides_are_as_likely_as_they_should_be():
    crops = Crops(3, flips=True).training(numbered(1, 5, 4))
    batch = crops.batch(torch.zeros(6000, dtype=torch.long))
    down, across = places(batch)
    top, left = down[:, 0, 0], across.amin((1, 2))
    cells = torch.bincount(top * 2 + left, minlength=6)
    assert cells.min() > 850  # of 1000 expected
    assert cells.max() < 1150
    mirrored = (across[:, 0, 0] > across[:, 0, 1]).float().mean()
    assert mirrored == pytest.approx(0.5, abs=0.03)


def test_each_instance_has_its_own_crop_and_another_next_time():
    crops = Crops(4).training(numbered(1, 32, 32))
    batch = crops.batch(torch.zeros(50, dtype=torch.long))
    assert len(torch.unique(places(batch)[0][:, 0, 0])) > 5
    assert not torch.equal(batch.x, crops.batch(torch.zeros(50, dtype=torch.long)).x)


def test_a_resumed_run_sees_the_same_crops():
    crops = Crops(4, flips=True).training(numbered(5, 9, 9))
    indices = torch.arange(5)
    crops.batch(indices)
    state = torch.get_rng_state()
    wanted = [crops.batch(indices).x for _ in range(3)]
    torch.set_rng_state(state)
    for before in wanted:
        assert torch.equal(crops.batch(indices).x, before)


def test_masks_of_padding_are_cropped_alike():
    class Padded:
        def __len__(self):
            return 1

        def batch(self, indices):
            plain = numbered(1, 6, 6).batch(indices)
            return Batch(plain.x, plain.y, plain.y)

    batch = Crops(3).training(Padded()).batch(torch.tensor([0, 0]))
    torch.testing.assert_close(batch.mask, batch.y)


def test_crops_never_wait_for_the_device():
    """Tensors without values: reading any, as a host that waits for its device does, is an error."""
    resident = numbered(5, 9, 9).on("meta")
    batch = Crops(4, flips=True).training(resident).batch(torch.arange(5, device="meta"))
    assert batch.x.shape == (5, 3, 4, 4)
    assert batch.y.device.type == "meta"
    distorted = Crops(4, distortion=Distortion(0.1, 0.1, 0.5)).training(resident)
    assert distorted.batch(torch.arange(5, device="meta")).y.device.type == "meta"
    whole = Crops(4, flips=True).averaged(first_channel)(resident.source.values, None)
    assert whole.shape == (5, 9, 9)
    with pytest.raises((RuntimeError, NotImplementedError)):
        whole.sum().item()


# ------------------------------------------------------------------ prediction


def first_channel(x, mask=None):
    return x[:, 0]


@settings(deadline=None)
@given(SIZES, SIZES, st.data(), st.integers(1, 7), st.booleans(), st.integers(1, 40))
def test_averages_over_crops_give_back_the_image(height, width, draw, per_side, flips, at_once):
    """The average is exact, and covers every pixel, for all sizes and however crops are batched."""
    size = draw.draw(st.integers(1, height)), draw.draw(st.integers(1, width))
    x = torch.rand(3, 2, height, width, generator=torch.Generator().manual_seed(height * width))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", at_once)
        back = Crops(size, per_side, flips).averaged(first_channel)(x, None)
    torch.testing.assert_close(back, x[:, 0], rtol=1e-6, atol=0)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 9))
def test_positions_cover_the_image(length, size, per_side):
    if size > length:
        return
    offsets = sorted({top for top, _ in Crops(size, per_side).positions(length, size)})
    assert offsets[0] == 0
    assert offsets[-1] == length - size
    assert all(after - before <= size for before, after in pairwise(offsets))
    assert len(offsets) <= max(per_side, -(-length // size))


def test_a_pixel_is_the_mean_over_the_crops_that_see_it():
    """A network that looks at its crop as a whole, so that crops differ."""
    x = torch.rand(2, 1, 6, 7)
    crops = Crops((3, 4), per_side=3)
    total, seen = torch.zeros(2, 6, 7), torch.zeros(6, 7)
    for top, left in crops.positions(6, 7):
        value = x[:, 0, top : top + 3, left : left + 4].mean((1, 2))
        total[:, top : top + 3, left : left + 4] += value.view(2, 1, 1)
        seen[top : top + 3, left : left + 4] += 1
    averaged = crops.averaged(lambda x, mask: x[:, 0].mean((1, 2), keepdim=True).expand_as(x[:, 0]))
    torch.testing.assert_close(averaged(x, None), total / seen)


def test_mirrored_images_are_averaged_in():
    """A network that sees only a crop's left half predicts all of it from both sides."""

    def left_half(x, mask):
        return torch.where(torch.arange(4) < 2, x[:, 0], 0)

    x = torch.ones(1, 1, 4, 4)
    assert Crops(4).averaged(left_half)(x, None)[0, 0].tolist() == [1, 1, 0, 0]
    assert Crops(4, flips=True).averaged(left_half)(x, None)[0, 0].tolist() == [0.5] * 4


def test_networks_get_the_mask_of_their_crop_and_few_calls():
    calls = []

    def network(x, mask):
        calls.append(len(x))
        assert torch.equal(mask, (x[:, 0] > 0.5).float())
        return mask

    x = torch.rand(64, 3, 32, 32)
    mask = (x[:, 0] > 0.5).float()
    torch.testing.assert_close(Crops(24, flips=True).averaged(network)(x, mask), mask)
    assert sum(calls) == 2 * 36 * 64
    assert max(calls) <= 1024
    assert len(calls) == 2 * 3


def test_prediction_of_a_data_set():
    data = numbered(5, 8, 9)
    relaxed, truth = predict(Crops(6).averaged(lambda x, mask: x[:, 2]), data, batch_size=2)
    torch.testing.assert_close(relaxed, truth)
    assert Crops(6).averaged(first_channel)(torch.zeros(0, 3, 8, 9), None).shape == (0, 8, 9)


# ------------------------------------------------------------------ sizes


def test_crops_as_large_as_the_image_change_nothing():
    data = numbered(3, 5, 4)
    crops, rows = Crops((5, 4)), torch.arange(3)
    torch.testing.assert_close(crops.training(data).batch(rows).x, data.batch(rows).x)
    assert crops.positions(5, 4) == ((0, 0),)


def test_sizes_that_do_not_fit():
    with pytest.raises(DataError, match="crops of 5×5 do not fit into images of 5×4; choose a smaller"):
        Crops(5).training(numbered(1, 5, 4)).batch(torch.tensor([0]))
    with pytest.raises(DataError, match="do not fit"):
        Crops((3, 6)).averaged(first_channel)(torch.zeros(1, 1, 5, 5), None)
    for wrong in ((0, 6), (-1, 6), (3, 0), ((3, 0), 6)):
        with pytest.raises(ValueError, match="at least 1"):
            Crops(*wrong)


def test_validation_takes_the_fewest_crops_that_cover_an_image():
    seen = []

    def predict(x, mask):
        seen.append(len(x))
        return x[:, 0]

    images = torch.rand(3, 2, 10, 7)
    found = Crops(6, flips=True).quick(predict)(images, None)
    torch.testing.assert_close(found, images[:, 0])
    assert sum(seen) == 3 * 2 * 2
