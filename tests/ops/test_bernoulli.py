import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from lossnet.nets.layers import Dropout
from lossnet.ops import Bernoulli
from lossnet.ops.bernoulli import _uniform


def flip(chances, count):
    return Bernoulli(chances)(count)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("chance", [1e-4, 1 / 256, 0.01, 0.3, 0.5, 0.97, 1 - 1e-4])
def test_chances_are_kept(chance):
    drawn = flip(torch.full((50, 37), chance, dtype=torch.float64), 500)
    assert drawn.shape == (50, 500, 37)
    assert set(drawn.unique().tolist()) <= {0.0, 1.0}
    ones, trials = int(drawn.sum()), drawn.numel()
    assert stats.binomtest(ones, trials, chance).pvalue > 1e-3


def test_each_unit_has_its_own_chance():
    chances = torch.linspace(0, 1, 90).view(3, 5, 6)
    found = flip(chances, 20_000).mean(1)
    torch.testing.assert_close(found, chances, atol=0.02, rtol=0)
    assert (found[0, 0, 0], found[-1, -1, -1]) == (0, 1)


@pytest.mark.parametrize("chance", [0.002, 0.3])
def test_draws_are_independent(chance):
    drawn = flip(torch.full((200, 50), chance), 100)
    for one, other in (
        (drawn[:, :, 1:], drawn[:, :, :-1]),
        (drawn[:, 1:], drawn[:, :-1]),
        (drawn[1:], drawn[:-1]),
        (drawn[:, :, 8:], drawn[:, :, :-8]),
    ):
        both = one * other
        assert stats.binomtest(int(both.sum()), both.numel(), chance**2).pvalue > 1e-3


def test_counts_are_binomial():
    counts = flip(torch.full((400, 3), 0.013), 100).sum((1, 2)).int().numpy()
    found = np.bincount(counts.clip(max=9), minlength=10)
    expected = stats.binom.pmf(range(10), 300, 0.013)
    expected[-1] += 1 - expected.sum()
    assert stats.chisquare(found, 400 * expected).pvalue > 1e-3


def test_later_bits_are_uniform():
    places = np.tile(np.arange(1000), 50)
    seeds = np.repeat(np.arange(50, dtype=np.uint64), 1000)  # the worst of seeds
    found = _uniform(seeds, places)
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    assert len(np.unique(found)) == len(found)


def test_seeds_decide():
    torch.manual_seed(1)
    one = flip(torch.full((4, 9), 0.3), 5)
    torch.manual_seed(1)
    assert torch.equal(flip(torch.full((4, 9), 0.3), 5), one)
    assert not torch.equal(flip(torch.full((4, 9), 0.3), 5), one)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_keeps_the_mean(p):
    x = torch.ones(200, 20, 50, requires_grad=True)
    dropped = Dropout(p)(x)
    kept = int((dropped > 0).sum())
    assert stats.binomtest(kept, x.numel(), 1 - p).pvalue > 1e-3
    torch.testing.assert_close(dropped[dropped > 0], torch.full((kept,), 1 / (1 - p)))
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    assert torch.equal(gradient, dropped.detach())


@pytest.mark.parametrize("width", [7, 64, 131])
def test_halves_are_fair_everywhere_and_independent(width):
    kept = Dropout(0.5)(torch.ones(20_000, width)) / 2
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(kept.mean(0), torch.full((width,), 0.5), atol=0.018, rtol=0)  # five errors
    for distance in (1, 3, 6):
        both = kept[:, distance:] * kept[:, :-distance]
        assert stats.binomtest(int(both.sum()), both.numel(), 0.25).pvalue > 1e-3
    assert stats.binomtest(int((kept[1:] * kept[:-1]).sum()), kept[1:].numel(), 0.25).pvalue > 1e-3


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_or_everything_is_dropped(p):
    assert (Dropout(p)(torch.ones(3, 4)) == 1 - p).all()


def test_dropout_is_torchs_where_there_is_no_batch():
    torch.manual_seed(2)
    one = Dropout(0.5)(torch.ones(40))
    torch.manual_seed(2)
    assert torch.equal(one, nn.Dropout(0.5)(torch.ones(40)))


def test_no_dropout_in_evaluation():
    assert (Dropout(0.5).eval()(torch.ones(3, 4)) == 1).all()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1)])
def test_small_and_empty(shape):
    assert flip(torch.full(shape, 0.5), 4).shape == (shape[0], 4, shape[1])
    for p in (0.3, 0.5):
        assert Dropout(p)(torch.ones(shape)).shape == shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chances_and_inputs_in_half_precision(dtype):
    drawn = flip(torch.tensor([[0.0, 0.3, 1.0]], dtype=dtype), 2000)
    assert drawn.dtype == dtype
    torch.testing.assert_close(drawn.float().mean(1), torch.tensor([[0.0, 0.3, 1.0]]), atol=0.04, rtol=0)
    assert Dropout(0.3)(torch.ones(3, 4, dtype=dtype)).dtype == dtype


def test_what_a_mask_hides_is_never_drawn():
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    drawn = Bernoulli(torch.ones(1, 3), mask)
    assert drawn(5).unique(dim=1).tolist() == [[[1.0, 0.0, 1.0]]]
    assert drawn(5, torch.bool).dtype == torch.bool
