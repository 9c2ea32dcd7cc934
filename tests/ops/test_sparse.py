import numpy as np
import pytest
import torch

from lossnet.energies import LabelInteraction
from lossnet.ops import dense_layer
from lossnet.ops.candidates import beside
from lossnet.ops.sparse import _nonzeros, _scan, _squares, distinct, nonzeros, product, squared_norm

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


def known(y):
    """What is known of a tensor without a look at it."""
    return _nonzeros.get(y)


def test_what_is_known_of_different_sets_is_what_a_look_at_them_says():
    rows, _ = distinct(sets())
    same_matrix(known(rows), _scan(rows))


def drawn(steps=3, batch=4, count=50):
    """The truth, sets of several steps beside it, and what `beside` makes of them."""
    truth = sets(1, batch)[0]
    some = torch.stack([sets(batch, count, seed) for seed in range(1, steps + 1)])
    return truth, some, beside(truth, some.bool(), torch.float64)


def same_matrix(mine, other):
    for name in ("starts", "column", "value", "shape"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))


def test_sets_beside_the_truth_are_known_by_their_ones():
    truth, some, parts = drawn()
    for part, own in zip(parts, some, strict=True):
        assert torch.equal(part[:, 1:], own)
        assert torch.equal(part[:, 0], truth)
        same_matrix(known(part), _scan(part))
        (rows, places), (others, elsewhere) = distinct(part), distinct(part.clone())
        assert torch.equal(rows, others)
        assert torch.equal(places, elsewhere)
        same_matrix(known(rows), _scan(rows))
    parts[0][0, 0] = 1
    assert known(parts[0]) is None, "it has changed"


def test_sets_beside_a_truth_that_is_none_or_with_many_labels_are_just_numbers():
    truth, some, _ = drawn()
    soft = beside(0.5 * truth, some.bool(), torch.float64)
    assert torch.equal(soft[1][:, 0], 0.5 * truth)
    assert torch.equal(soft[1][:, 1:], some[1])
    many = beside(truth, ~some.bool(), torch.float64)
    assert torch.equal(many[2][:, 1:], 1 - some[2])
    assert all(known(part) is None for part in (*soft, *many))


def test_what_is_known_goes_with_its_tensor_and_leaves_nothing_on_it():
    before = len(_nonzeros._entries)
    y = sets()
    nonzeros(y)
    assert len(_nonzeros._entries) == before + 1
    assert vars(y) == {}
    del y
    assert len(_nonzeros._entries) == before


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
    return nonzeros(torch.where(x < 0.08, 20 * x if values else 1.0, 0.0))


@pytest.mark.parametrize("values", [True, False], ids=["numbers", "ones"])
@pytest.mark.parametrize("columns", [60, 20], ids=["known", "too few inputs"])
def test_norms_of_gradients_of_weights_are_those_of_the_gradients(values, columns):
    x, weight = inputs(values, columns=columns), torch.randn(columns, 3, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(product(x, weight).pow(3).sum(), weight)
    assert (_squares.get(gradient) is not None) == (columns == 60)
    assert gradient.square().sum() > 1e-3
    torch.testing.assert_close(squared_norm(gradient), gradient.square().sum())
    gradient.mul_(2)  # as clipping would
    torch.testing.assert_close(squared_norm(gradient), gradient.square().sum())


def test_norms_of_gradients_of_weights_used_twice_are_those_of_the_sums():
    weight = torch.randn(60, 3, dtype=torch.float64).requires_grad_()
    value = product(inputs(True), weight).pow(3).sum() + product(inputs(False), weight).pow(2).sum()
    (gradient,) = torch.autograd.grad(value + weight.sum(), weight)
    torch.testing.assert_close(squared_norm(gradient), gradient.square().sum())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("csr", [True, False], ids=["csr", "strided"])
def test_inputs_in_half_precision(dtype, csr):
    x = (torch.rand(5, 60, generator=torch.Generator().manual_seed(1)) < 0.08) * 0.5
    weight = torch.randn(60, 3).to(dtype).requires_grad_()
    given = x.to(dtype).to_sparse_csr() if csr else x.to(dtype)
    out = dense_layer(given, weight, transposed=True, training=True)
    (gradient,) = torch.autograd.grad(out.float().square().sum(), weight)
    exact = x @ weight.detach().float()
    torch.testing.assert_close(out.float(), exact, rtol=0.02, atol=0.02)
    torch.testing.assert_close(gradient.float(), 2 * x.T @ exact, rtol=0.05, atol=0.05)
    squared_norm(gradient)


@pytest.mark.parametrize("width", [59, 61, 20])
@pytest.mark.parametrize("csr", [True, False], ids=["csr", "strided"])
def test_inputs_of_another_width_are_refused(width, csr):
    x = torch.zeros(5, width)
    x[:, 3] = 1
    with pytest.raises(ValueError, match=f"inputs have {width} features; this layer takes 60"):
        dense_layer(x.to_sparse_csr() if csr else x, torch.ones(60, 3), transposed=True, training=True)
