"""What ops do on a CPU against their references, with gradients."""

import pytest
import torch

from lossnet import ops
from lossnet.ops.adamw import reference_clipped_adamw
from lossnet.ops.bernoulli import Bernoulli, reference_bernoulli
from lossnet.ops.candidates import reference_candidate_batches
from lossnet.ops.chains import reference_log_product
from lossnet.ops.energies import (
    reference_mask_convolution,
    reference_weighted_sum,
)

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def same(found, expected, leaves):
    torch.testing.assert_close(found, expected)
    slopes = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, slopes), torch.autograd.grad(expected, leaves, slopes)
    )


def leaf(*shape, dtype):
    return torch.randn(shape, dtype=dtype).requires_grad_()


def inputs(kind, dtype):
    """Rows ``(6, 40)``, of which few values are not zero, many, or some of a gradient's."""
    x = torch.randn(6, 40, dtype=dtype)
    return x.requires_grad_() if kind == "live" else x * (torch.rand(6, 40) < 0.05) if kind == "few" else x


def dense(x, weight, bias):
    """Each network's rows times its weights ``(…, inputs, outputs)``, plus its bias."""
    rows = x if weight.dim() == 2 else x.reshape(len(weight), -1, x.shape[-1])
    out = rows @ weight if bias is None else rows @ weight + bias.unsqueeze(-2)
    return out.view(*x.shape[:-1], -1)


