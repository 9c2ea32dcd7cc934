"""The whole gradient: closed forms, and networks as they come."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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
    Solver,
    cap,
    implicit_gradient,
)

CLOSE = {"rtol": 1e-6, "atol": 1e-8}


def parameter(*shape, scale=1.0):
    return (scale * torch.randn(*shape, dtype=torch.float64)).requires_grad_()


def close(found, expected, **tolerance):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **(tolerance or CLOSE))


def flat(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


class Ridge:
    """Least squares with a learned penalty ``exp(φ_j) w_j²`` for each weight."""

    def __init__(self):
        torch.manual_seed(0)
        self.x, self.valid = torch.randn(20, 4).double(), torch.randn(10, 4).double()
        self.y, self.target = torch.randn(20).double(), torch.randn(10).double()
        self.phi = parameter(4)
        gram = self.x.T @ self.x / 20 + torch.diag(self.phi.detach().exp())
        self.w = torch.linalg.solve(gram, self.x.T @ self.y / 20).requires_grad_()
        # w* = G⁻¹ c, so dw*/dφ_j = −G⁻¹ e_j exp(φ_j) w_j.
        slope = 2 * self.valid.T @ (self.valid @ self.w.detach() - self.target) / 10
        moved = -torch.linalg.inv(gram) @ torch.diag(self.phi.detach().exp() * self.w.detach())
        self.explicit = 0.2 * self.phi.detach()
        self.closed_form = self.explicit + moved.T @ slope

    def inner(self):
        return (self.x @ self.w - self.y).square().mean() + (self.phi.exp() * self.w.square()).sum()

    def outer(self):
        return (self.valid @ self.w - self.target).square().mean() + 0.1 * self.phi.square().sum()

    def gradient(self, solver, **options):
        return implicit_gradient(self.outer, self.inner, [self.w], [self.phi], solver, **options)


class Seal:
    """Inner: cross-entropy of a small network, an energy of its output, weight decay.  Outer: cost, and E."""

    def __init__(self):
        torch.manual_seed(0)
        self.x, self.y = torch.randn(8, 3).double(), (torch.randn(8, 2) > 0).double()
        self.net = nn.Sequential(nn.Linear(3, 3), nn.Softplus(), nn.Linear(3, 2)).double()
        self.theta = list(self.net.parameters())
        self.mixing, self.weights = parameter(4, 2), parameter(4)
        self.phi = [self.mixing, self.weights]
        self.train()

    def train(self):
        optimizer = torch.optim.LBFGS(
            self.theta, max_iter=500, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
        )

        def closure():
            optimizer.zero_grad()
            loss = self.inner()
            loss.backward(inputs=self.theta)
            return loss

        optimizer.step(closure)

    def energy(self, y):
        return F.softplus(y @ self.mixing.T) @ self.weights

    def inner(self):
        logits = self.net(self.x)
        decay = sum(part.square().sum() for part in self.theta)
        cost = F.binary_cross_entropy_with_logits(logits, self.y)
        return self.energy(logits.sigmoid()).mean() + cost + 0.1 * decay

    def outer(self):
        predicted = self.net(self.x).sigmoid()
        cost = (predicted - self.y).square().mean()
        return cost + 0.1 * (self.energy(self.y) - self.energy(predicted)).mean()

    def gradient(self, solver, **options):
        return implicit_gradient(self.outer, self.inner, self.theta, self.phi, solver, **options)


@pytest.fixture(scope="module")
def ridge():
    return Ridge()


@pytest.fixture(scope="module")
def seal():
    return Seal()


ACCURATE = [Exact(), ConjugateGradient(iterations=60), Neumann(terms=1200)]


@pytest.mark.parametrize("solver", ACCURATE, ids=lambda solver: type(solver).__name__)
def test_ridge_regression_has_its_closed_form(ridge, solver):
    found = ridge.gradient(solver, residual=True)
    close(found.gradients, [ridge.closed_form], rtol=1e-9, atol=1e-10)
    close(found.explicit, [ridge.explicit])
    assert found.residual < 1e-9
    assert (ridge.closed_form - ridge.explicit).norm() > 0.01  # the implicit term matters here


def test_the_gradient_is_that_of_the_inner_minimum():
    """Train again beside φ and see how the outer loss changes."""
    problem = Seal()
    start = [part.detach().clone() for part in problem.theta]
    found = problem.gradient(Exact())
    direction = [torch.randn_like(part) for part in problem.phi]
    values = []
    for sign in (1e-3, -1e-3):
        with torch.no_grad():
            for part, value in zip(problem.theta, start, strict=True):
                part.copy_(value)
            for part, change in zip(problem.phi, direction, strict=True):
                part.add_(change, alpha=sign)
        problem.train()
        values.append(problem.outer().item())
        with torch.no_grad():
            for part, change in zip(problem.phi, direction, strict=True):
                part.sub_(change, alpha=sign)
    slope = sum((g * d).sum().item() for g, d in zip(found.gradients, direction, strict=True))
    explicit = sum((g * d).sum().item() for g, d in zip(found.explicit, direction, strict=True))
    assert slope == pytest.approx((values[0] - values[1]) / 2e-3, rel=1e-4)
    assert abs(slope - explicit) > 1e-3 * abs(slope)


def test_accurate_solvers_agree_on_a_network_with_an_energy(seal):
    exact, *others = [seal.gradient(solver, residual=True) for solver in ACCURATE]
    for found in others:
        close(found.gradients, exact.gradients)
        assert found.residual < 1e-6
        assert found.curvature <= exact.curvature * (1 + 1e-12)
    assert exact.curvature.item() == pytest.approx(others[-1].curvature.item(), rel=1e-3)


@pytest.mark.parametrize(
    "solver", [Neumann(2, 0.1), Identity(0.1), RankOne(), ConjugateGradient(2)], ids=repr
)
def test_diagnostics_are_what_they_say(seal, solver):
    found = seal.gradient(solver, residual=True)
    explicit, implicit = flat(found.explicit), flat(found.implicit)
    close(found.gradients, [e + i for e, i in zip(found.explicit, found.implicit, strict=True)])
    torch.testing.assert_close(found.explicit_norm, explicit.norm())
    torch.testing.assert_close(found.implicit_norm, implicit.norm())
    torch.testing.assert_close(found.cosine, F.cosine_similarity(explicit, implicit, dim=0))
    # The residual, from the dense Hessian and the solver alone.
    gradient = flat(torch.autograd.grad(seal.inner(), seal.theta, create_graph=True))
    rows = [flat(torch.autograd.grad(entry, seal.theta, retain_graph=True)) for entry in gradient]
    hessian = torch.stack(rows)
    vector = flat(torch.autograd.grad(seal.outer(), seal.theta))
    answer = solver.solve(lambda v: hessian @ v, vector, gradient.detach()).vector
    torch.testing.assert_close(found.residual, (hessian @ answer - vector).norm() / vector.norm())
    assert found.residual > 1e-3


class Lazy(Solver):
    """Another solver, which keeps its residual for itself."""

    def __init__(self, solver):
        self.solver = solver

    def _solve(self, system):
        return replace(self.solver._solve(system), residual=None)


def test_the_residual_is_given_only_where_it_is_free_or_asked_for(ridge):
    assert ridge.gradient(Identity(0.1)).residual is None
    for solver in (ConjugateGradient(), Identity(), Neumann(2)):
        free = ridge.gradient(solver).residual
        # The same from the products of a solver that has it not for free.
        torch.testing.assert_close(free, ridge.gradient(Lazy(solver), residual=True).residual)
    assert ridge.gradient(RankOne()).curvature is None


def test_finite_differences_err_with_the_square_of_epsilon(seal):
    solver = ConjugateGradient(iterations=3)
    expected = flat(seal.gradient(solver, products=DoubleBackward()).gradients)
    errors = [
        (flat(seal.gradient(solver, products=FiniteDifference(epsilon)).gradients) - expected).norm().item()
        for epsilon in (0.2, 0.1, 0.05)
    ]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.1)
    # At the default ε it is small with every solver.
    for other in (Neumann(3, 0.1), Identity(0.1), RankOne(), Exact()):
        difference = seal.gradient(other, products=FiniteDifference(), residual=True)
        exact = seal.gradient(other, residual=True)
        close(difference.gradients, exact.gradients)
        torch.testing.assert_close(difference.residual, exact.residual, **CLOSE)


def test_finite_differences_put_the_parameters_back_even_after_an_error(seal):
    before = [part.detach().clone() for part in seal.theta]
    seal.gradient(Neumann(2), products=FiniteDifference())
    calls = []

    def failing():
        calls.append(None)
        if len(calls) == 3:
            raise ArithmeticError("third time")
        return seal.inner()

    with pytest.raises(ArithmeticError, match="third time"):
        implicit_gradient(
            seal.outer, failing, seal.theta, seal.phi, Neumann(2, 0.1), products=FiniteDifference()
        )
    assert all(torch.equal(part, value) for part, value in zip(seal.theta, before, strict=True))


def test_the_inner_graph_is_built_once(monkeypatch):
    problem = Ridge()
    forwards = []
    original, graphs = torch.autograd.grad, []

    def inner():
        forwards.append(None)
        return problem.inner()

    def spy(*arguments, **options):
        graphs.append(options.get("create_graph", False))
        return original(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", spy)
    implicit_gradient(problem.outer, inner, [problem.w], [problem.phi], Neumann(5, 0.1))
    assert len(forwards) == 1
    # Outer gradient, the one graph, five products and the mixed one.
    assert graphs == [False, True, *[False] * 6]
    graphs.clear()
    problem.gradient(Identity(0.1), residual=True)
    assert graphs == [False, True, False]  # the residual comes with the mixed product


def test_finite_differences_cost_two_gradients_a_product_and_no_graph_of_gradients(monkeypatch):
    problem = Ridge()
    original, graphs = torch.autograd.grad, []

    def spy(*arguments, **options):
        graphs.append(options.get("create_graph", False))
        return original(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", spy)
    problem.gradient(Neumann(5, 0.1), products=FiniteDifference())
    assert graphs == [False] * (1 + 2 * 6)


def test_live_tensors_share_their_graph_and_keep_it(seal):
    logits = seal.net(seal.x)
    decay = sum(part.square().sum() for part in seal.theta)
    inner = seal.energy(logits.sigmoid()).mean() + 0.1 * decay
    outer = (logits.sigmoid() - seal.y).square().mean()
    found = implicit_gradient(outer, inner, seal.theta, seal.phi, Exact())
    assert all(torch.equal(part, torch.zeros_like(part)) for part in found.explicit)
    assert found.cosine == 0
    again = implicit_gradient(outer, inner, seal.theta, seal.phi, Exact())
    close(again.gradients, found.gradients)
    (outer + inner).backward()
    assert all(part.grad is not None for part in seal.theta)
    assert not any(part.requires_grad for part in (*found.gradients, *found.implicit, *found.explicit))
    for part in (*seal.theta, *seal.phi):
        part.grad = None


def test_gradients_are_not_written_and_no_grad_does_not_matter(ridge):
    with torch.no_grad():
        found = ridge.gradient(Exact())
    close(found.gradients, [ridge.closed_form])
    assert ridge.w.grad is None
    assert ridge.phi.grad is None


def dropout_problem():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(5, 8), nn.Softplus(), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    x, y = torch.randn(12, 5).double(), torch.randn(12, 1).double()
    phi = parameter(1)
    masks = []
    net[2].register_forward_hook(lambda _, inputs, output: masks.append(output.detach() == 0))

    def inner():
        decay = sum(part.square().sum() for part in net.parameters())
        return (net(x) - y).square().mean() + phi.exp().sum() * decay

    outer = sum(part.sum() for part in net.parameters()) + phi.sum()
    return net, inner, outer, phi, masks


@pytest.mark.parametrize("products", [DoubleBackward(), FiniteDifference()], ids=repr)
def test_one_dropout_mask_for_every_product(products):
    net, inner, outer, phi, masks = dropout_problem()
    theta = list(net.parameters())
    torch.manual_seed(5)
    with_mask = implicit_gradient(outer, inner, theta, [phi], Exact(), products=DoubleBackward())
    torch.manual_seed(5)
    masks.clear()
    found = implicit_gradient(outer, inner, theta, [phi], ConjugateGradient(200), products=products)
    assert all(torch.equal(mask, masks[0]) for mask in masks)
    close(found.gradients, with_mask.gradients, rtol=1e-4, atol=1e-6)
    # The next gradient has another mask.
    implicit_gradient(outer, inner, theta, [phi], Identity(0.1), products=products)
    assert not torch.equal(masks[-1], masks[0])


@pytest.mark.parametrize("products", [DoubleBackward(), FiniteDifference()], ids=repr)
def test_batch_norm_statistics_stay(products):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()
    x, phi = torch.randn(6, 3).double(), parameter(1)
    net(x)
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    identities = {name: id(buffer) for name, buffer in net.named_buffers()}
    alive = net(x[:4]).sum()  # a graph made before must survive
    now = {name: buffer.clone() for name, buffer in net.named_buffers()}
    assert not torch.equal(now["1.running_mean"], before["1.running_mean"])
    found = implicit_gradient(
        lambda: net(x).square().mean(),
        lambda: (net(x) - phi).square().mean() + sum(p.square().sum() for p in net.parameters()),
        list(net.parameters()),
        [phi],
        Neumann(2),
        products=products,
    )
    assert found.implicit_norm > 0
    assert all(torch.equal(buffer, now[name]) for name, buffer in net.named_buffers())
    assert identities == {name: id(buffer) for name, buffer in net.named_buffers()}
    alive.backward()
    assert not torch.nn.modules.module._global_forward_pre_hooks  # nothing is left behind
    net(x)
    assert not torch.equal(net[1].running_mean, now["1.running_mean"])


@pytest.mark.parametrize("products", [DoubleBackward(), FiniteDifference()], ids=repr)
@pytest.mark.parametrize("solver", [Exact(), Neumann(), ConjugateGradient(), Diagonal(), RankOne()], ids=repr)
def test_parameters_out_of_reach_get_zeros(ridge, products, solver):
    torch.manual_seed(0)
    lost_inner, lost_outer = parameter(2, 2), parameter(3)
    found = implicit_gradient(
        ridge.outer,
        ridge.inner,
        [lost_inner, ridge.w],
        [ridge.phi, lost_outer],
        solver,
        products=products,
        residual=True,
    )
    assert torch.equal(found.gradients[1], torch.zeros_like(lost_outer))
    if isinstance(solver, Exact):
        close(found.gradients[:1], [ridge.closed_form])
    assert all(part.isfinite().all() for part in found.gradients)


def test_inner_parameters_that_only_the_outer_loss_reaches(ridge):
    extra = parameter(2)
    found = implicit_gradient(
        lambda: ridge.outer() + extra.sum(), ridge.inner, [ridge.w, extra], [ridge.phi], Exact()
    )
    close(found.gradients, [ridge.closed_form])


def test_a_linear_inner_loss_has_no_implicit_term(ridge):
    weight = parameter(4)
    found = implicit_gradient(
        weight.square().sum() + ridge.phi.sum(),
        3 * weight.sum(),
        [weight],
        [ridge.phi],
        Neumann(),
        residual=True,
    )
    close(found.gradients, [torch.ones(4, dtype=torch.float64)])
    assert found.curvature == 0


@pytest.mark.parametrize("products", [DoubleBackward(), FiniteDifference()], ids=repr)
def test_parameters_may_be_shared_between_inner_and_outer(products):
    """With p in θ and in φ the mixed product's rows for p are the Hessian's own."""
    torch.manual_seed(0)
    shared, own, phi = parameter(2), parameter(2), parameter(2)

    def inner():
        return ((shared.exp() + own - phi).square() + shared**4 + own.square() + shared * own * phi).sum()

    def outer():
        return (shared * own).sum() + (phi * shared).square().sum()

    step = 0.05
    found = implicit_gradient(
        outer, inner, [shared, own], [phi, shared], Identity(step), products=products, residual=True
    )
    slope = torch.autograd.grad(outer(), [shared, own])
    gradients = torch.autograd.grad(inner(), [shared, own], create_graph=True)
    along = sum((g * step * s).sum() for g, s in zip(gradients, slope, strict=True))
    expected = torch.autograd.grad(along, [phi, shared])
    close(found.implicit, [-part for part in expected])
    close(found.explicit, torch.autograd.grad(outer(), [phi, shared]))


def recurrent_problem(dtype=torch.float64):
    torch.manual_seed(0)
    net = nn.LSTM(3, 4, batch_first=True).to(dtype)
    x, phi = torch.randn(2, 5, 3, dtype=dtype), torch.randn(4, dtype=dtype, requires_grad=True)

    def inner():
        decay = sum(part.square().sum() for part in net.parameters())
        return (net(x)[0] - phi).square().mean() + 0.1 * decay

    return list(net.parameters()), inner, lambda: net(x)[0].sum(), phi


def test_an_lstm_on_the_cpu_is_differentiated_twice():
    theta, inner, outer, phi = recurrent_problem()
    solver = ConjugateGradient(4)
    found = implicit_gradient(outer, inner, theta, [phi], solver)
    exact = implicit_gradient(outer, inner, theta, [phi], solver, products=DoubleBackward())
    assert torch.equal(found.gradients[0], exact.gradients[0])
    assert found.implicit_norm > 1e-3
    difference = implicit_gradient(outer, inner, theta, [phi], solver, products=FiniteDifference())
    close(difference.gradients, found.gradients, rtol=1e-5, atol=1e-7)


def test_finite_differences_are_chosen_where_a_kernel_has_no_second_derivative(square_once):
    torch.manual_seed(0)
    weight, phi, solver = parameter(3), parameter(3), ConjugateGradient(5)

    def loss(square):
        return lambda: (square(weight - phi) * phi.exp()).sum() + weight.exp().sum()

    expected = implicit_gradient(weight.sum(), loss(torch.square), [weight], [phi], solver)
    broken = loss(square_once)
    found = implicit_gradient(weight.sum(), broken, [weight], [phi], solver)
    close(found.gradients, expected.gradients, rtol=1e-5, atol=1e-7)
    with pytest.raises(RuntimeError, match="_cudnn_rnn_backward"):
        implicit_gradient(weight.sum(), broken, [weight], [phi], solver, products=DoubleBackward())
    with pytest.raises(RuntimeError, match="pass a callable"):
        implicit_gradient(weight.sum(), broken(), [weight], [phi], solver)


def test_flash_attention_falls_back_too():
    torch.manual_seed(0)
    query, phi = parameter(1, 1, 4, 8), parameter(1)

    def inner():
        return (
            F.scaled_dot_product_attention(query, query, query) - phi
        ).square().mean() + query.square().sum()

    solver = ConjugateGradient(4)
    found = implicit_gradient(query.sum(), inner, [query], [phi], solver)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = implicit_gradient(query.sum(), inner, [query], [phi], solver, products=DoubleBackward())
    close(found.gradients, expected.gradients, rtol=1e-5, atol=1e-7)


def test_other_errors_pass_through(ridge):
    def inner():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        implicit_gradient(ridge.outer, inner, [ridge.w], [ridge.phi])


@pytest.mark.parametrize("products", [DoubleBackward(), FiniteDifference(0.3)], ids=repr)
def test_autocast_gives_about_the_same_in_full_precision(products):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.Linear(16, 1))
    x, y, phi = torch.randn(32, 6), torch.randn(32, 1), torch.zeros(1, requires_grad=True)
    theta = list(net.parameters())

    def inner():
        return (net(x) - y).square().mean() + phi.exp().sum() * sum(p.square().sum() for p in theta)

    def outer():
        return (net(x[:16]) - y[:16]).square().mean()

    solver = Neumann(5, 0.1)
    plain = implicit_gradient(outer, inner, theta, [phi], solver)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = implicit_gradient(outer, inner, theta, [phi], solver, products=products, residual=True)
        dense = implicit_gradient(outer, inner, theta, [phi], Exact(damping=0.1))
    assert found.gradients[0].dtype == torch.float32
    torch.testing.assert_close(found.gradients, plain.gradients, rtol=0.1, atol=0.0)
    exact = implicit_gradient(outer, inner, theta, [phi], Exact(damping=0.1))
    torch.testing.assert_close(dense.gradients, exact.gradients, rtol=0.1, atol=0.0)


def test_autocast_does_not_touch_a_graph_made_in_full_precision():
    torch.manual_seed(0)
    weight, phi = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    inner, outer = (weight @ phi).square().mean() + weight.square().sum(), (weight @ weight).sum()
    plain = implicit_gradient(outer, inner, [weight], [phi], Neumann(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = implicit_gradient(outer, inner, [weight], [phi], Neumann(3))
    assert torch.equal(found.gradients[0], plain.gradients[0])


def test_autocast_does_not_feed_old_weights_to_finite_differences():
    """The curvature of the data term alone: it would be 0 if the half-precision copy of before were used."""
    torch.manual_seed(0)
    net, x = nn.Linear(4, 1, bias=False), torch.randn(64, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(x).sum()  # fills autocast's cache
        derivatives = FiniteDifference(0.5).of(lambda: net(x).square().mean(), [net.weight])
        (product,) = derivatives.along([torch.ones(1, 4)], [net.weight])
    torch.testing.assert_close(product[0], 2 * x.T @ x.sum(1) / 64, rtol=0.05, atol=0.1)


@pytest.mark.parametrize(
    ("first", "second", "solved"),
    [
        (torch.bfloat16, torch.bfloat16, torch.float32),
        (torch.float32, torch.float32, torch.float32),
        (torch.bfloat16, torch.float64, torch.float64),
    ],
)
def test_the_system_is_solved_in_single_precision_or_better(first, second, solved):
    weight = torch.tensor([1.0, 2.0], dtype=first, requires_grad=True)
    other = torch.tensor([1.0], dtype=second, requires_grad=True)
    phi = torch.tensor([1.0, 2.0], dtype=first, requires_grad=True)
    inner = (weight - phi).square().sum() + other.square().sum()
    found = implicit_gradient(weight.square().sum() + other.sum(), inner, [weight, other], [phi], Exact())
    assert found.curvature.dtype == solved
    assert found.gradients[0].dtype == first
    torch.testing.assert_close(found.gradients[0], torch.tensor([2.0, 4.0], dtype=first))


@settings(max_examples=50, deadline=None)
@given(
    implicit=st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=5),
    explicit=st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=5),
    ratio=st.just(0.0) | st.floats(1e-6, 10.0),
)
def test_the_cap_holds_and_keeps_the_direction(implicit, explicit, ratio):
    given_term = torch.tensor(implicit, dtype=torch.float64)
    limit = ratio * torch.tensor(explicit, dtype=torch.float64).norm()
    parts = cap(given_term.split(1), [torch.tensor(explicit, dtype=torch.float64)], ratio)
    capped = torch.cat(parts)
    assert capped.norm() <= limit * (1 + 1e-12)
    if given_term.norm() <= limit:
        torch.testing.assert_close(capped, given_term)
    else:
        torch.testing.assert_close(capped.norm(), limit, rtol=1e-9, atol=1e-140)
        torch.testing.assert_close(capped * given_term.norm(), given_term * limit, rtol=1e-9, atol=1e-140)


def test_the_cap_drops_what_is_not_finite():
    for broken in (math.nan, math.inf):
        (capped,) = cap([torch.tensor([1.0, broken])], [torch.ones(2)], 1.0)
        assert torch.equal(capped, torch.zeros(2))


def test_the_cap_is_applied_to_the_gradient(ridge):
    free = ridge.gradient(Exact())
    ratio = 0.5 * (free.implicit_norm / free.explicit_norm).item()
    found = ridge.gradient(Exact(), max_norm_ratio=ratio)
    close(found.implicit, [0.5 * part for part in free.implicit])
    close(found.gradients, [e + 0.5 * i for e, i in zip(free.explicit, free.implicit, strict=True)])
    torch.testing.assert_close(found.implicit_norm, free.implicit_norm)  # as it was before the cap


def test_mistakes_are_named(ridge):
    frozen = torch.ones(2)
    with pytest.raises(ValueError, match=r"outer parameters \[1\] do not require"):
        implicit_gradient(ridge.outer, ridge.inner, [ridge.w], [ridge.phi, frozen])
    with pytest.raises(ValueError, match="no inner parameters"):
        implicit_gradient(ridge.outer, ridge.inner, [], [ridge.phi])
    with pytest.raises(ValueError, match="inner loss must be a scalar"):
        implicit_gradient(ridge.outer, lambda: ridge.w, [ridge.w], [ridge.phi])
    with pytest.raises(ValueError, match="inner loss has no graph"):
        implicit_gradient(ridge.outer, ridge.inner().detach(), [ridge.w], [ridge.phi])
    with pytest.raises(ValueError, match="pass a callable"):
        implicit_gradient(ridge.outer, ridge.inner(), [ridge.w], [ridge.phi], products=FiniteDifference())
    with pytest.raises(ValueError, match="epsilon"):
        FiniteDifference(0.0)
    with pytest.raises(ValueError, match="ratio"):
        ridge.gradient(Exact(), max_norm_ratio=-1.0)


def test_probes_differ_under_finite_differences_too(ridge, monkeypatch):
    drawn = []
    original = torch.randint_like

    def recorded(*args, **kwargs):
        drawn.append(original(*args, **kwargs))
        return drawn[-1].clone()

    monkeypatch.setattr(torch, "randint_like", recorded)
    ridge.gradient(Diagonal(8), products=FiniteDifference())
    assert len({tuple(signs.tolist()) for signs in drawn}) > 1


def test_a_fallback_estimates_the_same_curvature(square_once):
    scale = torch.logspace(-2, 2, 50, dtype=torch.float64)
    weight, target = torch.ones(50, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)
    weight.requires_grad_()
    target.requires_grad_()

    def inner():
        return 0.5 * (scale * square_once(weight - target)).sum()

    found = [
        implicit_gradient(weight.sum, inner, [weight], [target], Neumann(2), products=products).curvature
        for products in (None, FiniteDifference())
    ]
    torch.testing.assert_close(found[0], found[1])
