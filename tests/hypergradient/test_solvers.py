"""Solvers on explicit matrices."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossnet.hypergradient import ConjugateGradient, Diagonal, Exact, Identity, Neumann, RankOne

SOLVERS = [
    Neumann(),
    Neumann(terms=1500),
    Neumann(terms=50, step=10.0),
    Neumann(damping=0.1),
    ConjugateGradient(),
    ConjugateGradient(iterations=40),
    ConjugateGradient(damping=0.1),
    Identity(),
    Identity(damping=0.1),
    Diagonal(),
    Diagonal(samples=1, floor=0.0),
    Diagonal(damping=0.1),
    RankOne(),
    RankOne(damping=1e-3),
    Exact(),
    Exact(damping=0.1),
]


def matrix(values, seed=0):
    """A symmetric matrix with these eigenvalues, in a random basis."""
    values = torch.as_tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(
        torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)
    )
    return basis @ torch.diag(values) @ basis.T


def right_side(size, seed=1):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def counted(hessian):
    def product(vector):
        product.calls += 1
        return hessian @ vector

    product.calls = 0
    return product


eigenvalue = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 1e-14, 1e-300]), st.floats(-1e3, 1e3, allow_subnormal=False)
)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(eigenvalue, min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([0.0, 1e-12, 1.0, 1e6]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    solver=st.sampled_from(SOLVERS),
)
def test_any_symmetric_matrix_gives_a_finite_answer(values, seed, scale, dtype, solver):
    hessian = matrix(values, seed).to(dtype)
    vector = (scale * right_side(len(values), seed)).to(dtype)
    found = solver.solve(lambda v: hessian @ v, vector, gradient=right_side(len(values), 7).to(dtype))
    assert found.vector.dtype == dtype
    assert found.vector.isfinite().all()
    assert found.residual is None or found.residual.isfinite()
    assert found.curvature is None or found.curvature.isfinite()


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    damping=st.sampled_from([0.0, 0.5]),
)
def test_positive_definite_systems_are_solved(values, seed, damping):
    hessian, vector = matrix(values, seed), right_side(len(values), seed)
    damped = hessian + damping * torch.eye(len(values), dtype=torch.float64)
    expected = torch.linalg.solve(damped, vector)
    for solver in (
        Exact(damping=damping),
        ConjugateGradient(iterations=3 * len(values), damping=damping),
        Neumann(terms=600, damping=damping),
    ):
        found = solver.solve(lambda v: hessian @ v, vector).vector
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.sampled_from([0.0, 0.5, 2.0, -1.0]), min_size=1, max_size=6), seed=st.integers(0, 1000)
)
def test_exact_is_the_pseudo_inverse(values, seed):
    hessian, vector = matrix(values, seed), right_side(len(values), seed)
    expected = torch.linalg.pinv(hessian, hermitian=True, rtol=1e-10) @ vector
    found = Exact().solve(lambda v: hessian @ v, vector)
    torch.testing.assert_close(found.vector, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        found.curvature, torch.tensor(max(map(abs, values)), dtype=torch.float64), atol=1e-12, rtol=1e-9
    )


@pytest.mark.parametrize("terms", [0, 1, 5, 20])
def test_a_short_series_leaves_the_residual_of_the_theory(terms):
    values = [0.1, 0.5, 1.0, 4.0]
    hessian, vector, step = matrix(values), right_side(4), 0.3
    found = Neumann(terms=terms, step=step).solve(lambda v: hessian @ v, vector).vector
    shrink = torch.eye(4, dtype=torch.float64) - step * hessian
    left = torch.linalg.matrix_power(shrink, terms + 1) @ vector  # b − Hv, exactly
    torch.testing.assert_close(vector - hessian @ found, left, rtol=1e-12, atol=1e-13)
    bound = max(abs(1 - step * value) for value in values) ** (terms + 1)
    error = (found - torch.linalg.solve(hessian, vector)).norm() / torch.linalg.solve(hessian, vector).norm()
    assert error <= bound
    assert error >= 0.01 * bound  # the bound would mean nothing if the series were exact


@pytest.mark.parametrize("damping", [0.0, 2.0])
@pytest.mark.parametrize("step", ["auto", 0.2])
def test_identity_is_a_series_without_terms(step, damping):
    hessian, vector = matrix([0.5, -3.0, 1.0]), right_side(3)
    identity = Identity(step, damping).solve(lambda v: hessian @ v, vector)
    series = Neumann(0, step, damping).solve(lambda v: hessian @ v, vector)
    assert torch.equal(identity.vector, series.vector)
    alpha = 1 / (identity.curvature + damping) if step == "auto" else step
    torch.testing.assert_close(identity.vector, alpha * vector)


@pytest.mark.parametrize("step", [0.6, 100.0])
def test_a_long_series_stays_bounded_under_negative_curvature(step):
    hessian, vector = matrix([3.0, 1.0, -2.0]), right_side(3)
    found = Neumann(terms=2000, step=step).solve(lambda v: hessian @ v, vector)
    assert found.vector.norm() <= step * 2001 * vector.norm()
    # The sum of the terms before the first that is longer than b.
    term, total, ended = vector, vector, 0
    while (term := term - step * hessian @ term).norm() <= vector.norm():
        total, ended = total + term, ended + 1
    torch.testing.assert_close(found.vector, step * total)
    assert found.terms == ended
    assert (ended == 0) == (step == 100.0)  # the very first term is too long


# ---------------------------------------------------------------- the step that is found


def on_paper(hessian, vector, terms, damping=0.0):
    """The steps of ``auto`` with their exits: the answer, and the terms beyond the first."""
    damped = hessian + damping * torch.eye(len(vector), dtype=vector.dtype)
    power, answer, residual = vector, torch.zeros_like(vector), vector
    for _ in range(2):
        power = hessian @ power / (hessian @ power).norm()
    largest = (hessian @ power).norm()
    for index in range(terms + 1):
        image = damped @ residual
        largest = max(largest, (hessian @ residual).norm() / residual.norm())
        step = 1 / (largest + damping)
        if (residual - step * image).norm() > vector.norm() and residual @ image > 0:
            step = residual @ image / (image @ image)
        answer, residual = answer + step * residual, residual - step * image
        if residual.norm() > vector.norm():
            return answer, index
    return answer, terms


signed = st.floats(0.01, 100.0) | st.floats(-100.0, -0.01)


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(signed, min_size=1, max_size=8),
    seed=st.integers(0, 1000),
    terms=st.integers(0, 12),
    damping=st.sampled_from([0.0, 0.5]),
)
def test_steps_are_those_on_paper_and_leave_a_residual_of_two_at_most(values, seed, terms, damping):
    hessian, vector = matrix(values, seed), right_side(len(values), seed)
    solvers = [Neumann(terms, damping=damping), *([Identity(damping=damping)] if not terms else [])]
    for solver in solvers:
        found = solver.solve(lambda v: hessian @ v, vector)
        expected, ended = on_paper(hessian, vector, terms, damping)
        torch.testing.assert_close(found.vector, expected, rtol=1e-6, atol=1e-9)
        assert found.terms is None if isinstance(solver, Identity) else found.terms == ended
        residual = (vector - hessian @ found.vector).norm() / vector.norm()
        torch.testing.assert_close(found.residual, residual, rtol=1e-7, atol=1e-9)
        damped = (vector - hessian @ found.vector - damping * found.vector).norm() / vector.norm()
        assert damped <= 2 + 1e-9
        assert found.curvature >= (hessian @ vector).norm() / vector.norm() * (1 - 1e-9)
        assert found.curvature <= max(map(abs, values)) * (1 + 1e-9)
        if min(values) > 0:
            assert damped <= 1 + 1e-9
            assert ended == terms


def test_a_residual_of_two_is_reached():
    found = Identity().solve(lambda v: -3 * v, right_side(4))
    torch.testing.assert_close(found.residual, torch.tensor(2.0, dtype=torch.float64))


@pytest.mark.parametrize("share", [1e-2, 1e-4, 1e-6, 1e-8, 1e-12])
@pytest.mark.parametrize("steepest", [10.0, 1000.0])
def test_what_the_estimate_missed_shortens_the_step_and_ends_nothing(steepest, share):
    """The steepest direction has hardly a share of ``b``, so that the power method does not see it."""
    values = torch.tensor([1.0, 0.9, 0.5, steepest], dtype=torch.float64)
    vector = torch.tensor([1.0, 1.0, 1.0, share], dtype=torch.float64)
    identity = Identity().solve(lambda v: values * v, vector)
    if share < 1e-8:
        assert identity.curvature < steepest / 9
    for terms in (1, 5, 20, 2000):
        found = Neumann(terms).solve(lambda v: values * v, vector)
        assert found.terms == terms
        assert found.residual <= 1 + 1e-9
        assert (found.vector - identity.vector).norm() > 0.1 * identity.vector.norm()
    assert steepest / 2 < found.curvature <= steepest * (1 + 1e-9)  # all that the series needs to converge
    if steepest == 10.0:
        torch.testing.assert_close(found.vector, vector / values, rtol=1e-6, atol=1e-9)
    else:  # 2000 terms are twice the condition number
        assert found.residual < 0.5
    # A step that is given stays as it is, and the count says what came of it.
    stopped = Neumann(5, step=10.0).solve(lambda v: values * v, vector)
    assert stopped.terms == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [3, 40])
def test_five_terms_are_not_the_identity(seed, size):
    """On any definite Hessian, and on an indefinite one unless it bends down along ``b`` itself."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    symmetric = (root + root.T) / 2
    vector = right_side(size, seed)
    for hessian in (root @ root.T, symmetric, -symmetric):
        found, identity = (
            solver.solve(lambda v, hessian=hessian: hessian @ v, vector) for solver in (Neumann(), Identity())
        )
        bends_down = vector @ hessian @ vector <= 0
        assert (found.terms == 0) == bends_down
        assert torch.equal(found.vector, identity.vector) == bends_down


