"""Each kernel against its reference in float64, with gradients of two orders."""

import math

import pytest
import torch
from torch.nn import functional

from lossnet.ops import _triton, use_kernels
from lossnet.ops.adamw import reference_clipped_adamw
from lossnet.ops.losses import reference_contrast, reference_cross_entropy

#: which the first product of a backward pass may say
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")


def near(found, expected, within):
    assert found.shape == expected.shape
    assert (found.double() - expected.double()).norm() <= within * expected.double().norm()


def compare(kernel, reference, inputs, within=1e-5):
    """Both functions of inputs, their gradients, and gradients of those by the first input."""
    doubles = [one.detach().double().requires_grad_(one.requires_grad) for one in inputs]
    found, expected = kernel(*inputs), reference(*doubles)
    near(found, expected, within)
    leaves, others = ([one for one in given if one.requires_grad] for given in (inputs, doubles))
    slopes = torch.linspace(-1, 2, found.numel(), device=found.device).view(found.shape)
    wanted = torch.autograd.grad(expected, others, slopes.double(), create_graph=True)
    for again in (False, True):
        given = torch.autograd.grad(found, leaves, slopes, retain_graph=True, create_graph=again)
        for one, other in zip(given, wanted, strict=True):
            near(one, other, within)
    second, reference_second = (
        torch.autograd.grad(sum((one**2).sum() for one in gradients), where)
        for gradients, where in ((given, leaves), (wanted, others))
    )
    for one, other in zip(second, reference_second, strict=True):
        near(one, other, 20 * within)


def leaf(*shape, device, scale=1.0):
    return (scale * torch.randn(shape, device=device)).requires_grad_()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("networks", [1, 3])
def test_the_read_out_of_an_energy(device, networks):
    from lossnet.ops._triton import readout

    hidden, weights = leaf(networks, 77, 50, device=device), leaf(networks, 50, device=device)

    def reference(hidden, weights):
        return (functional.softplus(hidden) * weights.unsqueeze(1)).sum(-1)

    compare(readout.read_out, reference, [hidden, weights])


@pytest.mark.parametrize("width", [2, 21, 300])
def test_the_contrast_of_candidates(device, width):
    from lossnet.ops._triton import losses

    offset = 3 * torch.randn(9, width, device=device)
    compare(losses.contrast, reference_contrast, [leaf(9, width, device=device, scale=3), offset], 1e-4)


def test_cross_entropy(device):
    from lossnet.ops._triton import losses

    truth = (torch.rand(9, 983, device=device) < 0.1).float()
    logits = leaf(9, 983, device=device, scale=5)
    compare(losses.cross_entropy, reference_cross_entropy, [logits, truth])
    with torch.no_grad():
        logits[3, 4] = float("nan")
    assert losses.cross_entropy(logits, truth).isnan().tolist() == [row == 3 for row in range(9)]


@pytest.mark.parametrize("labels", [5, 8, 1500])
def test_candidates_are_the_truth_and_draws_by_chance(device, labels):
    from lossnet.ops._triton import draw

    count = 1000 if device.type == "cuda" else 20  # an interpreter is slow
    logits, truth = 2 * torch.randn(6, labels, device=device), torch.ones(6, labels, device=device)
    truth[::2, 1:] = 0
    keys = torch.randint(2**62, (2,), generator=torch.Generator().manual_seed(5)).to(device)
    drawn = draw.draw(logits, truth, 6, count, keys)
    assert drawn.shape == (count, 6, 7, labels)
    assert torch.equal(drawn[:, 3:], draw.draw(logits[3:], truth[3:], 6, count, keys[1:])), "as alone"
    assert (drawn[:, :, 0] == truth).all()
    samples = drawn[:, :, 1:]
    assert ((samples == 0) | (samples == 1)).all()
    assert (samples.mean((0, 2)) - logits.sigmoid()).abs().max() < 5 * (0.25 / (6 * count)) ** 0.5
    if count > 100:
        assert torch.corrcoef(samples[:, 0].flatten(1).T[:50]).fill_diagonal_(0).abs().max() < 0.2


@pytest.fixture
def _tuples():
    """Skip without what the step of AdamW takes: tuples of tensors."""
    if not hasattr(pytest.importorskip("triton.language"), "tuple"):
        pytest.skip("Triton before 3.3 does not pass tuples of tensors to a kernel")


@pytest.mark.usefixtures("_tuples")
@pytest.mark.parametrize("networks", [1, 3])
@pytest.mark.parametrize("clip", [0.5, 1e9])
def test_a_clipped_step(device, networks, clip):
    from lossnet.ops._triton import adamw

    shapes = [(75, 40), (40,), (33, 70), (1,)]
    tensors = [[torch.rand(networks, *shape, device=device) for shape in shapes] for _ in range(4)]
    numbers = torch.linspace(1, 2, networks, device=device)
    options = numbers / 100, numbers / 10, numbers * clip
    results = []
    for step, kind in ((adamw.adamw, torch.float32), (reference_clipped_adamw, torch.float64)):
        own = [[one.to(kind, copy=True) for one in part] for part in tensors]
        steps = [torch.full((networks,), 3.0, device=device, dtype=kind) for _ in shapes]
        for _ in range(2):
            norms = step([*own, steps], *(one.to(kind) for one in options), betas=(0.9, 0.999), eps=1e-8)
        assert all((one == 5).all() for one in steps)
        results.append([*own[0], *own[2], *own[3], norms])
    for one, other in zip(*results, strict=True):
        near(one, other, 1e-5)


@pytest.mark.usefixtures("_tuples")
@pytest.mark.filterwarnings("error")
def test_kernels_are_tried_out_where_no_gradient_is_wanted(device):
    with torch.no_grad():
        _triton.try_out(device)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.filterwarnings("error:kernels")
@pytest.mark.parametrize(("method", "loss"), [("cross-entropy", "none"), ("seal", "margin"), ("seal", "nce")])
def test_training_with_kernels_is_training_without(make_data, method, loss):
    from lossnet.build import build
    from lossnet.settings import Settings
    from lossnet.task import Task
    from lossnet.training import Trainer

    def history(kernels):
        torch.manual_seed(0)
        settings = Settings(task_dropout=0.0, energy_dropout=0.0, energy_steps=2, task_steps=1)
        made = build(method, loss, settings, Task.of_sizes(6, 4))
        trainer = Trainer(made, seed=0, max_epochs=2, batch_size=8, progress=False, device="cuda")
        with use_kernels(kernels):
            return trainer.fit(make_data(), make_data(seed=1))

    for ours, theirs in zip(history(True), history(False), strict=True):
        for name, value in theirs["losses"].items():
            if loss == "nce":  # whose candidates are drawn from other random numbers
                assert math.isfinite(ours["losses"][name])
            else:
                assert ours["losses"][name] == pytest.approx(value, rel=1e-3)
