"""The problem behind the picture of solvers, against theory."""

import json
import math

import pytest
import torch

from benchmarks import solvers
from benchmarks.solvers import Ridge
from lossnet.hypergradient import (
    ConjugateGradient,
    Diagonal,
    Exact,
    Identity,
    Neumann,
    implicit_gradient,
)


@pytest.fixture(scope="module")
def problem():
    return Ridge(seed=1, features=6)


@pytest.fixture(scope="module")
def numbers():
    return solvers.measure(features=6, problems=3)


def error(found, exact):
    return ((found - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("rotated", [False, True])
def test_the_closed_form_is_the_implicit_gradient(rotated):
    problem = Ridge(seed=1, features=6, rotated=rotated)
    w, phi = problem.w.clone().requires_grad_(), problem.phi.clone().requires_grad_()

    def inner():
        return ((problem.x @ w - problem.y).square().mean() + (phi.exp() * w.square()).sum()) / 2

    def outer():
        return (problem.valid @ w - problem.target).square().mean() / 2

    (gradient,) = torch.autograd.grad(inner(), w)
    assert gradient.norm() < 1e-12
    found = implicit_gradient(outer, inner, [w], [phi], Exact())
    torch.testing.assert_close(found.gradients[0], problem.gradient(problem.solution))
    for solver in (ConjugateGradient(3), Neumann(5, 0.01)):  # and so is every approximation
        found = implicit_gradient(outer, inner, [w], [phi], solver)
        torch.testing.assert_close(found.gradients[0], problem.gradient(problem.solve(solver)[0]))


def test_rotated_features_keep_their_eigenvalues_and_lose_their_diagonal(problem):
    rotated = Ridge(seed=1, features=6, rotated=True)
    torch.testing.assert_close(rotated.values, problem.values)
    spread = [p.hessian.diagonal().amax() / p.hessian.diagonal().amin() for p in (problem, rotated)]
    assert spread[0] > 3 * spread[1]


def test_conjugate_gradient_is_exact_after_as_many_products_as_features(problem):
    vector, products = problem.solve(ConjugateGradient(6))
    assert products == 6
    assert error(vector, problem.solution) < 1e-8
    assert error(problem.solve(ConjugateGradient(3))[0], problem.solution) > 1e-3


@pytest.mark.parametrize("terms", [0, 5, 50, 500])
def test_neumann_has_the_residual_of_the_theory(problem, terms):
    condition = (problem.values[-1] / problem.values[0]).item()
    vector, products = problem.solve(Neumann(terms))
    assert products == terms + 3
    residual = error(problem.hessian @ vector, problem.slope)
    assert residual <= (1 - 1 / condition) ** (terms + 1) * (1 + 1e-9)
    assert residual > 1e-6  # the bound would mean nothing otherwise


def test_identity_recovers_the_steepest_direction_only(problem):
    vector, products = problem.solve(Identity(1 / problem.values[-1].item()))
    assert products == 0
    part = problem.values / problem.values[-1]
    exact = problem.vectors.T @ problem.solution
    torch.testing.assert_close(problem.vectors.T @ vector, part * exact, rtol=1e-6, atol=1e-9)
    missing = ((1 - part) * exact).norm() / exact.norm()
    assert error(vector, problem.solution) == pytest.approx(missing.item(), rel=1e-6)


def test_components_are_the_polynomials_of_the_theory(numbers):
    values = torch.tensor(numbers["eigenvalues"], dtype=torch.float64)
    found = {name: torch.tensor(part).double() for name, part in numbers["components"].items()}
    left = 1 - values / values[-1]
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found["Identity"], 1 - left, **close)
    torch.testing.assert_close(found["Neumann, 5"], 1 - left**6, **close)
    torch.testing.assert_close(found["Neumann, 100"], 1 - left**101, **close)
    torch.testing.assert_close(found["RankOne"], values, **close)  # damping 1, no gradient
    torch.testing.assert_close(found["ConjugateGradient, 10"], torch.ones(6).double(), **close)


def test_products_are_counted_and_more_of_them_help(numbers):
    rows = {(row["solver"], row["setting"]): row for row in numbers["accuracy"]}
    assert rows["Exact", 0]["products"] == 6
    assert rows["ConjugateGradient", 4]["products"] == 4
    assert rows["Neumann", 20]["products"] == 23
    assert rows["Identity", 0]["products"] == 3
    assert rows["Diagonal", 5]["products"] == 5
    assert rows["RankOne", 0]["products"] == 0
    for prefix in ("", "rotated_"):
        assert rows["Exact", 0][f"{prefix}error"] < 1e-10
        neumann = [row[f"{prefix}error"] for row in numbers["accuracy"] if row["solver"] == "Neumann"]
        assert neumann == sorted(neumann, reverse=True)
        assert rows["Identity", 0][f"{prefix}cosine"] == pytest.approx(rows["RankOne", 0][f"{prefix}cosine"])
    assert rows["Diagonal", 100]["error"] < rows["Diagonal", 100]["rotated_error"]


def test_a_long_step_explodes_without_the_stop(numbers):
    auto, long, fixed = numbers["steps"]
    assert auto["times_largest"] == pytest.approx(1)
    assert auto["bare"] == pytest.approx(auto["stopped"])
    assert auto["stopped"][-1] < 0.5
    assert long["times_largest"] == pytest.approx(2.2)
    for entry in (long, fixed):
        assert entry["bare"][-1] > 100
        assert max(entry["stopped"]) < 2


@pytest.mark.parametrize(("dtype", "low", "high"), [("float64", 1e-5, 1e-3), ("float32", 3e-3, 3e-2)])
def test_finite_differences_err_by_the_square_of_epsilon(numbers, dtype, low, high):
    pairs = zip(numbers["differences"]["epsilon"], numbers["differences"][dtype]["errors"], strict=True)
    points = [(epsilon, error) for epsilon, error in pairs if low <= epsilon <= high]
    (start, first), *_, (end, last) = points
    assert math.log(last / first) / math.log(end / start) == pytest.approx(2, abs=0.15)


def test_the_default_epsilon_is_near_the_best(numbers):
    for dtype, most in (("float64", 1e-8), ("float32", 1e-2)):
        assert numbers["differences"][dtype]["error_of_default"] < most


def test_measuring_leaves_random_numbers_alone():
    before = torch.get_rng_state()
    solvers.accuracy(features=2, problems=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert Ridge(3, 2).solve(Diagonal(1))[1] == 1


def test_one_command_writes_numbers_and_picture(tmp_path, monkeypatch, numbers):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(solvers, "measure", lambda: numbers)
    solvers.run(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "solvers.json").read_text()) == numbers
    assert (tmp_path / "out" / "solvers.png").read_bytes().startswith(b"\x89PNG")
