from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossnet.data import Crops, Distortion, MaskData
from lossnet.data import distortion as module
from lossnet.spaces import Batch


def blob(count: int = 1, height: int = 33, width: int = 33) -> Batch:
    """A disc off the centre, drawn in the image and in the mask."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    disc = ((rows - height / 3) ** 2 + (columns - width / 2) ** 2 < (height / 5) ** 2).float()
    return Batch(disc.expand(count, 1, height, width).clone(), disc.expand(count, height, width).clone())


@settings(deadline=None, max_examples=30)
@given(st.floats(0, 0.5), st.floats(0, 0.5), st.integers(3, 12), st.integers(3, 12), st.integers(1, 3))
def test_images_stay_images_and_masks_stay_masks(warp, colour, height, width, channels):
    batch = Batch(torch.rand(4, channels, height, width), (torch.rand(4, height, width) < 0.5).float())
    seen = Distortion(warp, colour)(batch)
    assert seen.x.shape == batch.x.shape
    assert seen.y.shape == batch.y.shape
    assert seen.x.isfinite().all()
    assert seen.x.min() >= 0
    assert seen.x.max() <= 1
    assert set(seen.y.unique().tolist()) <= {0.0, 1.0}


def test_nothing_happens_without_strength():
    batch = blob()
    seen = Distortion()(batch)
    assert seen.x is batch.x
    assert seen.y is batch.y


def test_the_mask_goes_where_the_image_goes():
    torch.manual_seed(0)
    batch = blob(count=50)
    seen = Distortion(warp=0.4)(batch)
    moved = (seen.y != batch.y).flatten(1).any(1)
    assert moved.float().mean() > 0.9
    # Up to the border of the disc, where bilinear values lie between 0 and 1.
    torch.testing.assert_close((seen.x[:, 0] >= 0.5).float(), seen.y)


def test_every_image_is_distorted_differently():
    torch.manual_seed(0)
    seen = Distortion(warp=0.4, colour=0.4)(blob(count=6))
    assert len({tuple(image.flatten().tolist()) for image in seen.x}) == 6


@pytest.mark.parametrize(("height", "width"), [(41, 41), (41, 61), (61, 41)])
def test_a_turn_is_a_turn_of_the_image_as_it_looks(monkeypatch, height, width):
    """A quarter turn brings a pixel above the centre to its side, at the same distance, in any aspect."""
    monkeypatch.setattr(
        module, "_uniform", lambda limit, shape, like: torch.tensor([[0.0], [0.0], [math.pi / 2]])
    )
    y = torch.zeros(1, height, width)
    middle = (height // 2, width // 2)
    y[0, middle[0] - 10, middle[1]] = 1
    seen = Distortion(warp=1.0)(Batch(y.unsqueeze(1), y))
    (place,) = seen.y[0].nonzero().tolist()
    assert (place[0], abs(place[1] - middle[1])) == (middle[0], 10)


def test_a_stretch_has_the_size_it_says(monkeypatch):
    """Reading at twice the distance from the centre halves what is seen, along that side alone."""
    factors = torch.tensor([[math.log(2)], [0.0], [0.0]])
    monkeypatch.setattr(module, "_uniform", lambda limit, shape, like: factors)
    y = torch.zeros(1, 40, 40)
    y[0, 10:30, 10:30] = 1
    seen = Distortion(warp=1.0)(Batch(y.unsqueeze(1), y)).y[0]
    seen = seen[:, 10:30]  # beyond are reflections
    assert seen.any(0).sum() == 10
    assert seen.any(1).sum() == 20


def test_factors_are_uniform_within_their_limits():
    torch.manual_seed(0)
    drawn = module._uniform(0.3, (20_000,), torch.zeros(1, dtype=torch.float64))
    assert drawn.dtype == torch.float64
    assert drawn.abs().max() <= 0.3
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [0, 0.6 / math.sqrt(12)], atol=0.005)


def test_colour_leaves_the_mask_and_a_black_image_alone():
    batch = Batch(torch.zeros(2, 3, 5, 5), torch.ones(2, 5, 5))
    seen = Distortion(colour=0.5)(batch)
    torch.testing.assert_close(seen.x, batch.x)
    assert seen.y is batch.y


def test_negative_strength_is_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        Distortion(warp=-0.1)
    with pytest.raises(ValueError, match="from 0 to 1"):
        Distortion(patches=1.5)


def test_training_sees_distorted_crops_and_prediction_does_not():
    data = MaskData(np.random.default_rng(0).random((3, 3, 16, 16)), np.ones((3, 16, 16)))
    plain, distorted = Crops(16), Crops(16, distortion=Distortion(warp=0.3))
    indices = torch.arange(3)
    torch.testing.assert_close(plain.training(data).batch(indices).x, data.batch(indices).x)
    assert not torch.equal(distorted.training(data).batch(indices).x, data.batch(indices).x)
    x = data.batch(indices).x
    torch.testing.assert_close(distorted.averaged(lambda x, mask: x[:, 0])(x, None), x[:, 0])


def numbered(count: int, height: int, width: int) -> Batch:
    """Images whose pixels say which image they are of and where, and masks that agree with them."""
    pixels = torch.arange(count * height * width, dtype=torch.float64).view(count, height, width)
    return Batch(pixels.unsqueeze(1), pixels % 2)


def test_a_patch_is_one_rectangle_of_the_other_image_with_its_mask():
    torch.manual_seed(0)
    batch, others = numbered(400, 20, 30), numbered(400, 20, 30)
    others = Batch(-others.x - 1, others.y)
    seen = Distortion(patches=0.5).paste(batch, others)
    foreign = seen.x[:, 0] < 0
    torch.testing.assert_close(seen.x[:, 0], torch.where(foreign, others.x[:, 0], batch.x[:, 0]))
    torch.testing.assert_close(seen.y, torch.where(foreign, others.y, batch.y))
    pasted = foreign.flatten(1).any(1)
    assert 0.4 < pasted.double().mean() < 0.6
    sides = {"rows": foreign.any(2).sum(1)[pasted], "columns": foreign.any(1).sum(1)[pasted]}
    torch.testing.assert_close(foreign.flatten(1).sum(1)[pasted], sides["rows"] * sides["columns"])
    for side, length in zip(sides.values(), (20, 30), strict=True):
        assert (side.min(), side.max()) == (0.2 * length, 0.6 * length)
    # A rectangle's rows follow each other.
    assert ((foreign.any(2).int().diff(dim=1) > 0).sum(1) <= 1).all()
    # All places are reached.
    assert foreign.any(0).all()


def test_a_patch_comes_from_any_training_image():
    torch.manual_seed(0)
    data = MaskData(torch.arange(8.0).view(8, 1, 1, 1).expand(8, 1, 6, 6) / 8, torch.ones(8, 6, 6))
    seen = (
        Crops(6, distortion=Distortion(patches=1.0)).training(data).batch(torch.zeros(200, dtype=torch.long))
    )
    assert len(seen.x.unique()) == 8


@pytest.mark.parametrize(
    "rows", [[0, 2], np.array([0, 2]), torch.tensor([0, 2])], ids=["list", "numpy", "torch"]
)
def test_rows_are_given_as_without_patches(rows):
    data = MaskData(torch.rand(5, 3, 6, 6), torch.ones(5, 6, 6))
    for distortion in (Distortion(0.1), Distortion(0.1, patches=0.5)):
        assert Crops(4, distortion=distortion).training(data).batch(rows).x.shape == (2, 3, 4, 4)