@pytest.mark.parametrize("solver", [Identity(), Neumann(4), Neumann(4, damping=0.3), ConjugateGradient(3)])
def test_problems_side_by_side_have_their_own_steps(solver):
    hessians = torch.stack([matrix([4.0, 1.0, 0.1], 1), matrix([-300.0, 2.0, 1.0], 2), matrix([1.0] * 3)])
    vectors = torch.stack([right_side(3, seed) for seed in range(3)]) * torch.tensor([[1.0], [1e3], [0.0]])
    both = solver.solve(
        lambda v: (hessians @ v.unsqueeze(-1)).squeeze(-1),
        vectors,
        dot=lambda a, b: (a * b).sum(-1, keepdim=True),
    )
    for index, (hessian, vector) in enumerate(zip(hessians, vectors, strict=True)):
        lone = solver.solve(lambda v, hessian=hessian: hessian @ v, vector)
        torch.testing.assert_close(both.vector[index], lone.vector)
        for name in ("curvature", "residual", "terms"):
            if getattr(lone, name) is not None:
                torch.testing.assert_close(getattr(both, name)[index, 0], getattr(lone, name))


def test_products_are_counted():
    product = counted(matrix([1.0, 2.0]))
    for solver, calls in (
        (Identity(), 3),
        (Neumann(5), 5 + 3),
        (Neumann(0), 3),
        (Identity(0.1), 0),
        (Neumann(5, 0.1), 5),
    ):
        product.calls = 0
        solver.solve(product, right_side(2))
        assert product.calls == calls