@TYPES
@pytest.mark.parametrize("kind", ["few", "dense", "live"])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("networks", [None, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_dense_layers(dtype, kind, transposed, networks, bias):
    first = () if networks is None else (networks,)
    weight = leaf(*first, *((40, 5) if transposed else (5, 40)), dtype=dtype)
    offset = leaf(*first, 5, dtype=dtype) if bias else None
    x = inputs(kind, dtype)
    leaves = [one for one in (x, weight, offset) if one is not None and one.requires_grad]
    found = ops.dense_layer(x, weight, offset, transposed, training=True)
    same(found, dense(x, weight if transposed else weight.mT, offset), leaves)


@TYPES
@pytest.mark.parametrize("kind", ["sets", "numbers", "live"])
@pytest.mark.parametrize("networks", [None, 2])
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_label_interactions(dtype, kind, networks, shifted, biased):
    y = (torch.rand(4, 9, 30) < 0.05).to(dtype)
    y = y if kind == "sets" else torch.rand(4, 9, 30, dtype=dtype)
    y = y.requires_grad_() if kind == "live" else y
    first = () if networks is None else (networks,)
    mixing, weights = leaf(*first, 30, 7, dtype=dtype), leaf(*first, 1, 7, dtype=dtype)
    shift = leaf(4, 1, 7, dtype=dtype) if shifted else None
    bias = leaf(*first, 7, dtype=dtype) if biased else None
    leaves = [one for one in (y, mixing, weights, shift, bias) if one is not None and one.requires_grad]
    found = ops.label_interaction(y, mixing, weights, shift, bias, training=True)
    hidden = dense(y, mixing, bias) + (shift if shifted else 0)
    same(found, dense(torch.nn.functional.softplus(hidden), weights.mT, None).squeeze(-1), leaves)


@TYPES
@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("shape", [(4, 9, 5), (2, 4, 9, 5), (4, 2, 5), (4, 9, 3, 5)])
def test_weighted_sums(dtype, live, shape):
    y = torch.randn(shape, dtype=dtype).requires_grad_(live)
    weights = leaf(4, *((3, 5) if shape == (4, 9, 3, 5) else (5,)), dtype=dtype)
    leaves = [y, weights] if live else [weights]
    same(ops.weighted_sum(y, weights), reference_weighted_sum(y, weights), leaves)


def test_a_sum_of_another_type_than_its_weights():
    y, weights = torch.randn(4, 9, 5), torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(ops.weighted_sum(y, weights), (y * weights.unsqueeze(1)).sum(-1))


@TYPES
@pytest.mark.parametrize("size", [1, 3, 5])
def test_convolutions_of_masks(dtype, size):
    given = [leaf(*shape, dtype=dtype) for shape in ((2, 4, 7, 6), (2, 3, 7, 6), (4, 1, size, size))]
    same(ops.mask_convolution(*given), reference_mask_convolution(*given), given)


def test_samplers_other_than_of_label_sets_are_asked_in_every_step():
    asked = []

    def sampler(count):
        asked.append(count)
        return torch.full((2, count, 3), float(len(asked)))

    batches = ops.candidate_batches(sampler, torch.zeros(2, 3), samples=4, count=2)
    assert asked == []
    assert next(batches)[:, 1:].unique().tolist() == [1.0]
    assert asked == [4]
    (second,) = batches
    assert second.shape == (2, 5, 3)
    assert second[:, 0].abs().max() == 0


@pytest.mark.parametrize("chance", [0.03, 0.6])
def test_candidate_batches_are_distributed_as_the_reference_has_them(chance):
    chances, truth = torch.full((8, 20), chance), (torch.rand(8, 20) < 0.1).float()
    found, expected = (
        torch.stack(list(batches(Bernoulli(chances), truth, 20, 60)))
        for batches in (ops.candidate_batches, reference_candidate_batches)
    )
    plain = reference_bernoulli(chances, 20 * 60)
    assert found.shape == expected.shape == (60, 8, 21, 20)
    assert torch.equal(found[:, :, 0], expected[:, :, 0])
    for drawn in (found[:, :, 1:], expected[:, :, 1:], plain):
        error = (chance * (1 - chance) / drawn.numel()) ** 0.5
        assert drawn.mean().item() == pytest.approx(chance, abs=4 * error)


@TYPES
@pytest.mark.parametrize("clip", [0.5, 1e9])
def test_the_reference_of_a_clipped_step_is_torchs(dtype, clip):
    weights = [torch.randn(5, 4, dtype=dtype), torch.randn(3, dtype=dtype)]
    own = [weight.clone() for weight in weights]
    theirs = [torch.nn.Parameter(weight.clone()) for weight in weights]
    optimizer = torch.optim.AdamW(theirs, lr=0.03, weight_decay=0.1)
    moments = [[torch.zeros_like(weight) for weight in weights] for _ in range(2)]
    steps = [torch.zeros(1, dtype=dtype) for _ in weights]
    for _ in range(3):
        gradients = [torch.randn_like(weight) for weight in weights]
        for weight, gradient in zip(theirs, gradients, strict=True):
            weight.grad = gradient.clone()
        expected = torch.nn.utils.clip_grad_norm_(theirs, clip)
        optimizer.step()
        numbers = [torch.tensor([value], dtype=dtype) for value in (0.03, 0.1, clip)]
        tensors = own, gradients, *moments, steps
        norms = reference_clipped_adamw(tensors, *numbers, betas=(0.9, 0.999), eps=1e-8)
        torch.testing.assert_close(norms[0], expected)
        torch.testing.assert_close(own, [weight.detach() for weight in theirs])


@TYPES
@pytest.mark.parametrize("batched", [True, False])
def test_log_products(dtype, batched):
    scores, pairs = leaf(4, 30, dtype=dtype), leaf(*(4,) * batched, 30, 50, dtype=dtype)
    same(ops.log_product(pairs)(scores), reference_log_product(pairs)(scores), [scores, pairs])


def test_log_products_of_scores_that_lie_far_apart():
    """Columns that only the least likely rows reach, and ones that are forbidden."""
    scores = torch.tensor([[0.0, -300.0, -600.0], [-30.0, -30.0, -30.0]], requires_grad=True)
    never = torch.finfo(torch.float32).min / 9
    pairs = torch.tensor([[1.0, never, never, never], [50.0, 2.0, never, never], [0.0, 3.0, 5.0, never]])
    pairs.requires_grad_()
    found, expected = (make(pairs)(scores) for make in (ops.log_product, reference_log_product))
    torch.testing.assert_close(found[:, 3], expected[:, 3])
    same(found[:, :3], expected[:, :3], [scores, pairs])


def test_beyond_the_range_of_exponentials_sums_are_low_and_have_no_gradient():
    scores, pairs = torch.tensor([[0.0, -9e3]]).requires_grad_(), torch.tensor([[0.0, -1e30], [0.0, 0.0]])
    found = ops.log_product(pairs)(scores)
    assert found[0, 0] == 0
    assert -691 < found[0, 1] < -690
    (slopes,) = torch.autograd.grad(found.sum(), scores)
    assert slopes.tolist() == [[1.0, 0.0]]
