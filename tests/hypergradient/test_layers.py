"""Layers with a constant input: the same answers from smaller vectors."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lossnet.hypergradient import (
    ConjugateGradient,
    Diagonal,
    DoubleBackward,
    Exact,
    FiniteDifference,
    Identity,
    Neumann,
    RankOne,
    implicit_gradient,
)
from lossnet.hypergradient.evaluation import Layout
from lossnet.hypergradient.layers import Gradient, thin_layers
from lossnet.nets import InputLayer

INPUTS, OUTPUTS, ROWS = 20, 6, 5
WHOLE = OUTPUTS * INPUTS + OUTPUTS + 2 * OUTPUTS + 2
THIN = OUTPUTS * ROWS + OUTPUTS + 2 * OUTPUTS + 2


class Problem:
    """A network whose first layer is wide, an energy of its output, and a cost."""

    def __init__(self, bias=True, shape=(ROWS,)):
        torch.manual_seed(0)
        self.x = torch.randn(*shape, INPUTS).double()
        self.y = (torch.rand(*shape, 2) > 0.5).double()
        first = nn.Linear(INPUTS, OUTPUTS, bias=bias)
        self.net = nn.Sequential(first, nn.Softplus(), nn.Linear(OUTPUTS, 2)).double()
        self.theta = list(self.net.parameters())
        self.phi = [torch.randn(4, 2).double().requires_grad_(), torch.randn(4).double().requires_grad_()]

    def energy(self, y):
        return (F.softplus(y @ self.phi[0].T) @ self.phi[1]).mean()

    def inner(self, logits=None):
        logits = self.net(self.x) if logits is None else logits
        return self.energy(logits.sigmoid()) + F.binary_cross_entropy_with_logits(logits, self.y)

    def outer(self, logits=None):
        predicted = (self.net(self.x) if logits is None else logits).sigmoid()
        return (predicted - self.y).square().mean() + self.energy(self.y)

    def gradient(self, solver, live=False, thin=True, **options):
        logits = self.net(self.x)
        outer, inner = (self.outer(logits), self.inner(logits)) if live else (self.outer, self.inner)
        options = {"products": DoubleBackward(thin=thin), **options}
        return implicit_gradient(outer, inner, self.theta, self.phi, solver, **options)


class Spy(Identity):
    """Notes the lengths of the vectors that it is given."""

    def __init__(self, step):
        super().__init__(step)
        object.__setattr__(self, "seen", [])

    def solve(self, product, vector, gradient=None, **options):
        self.seen.append(len(vector))
        return super().solve(product, vector, gradient, **options)


def unknowns(outer, inner, theta, phi, **options):
    solver = Spy(0.1)
    found = implicit_gradient(outer, inner, theta, phi, solver, **options)
    expected = implicit_gradient(outer, inner, theta, phi, Identity(0.1), products=DoubleBackward(thin=False))
    torch.testing.assert_close(found.gradients, expected.gradients)
    return solver.seen[-1]


SOLVERS = [
    lambda: Identity(0.3),
    lambda: Identity(),
    lambda: Neumann(4, 0.3),
    lambda: Neumann(4, 50.0),  # diverges: the sum ends early
    lambda: Neumann(4, damping=0.1),
    lambda: ConjugateGradient(4),
    lambda: ConjugateGradient(4, damping=0.1),
    lambda: RankOne(),
    lambda: Exact(damping=0.1),
]


@pytest.mark.parametrize("make", SOLVERS, ids=lambda make: repr(make()))
@pytest.mark.parametrize("live", [True, False], ids=["live", "callable"])
@pytest.mark.parametrize("shape", [(ROWS,), (2, 2)], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_answers_are_those_of_the_weights(make, live, shape, bias):
    problem = Problem(bias, shape)
    found, expected = (problem.gradient(make(), live, thin, residual=True) for thin in (True, False))
    torch.testing.assert_close(found.gradients, expected.gradients, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.implicit, expected.implicit, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.residual, expected.residual, rtol=1e-7, atol=1e-9)
    if expected.curvature is not None:
        torch.testing.assert_close(found.curvature, expected.curvature, rtol=1e-9, atol=1e-12)
    assert expected.implicit_norm > 1e-6


@pytest.mark.parametrize("live", [True, False], ids=["live", "callable"])
def test_vectors_are_shorter(live):
    problem, solver = Problem(), Spy(0.1)
    problem.gradient(solver, live)
    assert solver.seen[-1] == THIN
    problem.gradient(solver, live, thin=False)
    assert solver.seen[-1] == WHOLE


class WideEnergy(Problem):
    """The energy reads the inputs by a wide layer of its own, as they are or as sparse ones."""

    def __init__(self, layer):
        super().__init__()
        self.x = torch.where(self.x > 1.6, self.x, 0.0)
        self.layer = layer(INPUTS, OUTPUTS).double()
        self.phi = [*self.phi, *self.layer.parameters()]

    def energy(self, y):
        hidden = F.softplus(self.layer(self.x))
        return (F.softplus(y @ self.phi[0].T) @ self.phi[1] * hidden[:, 0] + y[:, 0] * hidden.sum(1)).mean()


TERMS = ("gradients", "explicit", "implicit", "explicit_norm", "implicit_norm", "cosine")


def assert_same_terms(found, expected):
    for name in TERMS:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("layer", [nn.Linear, InputLayer])
@pytest.mark.parametrize("ratio", [None, 0.5], ids=["free", "capped"])
def test_wide_layers_of_the_outer_problem_are_thin_too(layer, ratio):
    problem = WideEnergy(layer)
    found, expected = (
        problem.gradient(Neumann(3), True, thin, max_norm_ratio=ratio) for thin in (True, False)
    )
    assert list(found.explicit_term.layers) == list(found.implicit_term.layers) == [2]
    assert found.implicit_term.parts[2].shape == (ROWS, OUTPUTS)
    assert expected.explicit_term.layers == {}
    assert_same_terms(found, expected)
    assert [part.shape for part in found.gradients] == [part.shape for part in problem.phi]
    assert expected.implicit[2].norm() > 1e-4
    again = pickle.loads(pickle.dumps(found))
    assert_same_terms(again, expected)


def test_a_callable_may_change_what_outer_layers_read():
    problem = WideEnergy(nn.Linear)
    kept, inner = problem.x.clone(), problem.inner

    def other_inputs(logits=None):
        problem.x.copy_(kept.flip(0))
        return inner()

    terms = []
    for thin in (True, False):
        problem.x.copy_(kept)
        outer, products = problem.outer(), DoubleBackward(thin)
        theta = problem.theta[1:]
        terms.append(
            implicit_gradient(outer, other_inputs, theta, problem.phi, Identity(0.1), products=products)
        )
    assert_same_terms(*terms)


def test_hooks_on_weights_of_outer_layers_are_called():
    problem = WideEnergy(nn.Linear)
    problem.layer.weight.register_hook(lambda gradient: 0 * gradient)
    assert problem.gradient(Neumann(3), True).gradients[2].norm() == 0


@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_norms_of_gradients_that_cancel_large_inputs_are_not_those_of_rounding(offset):
    torch.manual_seed(0)
    layer, theta = nn.Linear(40, 6), torch.randn(6, requires_grad=True)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0]).unsqueeze(1)  # the offset's part of the gradient is about 0
    hidden = layer(offset + torch.randn(4, 40))
    hidden = hidden - hidden.detach()
    outer, inner = (signs * hidden * theta).sum(), ((theta - (signs * hidden).sum(0)) ** 2).sum()
    found, expected = (
        implicit_gradient(
            outer,
            inner,
            [theta],
            [layer.weight],
            Identity(0.1),
            products=DoubleBackward(thin),
            max_norm_ratio=5.0,
        )
        for thin in (True, False)
    )
    assert list(found.explicit_term.layers) == [0]
    for name in ("explicit_norm", "implicit_norm", "gradients"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_outer_layers_out_of_the_implicit_terms_reach_get_zeros_of_their_type(dtype):
    x = torch.zeros(4, 200)
    x[:, :3] = 1
    layer, theta = InputLayer(200, 6), torch.randn(4, 6, requires_grad=True)
    hidden = F.softplus(layer(x.to(dtype)))
    outer, inner = (theta**3).mean() + hidden.mean(), (theta**2).mean() + hidden.mean()
    found = implicit_gradient(outer, inner, [theta], list(layer.parameters()), Identity())
    assert found.gradients[0].dtype == found.implicit[0].dtype == torch.float32
    assert found.implicit[0].norm() == 0
    assert found.gradients[0].norm() > 0


@pytest.mark.parametrize("layer", [nn.Linear, InputLayer])
def test_outer_layers_under_autocast(layer):
    torch.manual_seed(0)
    x = torch.where(torch.rand(4, 60) < 0.05, 1.0, 0.0)
    own, theta = layer(60, 6), torch.randn(4, 6, requires_grad=True)
    hidden = F.softplus(own(x))
    outer, inner = ((theta - hidden) ** 2).mean(), (theta**2 * hidden).mean()
    expected = implicit_gradient(outer, inner, [theta], list(own.parameters()), Identity(0.1))
    assert list(expected.explicit_term.layers) == [0]
    with torch.autocast("cpu", torch.bfloat16):
        found = implicit_gradient(outer, inner, [theta], list(own.parameters()), Identity(0.1))
        for name in TERMS:
            torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_an_outer_layer_that_one_loss_alone_shows_is_whole():
    problem = WideEnergy(nn.Linear)
    plain = problem.outer

    def outer(logits=None):
        return plain(logits) + problem.layer.weight.square().mean()

    problem.outer = outer
    found, expected = (problem.gradient(Neumann(3), True, thin) for thin in (True, False))
    assert found.explicit_term.layers == {}
    torch.testing.assert_close(found.gradients, expected.gradients, rtol=1e-9, atol=1e-12)
    problem.outer = lambda logits=None: plain(logits) + problem.energy(problem.y)  # by another product
    found, expected = (problem.gradient(Neumann(3), True, thin) for thin in (True, False))
    assert found.explicit_term.layers == {}
    torch.testing.assert_close(found.gradients, expected.gradients, rtol=1e-9, atol=1e-12)


def test_rows_may_be_equal_or_zero():
    problem = Problem()
    problem.x = problem.x[[0, 0, 1, 1, 1]] * torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]).double().unsqueeze(1)
    for solver in (ConjugateGradient(30, damping=0.1), Neumann(30, 0.3)):
        found, expected = (problem.gradient(solver, thin=thin) for thin in (True, False))
        torch.testing.assert_close(found.gradients, expected.gradients, rtol=1e-9, atol=1e-12)


def test_solvers_that_look_at_parameters_get_all_of_them():
    problem = Problem()
    for solver in (Diagonal(3), Exact()):
        torch.manual_seed(1)
        found = problem.gradient(solver)
        torch.manual_seed(1)
        expected = problem.gradient(solver, thin=False)
        assert torch.equal(found.gradients[0], expected.gradients[0])


def test_a_penalty_on_the_weights_takes_the_whole_way():
    problem = Problem()
    decay = lambda: sum(part.square().sum() for part in problem.theta)  # noqa: E731
    rest = (problem.theta, problem.phi)
    assert unknowns(problem.outer, problem.inner, *rest) == THIN
    assert unknowns(problem.outer, lambda: problem.inner() + decay(), *rest) == WHOLE
    assert unknowns(lambda: problem.outer() + decay(), problem.inner, *rest) == WHOLE


def test_other_rows_in_the_outer_loss_take_the_whole_way():
    problem, other = Problem(), torch.randn(4, INPUTS).double()
    outer = lambda: problem.net(other).square().mean()  # noqa: E731
    assert unknowns(outer, problem.inner, problem.theta, problem.phi) == WHOLE
    equal = problem.x.clone()  # the same values, but who knows for how long
    outer = lambda: problem.net(equal).square().mean()  # noqa: E731
    assert unknowns(outer, problem.inner, problem.theta, problem.phi) == WHOLE


def test_rows_that_change_on_the_way_are_noticed():
    problem = Problem()

    def inner():
        problem.x.mul_(2)
        return problem.inner()

    with pytest.raises(RuntimeError, match="changed in place"):
        implicit_gradient(problem.outer, inner, problem.theta, problem.phi, Identity(0.1))


def test_parameters_that_the_outer_loss_does_not_reach_take_the_whole_way():
    problem = Problem()
    outer = lambda: problem.theta[-1].square().sum()  # noqa: E731
    assert unknowns(outer, problem.inner, problem.theta, problem.phi) == WHOLE


def test_weights_may_be_inner_and_outer():
    problem = Problem()
    rest = (problem.theta, [problem.theta[0], *problem.phi])
    assert unknowns(problem.outer, problem.inner, *rest) == THIN


def test_a_loss_linear_in_the_layer_has_no_second_derivative():
    layer, phi = nn.Linear(INPUTS, OUTPUTS), torch.ones(OUTPUTS, requires_grad=True)
    x = torch.randn(ROWS, INPUTS)
    theta = list(layer.parameters())
    inner = (layer(x) * phi).sum()
    found = implicit_gradient(layer(x).square().sum(), inner, theta, [phi], Neumann(2), residual=True)
    assert found.curvature == 0
    constant = layer(x).sum() + phi.sum()
    flat = implicit_gradient(layer(x).square().sum(), constant, theta, [phi], Neumann(2, 0.1))
    assert flat.implicit_norm == 0


def not_thin():
    x, weight = torch.randn(ROWS, INPUTS), torch.randn(OUTPUTS, INPUTS, requires_grad=True)
    many, bias = torch.randn(INPUTS, INPUTS), torch.zeros(OUTPUTS)
    transposed = weight.t()
    yield "many rows", many @ weight.t(), weight
    yield "few outputs", x @ weight[:2].t(), weight
    yield "used twice", x @ weight.t() + F.linear(x, weight), weight
    yield "transposed once, used twice", x @ transposed + (2 * x) @ transposed, weight
    yield "a live input", F.linear(x.clone().requires_grad_(), weight), weight
    yield "a factor", torch.addmm(bias, x, weight.t(), alpha=2.0), weight
    yield "changed before", F.linear(x, weight.exp()), weight
    yield "not reached", torch.randn(3, requires_grad=True), weight
    yield "no matrix", x.sum() * weight, weight
    yield "on the left", weight @ x.t(), weight


@pytest.mark.parametrize("case", not_thin(), ids=lambda case: case[0])
def test_other_uses_are_left_alone(case):
    _, output, weight = case
    assert thin_layers(output.sum(), [weight]) == {}


def test_the_layer_is_read_from_the_graph():
    x, weight = torch.randn(ROWS, INPUTS), torch.randn(OUTPUTS, INPUTS, requires_grad=True)
    for output in (F.linear(x, weight), F.linear(x, weight, torch.ones(OUTPUTS)), x @ weight.t()):
        (layer,) = thin_layers(output.square().sum(), [torch.ones(2, requires_grad=True), weight]).values()
        assert layer.input is x
        assert layer.shape == output.shape
        expected, found = (torch.autograd.grad(output.square().sum(), at, retain_graph=True)[0]
                           for at in (weight, [layer.output]))  # fmt: skip
        torch.testing.assert_close(layer.weights(found), expected)


def test_finite_differences_get_the_gradient_of_the_weights(square_once):
    """They are chosen only after the outer gradient was taken at the layer's output."""

    problem, solver = Problem(), ConjugateGradient(3)
    outer = lambda: problem.net(problem.x).square().mean()  # noqa: E731
    inner = lambda square: (square(problem.net(problem.x)) * problem.phi[0].exp().sum()).mean()  # noqa: E731
    rest = (problem.theta, problem.phi[:1], solver)
    found = implicit_gradient(outer, lambda: inner(square_once), *rest)
    expected = implicit_gradient(outer, lambda: inner(torch.square), *rest)
    torch.testing.assert_close(found.gradients, expected.gradients, rtol=1e-5, atol=1e-7)
    chosen = implicit_gradient(outer, lambda: inner(square_once), *rest, products=FiniteDifference())
    torch.testing.assert_close(found.gradients, chosen.gradients)


