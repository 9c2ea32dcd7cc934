import pytest
import torch

from lossnet.analysis import mask_pull
from lossnet.data import Crops
from lossnet.energies import FeatureEnergy, ImageEnergy
from lossnet.nets import UNet


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, 3, 8, 8, generator=generator, dtype=torch.float64)


@pytest.fixture
def masks():
    return torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def energies():
    torch.manual_seed(0)
    yield ImageEnergy(3, (8, 8), filters=(4, 4, 4), hidden=(6, 5)).double().eval()
    yield FeatureEnergy(UNet(width=4, depth=2), hidden=4).double().eval()


@pytest.mark.parametrize("energy", energies(), ids=lambda energy: type(energy).__name__)
def test_the_pull_agrees_with_finite_differences(energy, images, masks):
    found = mask_pull(energy, images, masks)
    for image, row, column in ((0, 0, 0), (0, 3, 5), (1, 7, 7)):
        values = []
        for step in (1e-5, -1e-5):
            moved = masks.clone()
            moved[image, row, column] += step
            values.append(energy(images, moved.unsqueeze(1)).sum().item())
        expected = -(values[0] - values[1]) / 2e-5
        assert float(found[image, row, column]) == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert found.shape == masks.shape
    assert not masks.requires_grad


@pytest.mark.parametrize("flips", [False, True])
def test_the_pull_of_crops_is_the_mean_over_those_that_see_a_pixel(images, masks, flips):
    torch.manual_seed(0)
    energy = ImageEnergy(3, (6, 6), filters=(4, 4, 4), hidden=(6, 5)).double().eval()
    crops = Crops(6, per_side=2, flips=flips)
    found = mask_pull(energy, images, masks, crops)
    total, seen = torch.zeros_like(masks), torch.zeros_like(masks)
    for mirrored in (False, True) if flips else (False,):
        x, y = (images.flip(-1), masks.flip(-1)) if mirrored else (images, masks)
        part, count = torch.zeros_like(masks), torch.zeros_like(masks)
        for top, left in crops.positions(8, 8):
            window = (..., slice(top, top + 6), slice(left, left + 6))
            part[window] += mask_pull(energy, x[window], y[window])
            count[window] += 1
        total += part.flip(-1) if mirrored else part
        seen += count.flip(-1) if mirrored else count
    torch.testing.assert_close(found, total / seen)