@pytest.mark.parametrize("solver", [Identity(), Neumann(2)], ids=repr)
def test_a_step_that_is_found_draws_nothing_and_remembers_nothing(solver):
    before = torch.get_rng_state()
    hessian, vector = matrix([1.0, 3.0, -2.0]), right_side(3)
    first = solver.solve(lambda v: hessian @ v, vector)
    solver.solve(lambda v: 100 * v, vector)
    assert torch.equal(solver.solve(lambda v: hessian @ v, vector).vector, first.vector)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_step_is_found_for_small_gradients_in_single_precision():
    hessian, vector = matrix([0.5, 1.0, 2.0]).float(), right_side(3).float()
    expected = Neumann().solve(lambda v: hessian @ v, vector).vector
    small = Neumann().solve(lambda v: hessian @ v, 2.0**-60 * vector).vector
    torch.testing.assert_close(small * 2.0**60, expected)


# ---------------------------------------------------------------- the other solvers


def test_conjugate_gradient_stops_at_negative_curvature():
    hessian = torch.diag(torch.tensor([4.0, 1.0, -1.0], dtype=torch.float64))
    vector = torch.tensor([1.0, 1.0, 0.1], dtype=torch.float64)
    two = ConjugateGradient(iterations=2).solve(lambda v: hessian @ v, vector)
    many = ConjugateGradient(iterations=20).solve(lambda v: hessian @ v, vector)
    torch.testing.assert_close(many.vector, two.vector)
    # The first direction already has negative curvature: b at the length ‖b‖ / ‖Hb‖.
    first = ConjugateGradient().solve(lambda v: -2 * v, vector)
    torch.testing.assert_close(first.vector, vector / 2)
    torch.testing.assert_close(first.residual, torch.tensor(2.0, dtype=torch.float64))


def textbook(hessian, vector, iterations, tolerance):
    """Conjugate gradients that leave the loop, as on paper."""
    answer, residual = torch.zeros_like(vector), vector
    direction = residual
    for index in range(iterations):
        bend = direction @ hessian @ direction
        if bend <= 0:
            return vector * vector.norm() / (hessian @ vector).norm() if index == 0 else answer
        step = residual @ residual / bend
        answer, before, residual = answer + step * direction, residual, residual - step * hessian @ direction
        if residual.norm() <= tolerance * vector.norm():
            return answer
        direction = residual + (residual @ residual) / (before @ before) * direction
    return answer