def test_autocast_does_not_touch_a_graph_made_in_full_precision():
    problem = Problem()
    logits = problem.net(problem.x)
    outer, inner = problem.outer(logits), problem.inner(logits)
    for solver in (Neumann(3, 0.3), Neumann(3), ConjugateGradient(3)):
        plain = implicit_gradient(outer, inner, problem.theta, problem.phi, solver)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = implicit_gradient(outer, inner, problem.theta, problem.phi, solver)
        assert torch.equal(found.gradients[0], plain.gradients[0])


def test_half_precision_is_solved_in_single_precision():
    problem = Problem()
    expected = problem.gradient(ConjugateGradient(3, damping=0.1))
    problem.net.bfloat16()
    problem.x, problem.y = problem.x.bfloat16(), problem.y.bfloat16()
    problem.phi = [part.detach().bfloat16().requires_grad_() for part in problem.phi]
    found = problem.gradient(ConjugateGradient(3, damping=0.1))
    assert found.residual.dtype == torch.float32
    for one, other in zip(found.gradients, expected.gradients, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("thin", [(), (0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_vectors_of_several_layers_have_the_inner_product_of_the_weights(thin):
    torch.manual_seed(0)
    nets = [nn.Linear(INPUTS, OUTPUTS, bias=False) for _ in range(3)]
    inputs = [torch.randn(ROWS, INPUTS) for _ in nets]
    loss = sum(net(x).square().sum() for net, x in zip(nets, inputs, strict=True))
    weights = [net.weight for net in nets]
    layers = {index: layer for index, layer in thin_layers(loss, weights).items() if index in thin}
    assert set(layers) == set(thin)
    layout, whole = Layout(weights, layers), Layout(weights)
    pairs = [[torch.randn(place.shape) for place in layout.places] for _ in range(2)]
    dense = [Gradient(tuple(parts), layers).whole for parts in pairs]
    first, second = map(whole.flatten, dense)
    torch.testing.assert_close(layout.dot(*map(layout.flatten, pairs)), torch.dot(first, second))
    for index, moved in enumerate(layout.split(layout.flatten(pairs[0]))):
        expected = inputs[index] @ dense[0][index].T if index in thin else dense[0][index]
        torch.testing.assert_close(moved, expected)
    torch.testing.assert_close(whole.dot(first, second), torch.dot(first, second))


@pytest.mark.parametrize("few", [True, False], ids=["few values", "dense"])
@pytest.mark.parametrize("make", SOLVERS[:5], ids=lambda make: repr(make()))
def test_layers_that_read_sparse_inputs_are_thin_too(make, few):
    problem = Problem()
    if few:
        problem.x = (problem.x > 1.9).double()
        assert 0 < problem.x.mean() < 0.1
    problem.net[0] = InputLayer(INPUTS, OUTPUTS).double()
    problem.theta = list(problem.net.parameters())
    found, expected = (problem.gradient(make(), thin=thin, residual=True) for thin in (True, False))
    torch.testing.assert_close(found.gradients, expected.gradients, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.residual, expected.residual, rtol=1e-7, atol=1e-9)
    solver = Spy(0.1)
    problem.gradient(solver)
    assert solver.seen[-1] == THIN
    (layer,) = thin_layers(problem.inner(), problem.theta).values()
    assert (layer.sparse is not None) == few
    gradient = torch.randn(ROWS, OUTPUTS).double()
    torch.testing.assert_close(layer.weights(gradient), problem.x.T @ gradient)
