"""Flows: their densities against the change of variables, and the way back."""

import math

import pytest
import torch

from lossnet.nets import FCN, FlowStep, MaskFlow, UNet


def tiny(levels=2, steps=2, encoder=None):
    """A flow none of whose layers is the identity, as they are at first."""
    torch.manual_seed(0)
    flow = MaskFlow(encoder or FCN(3, (3, 4, 4)), levels, steps).double()
    with torch.no_grad():
        for name, value in flow.named_parameters():
            if not name.startswith("encoder"):
                value.add_(0.1 * torch.randn_like(value))
    return flow


def given(size, batch=2):
    torch.manual_seed(1)
    return torch.rand(batch, 3, *size).double(), torch.randn(batch, 1, *size).double()


@pytest.mark.parametrize(("levels", "size"), [(1, (2, 4)), (2, (4, 8)), (3, (8, 8))])
def test_the_density_is_that_of_the_change_of_variables(levels, size):
    """``log N(f(v); 0, I) + log |det ∂f/∂v|``, with the Jacobian of all pixels taken by autograd."""
    flow = tiny(levels)
    x, v = given(size)
    found = flow.log_density(v, flow.conditions(x))
    for row in range(len(v)):
        conditions = [c[row : row + 1] for c in flow.conditions(x)]
        z = flow(v[row : row + 1], conditions)[0].flatten()
        jacobian = torch.autograd.functional.jacobian(
            lambda u, c=conditions: flow(u.view(1, 1, *size), c)[0].flatten(), v[row].flatten()
        )
        normal = -0.5 * (z.dot(z) + len(z) * math.log(2 * math.pi))
        expected = normal + torch.linalg.slogdet(jacobian).logabsdet
        torch.testing.assert_close(found[row], expected, rtol=1e-10, atol=1e-10)


def test_the_inverse_is_exact_both_ways():
    flow = tiny(3)
    x, v = given((8, 16))
    conditions = flow.conditions(x)
    with torch.no_grad():
        z, _ = flow(v, conditions)
        torch.testing.assert_close(flow.inverse(z, conditions), v)
        noise = torch.randn_like(z)
        torch.testing.assert_close(flow(flow.inverse(noise, conditions), conditions)[0], noise)
    assert (z - v.reshape(z.shape)).abs().mean() > 0.1, "it is not the identity"


def test_every_step_sees_the_image():
    step, u = FlowStep(4, 3).double(), torch.randn(1, 4, 2, 2).double()
    with torch.no_grad():
        for value in step.parameters():
            value.add_(torch.randn_like(value))
    one, other = (step(u, torch.randn(1, 3, 2, 2).double()) for _ in range(2))
    assert (one[0] != other[0]).all()
    assert one[1] != other[1]


def test_the_loss_is_that_of_masks_dequantised_in_their_own_cells():
    flow = tiny(1, 1)
    x, _ = given((4, 4))
    y = (torch.rand(2, 4, 4) < 0.5).double()
    seen = []
    flow.log_density = lambda v, conditions: seen.append(v) or v.flatten(1).sum(1)
    flow.losses(x, y)
    (v,) = seen
    assert v.shape == (2, 1, 4, 4)
    assert bool(((v >= 0) == (y.unsqueeze(1) == 1)).all())
    assert -1 <= float(v.min()) < 0 <= float(v.max()) < 1


@pytest.mark.parametrize("size", [(8, 8), (12, 10), (5, 3)])
def test_images_of_any_size(size):
    flow = tiny(2, 1, UNet(width=4, depth=2)).eval()
    x, _ = given(size)
    assert flow.losses(x, torch.ones(2, *size).double()).shape == (2,)
    generator = torch.Generator().manual_seed(0)
    assert flow.sample(x, 3, generator).shape == (2, 3, *size)


def test_samples_are_those_of_the_noise():
    flow = tiny(1, 2)
    x, _ = given((2, 2))
    drawn = flow.sample(x, 3, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    conditions = flow.conditions(x)
    first, second = (torch.randn(1, 4, 1, 1, dtype=torch.float64, generator=generator) for _ in range(2))
    for draw, noise in enumerate((first, -first, second)):  # the same for both images
        noise = noise.expand(2, -1, -1, -1)
        torch.testing.assert_close(drawn[:, draw], flow.inverse(noise, conditions).squeeze(1))