@pytest.mark.parametrize("tolerance", [1e-10, 0.3])
@pytest.mark.parametrize("seed", range(8))
def test_conjugate_gradient_is_the_textbook_with_its_exits(seed, tolerance):
    hessian, vector = matrix([5.0, 3.0, 1.0, 0.5, -0.2 if seed % 2 else 0.1], seed), right_side(5, seed)
    found = ConjugateGradient(12, tolerance).solve(lambda v: hessian @ v, vector).vector
    torch.testing.assert_close(found, textbook(hessian, vector, 12, tolerance), rtol=1e-7, atol=1e-7)


def test_conjugate_gradient_keeps_out_of_flat_directions():
    hessian = matrix([3.0, 1.0, 0.0, 0.0])
    vector = right_side(4)
    found = ConjugateGradient(iterations=10).solve(lambda v: hessian @ v, vector).vector
    assert found.norm() < 1e3 * vector.norm()


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_the_residual_of_conjugate_gradient_is_that_of_the_undamped_system(damping):
    hessian, vector = matrix([0.1, 1.0, 2.0, 7.0]), right_side(4)
    found = ConjugateGradient(iterations=2, damping=damping).solve(lambda v: hessian @ v, vector)
    expected = (hessian @ found.vector - vector).norm() / vector.norm()
    assert expected > 1e-3
    torch.testing.assert_close(found.residual, expected)
    assert 2.0 < found.curvature <= 7.0 + 1e-12


def test_conjugate_gradient_survives_small_gradients_in_single_precision():
    hessian = matrix([0.5, 1.0, 2.0]).float()
    vector = right_side(3).float()
    expected = ConjugateGradient().solve(lambda v: hessian @ v, vector).vector
    small = ConjugateGradient().solve(lambda v: hessian @ v, 2.0**-60 * vector).vector
    torch.testing.assert_close(small * 2.0**60, expected)


def test_tolerance_leaves_a_good_answer_alone():
    hessian, vector = matrix([1.0, 2.0, 5.0, 9.0]), right_side(4)
    coarse = ConjugateGradient(iterations=4, tolerance=0.3).solve(lambda v: hessian @ v, vector)
    fine = ConjugateGradient(iterations=4).solve(lambda v: hessian @ v, vector)
    assert 1e-3 < coarse.residual <= 0.3
    assert fine.residual < 1e-10


def test_diagonal_estimates_the_diagonal_without_bias():
    torch.manual_seed(0)
    hessian = matrix([1.0, 2.0, 3.0, 4.0])
    found = Diagonal(samples=4000).solve(lambda v: hessian @ v, torch.ones(4, dtype=torch.float64)).vector
    torch.testing.assert_close(1 / found, hessian.diagonal(), rtol=0.05, atol=0.0)
    floored = Diagonal(samples=1, floor=0.5, damping=1.0)
    diagonal = torch.tensor([3.0, -4.0, 0.0, 0.0])  # root mean square 2.5
    torch.testing.assert_close(
        1 / floored.solve(lambda v: diagonal * v, torch.ones(4)).vector, torch.tensor([4.0, 5.0, 2.25, 2.25])
    )


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 6), seed=st.integers(0, 1000), damping=st.floats(1e-2, 10.0))
def test_rank_one_inverts_the_damped_outer_product(size, seed, damping):
    vector, gradient = right_side(size, seed), right_side(size, seed + 1)
    dense = damping * torch.eye(size, dtype=torch.float64) + torch.outer(gradient, gradient)
    found = RankOne(damping).solve(lambda v: v, vector, gradient).vector
    torch.testing.assert_close(found, torch.linalg.solve(dense, vector), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Neumann(terms=-1),
        lambda: Neumann(step=0.0),
        lambda: Neumann(step="fast"),
        lambda: Neumann(damping=-1.0),
        lambda: Identity(step=-1.0),
        lambda: ConjugateGradient(iterations=0),
        lambda: ConjugateGradient(damping=math.nan),
        lambda: Diagonal(samples=0),
        lambda: RankOne(damping=0.0),
        lambda: Exact(damping=-1.0),
    ],
)
def test_settings_that_mean_nothing_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()


def test_rank_one_asks_for_the_gradient():
    with pytest.raises(ValueError, match="inner gradient"):
        RankOne().solve(lambda v: v, torch.ones(2))


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_solvers_never_wait_for_the_device(solver):
    """Meta tensors have no values: anything that reads one, as ``item`` or ``if`` would, raises."""
    if isinstance(solver, Exact):
        pytest.skip("eigenvalues of a dense matrix wait for the device; Exact is for small problems")
    vector = torch.ones(3, device="meta")
    assert solver.solve(lambda v: 2 * v, vector, gradient=vector).vector.shape == (3,)
