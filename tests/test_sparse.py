import numpy as np
import pytest
import torch

from lossnet.energies import LabelInteraction
from lossnet.sparse import _scan, distinct, few_values, product, squared_norm

LABELS = 30


def sets(batch=4, count=50, seed=0):
    """Candidates of one label on average, in float64: many are equal, some are empty."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(batch, count, LABELS, generator=generator, dtype=torch.float64) < 1 / LABELS).double()


@pytest.mark.parametrize("shape", [(4, 50), (1, 1), (0, 3)])
def test_different_sets_are_told_apart_and_equal_ones_are_not(shape):
    y = sets(*shape)
    rows, places = distinct(y)
    assert len(rows) == len(np.unique(y.reshape(-1, LABELS).numpy(), axis=0))
    assert torch.equal(rows[places].view_as(y), y)


def test_what_is_known_of_different_sets_is_what_a_look_at_them_says():
    rows, _ = distinct(sets())
    _, known = rows._few_values
    found = _scan(rows)
    for name in ("row", "column", "value", "shape"):
        np.testing.assert_array_equal(getattr(known, name), getattr(found, name))


@pytest.mark.parametrize("y", [sets() * 0.5, torch.rand(2, 3, LABELS), sets().requires_grad_()])
def test_what_are_no_sets_of_few_labels_stays_as_it_is(y):
    rows, places = distinct(y)
    assert rows is y
    assert places is None


def test_energies_of_equal_sets_computed_once_have_the_same_derivatives_of_three_orders():
    y = sets()
    term = LabelInteraction(LABELS, hidden=7).double()

    def derivatives(training):
        """The energies; gradients of a function of them; of their length; and of that's."""
        energies = term.train(training).evaluate(None, y)
        found, value = [[energies]], torch.tanh(energies).pow(3).sum()
        for _ in range(3):
            found.append(torch.autograd.grad(value, list(term.parameters()), create_graph=True))
            value = sum(gradient.pow(2).sum() for gradient in found[-1])
        return found

    for mine, its in zip(derivatives(True), derivatives(False), strict=True):
        torch.testing.assert_close(list(mine), list(its), rtol=1e-9, atol=1e-12)
    plain = torch.autograd.grad(term.train().evaluate(None, y).sum(), list(term.parameters()))
    again = torch.autograd.grad(term.eval().evaluate(None, y).sum(), list(term.parameters()))
    torch.testing.assert_close(plain, again)


def inputs(values, rows=5, columns=60):
    """Few ones, or few numbers."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
    return few_values(torch.where(x < 0.08, 20 * x if values else 1.0, 0.0))


@pytest.mark.parametrize("values", [True, False], ids=["numbers", "ones"])
@pytest.mark.parametrize("columns", [60, 20], ids=["known", "too few inputs"])
def test_norms_of_gradients_of_weights_are_those_of_the_gradients(values, columns):
    x, weight = inputs(values, columns=columns), torch.randn(columns, 3, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(product(x, weight).pow(3).sum(), weight)
    assert hasattr(gradient, "_square") == (columns == 60)
    assert gradient.square().sum() > 1e-3
    torch.testing.assert_close(squared_norm(gradient), gradient.square().sum())
    gradient.mul_(2)  # as clipping would
    torch.testing.assert_close(squared_norm(gradient), gradient.square().sum())


def test_norms_of_gradients_of_weights_used_twice_are_those_of_the_sums():
    weight = torch.randn(60, 3, dtype=torch.float64).requires_grad_()
    value = product(inputs(True), weight).pow(3).sum() + product(inputs(False), weight).pow(2).sum()
    (gradient,) = torch.autograd.grad(value + weight.sum(), weight)
    torch.testing.assert_close(squared_norm(gradient), gradient.square().sum())
