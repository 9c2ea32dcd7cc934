"""The comparison with other libraries, small; their part only where they are installed."""

import dataclasses
import importlib.util
import json

import pytest
import torch

from benchmarks import hypergradient
from benchmarks.hypergradient import PEERS, SIZES, Problem, contestants, difference, peak_memory
from benchmarks.overhead import training_data
from lossnet.data import MultiLabelData
from lossnet.hypergradient import ConjugateGradient, Exact, Identity, Neumann, implicit_gradient

TINY = dataclasses.replace(SIZES, task_hidden=16, energy_hidden=16, global_hidden=8, samples=3, batch_size=4)
INSTALLED = [name for name, module in PEERS.items() if importlib.util.find_spec(module)]


@pytest.fixture(scope="module")
def problem():
    data, _ = training_data(None, TINY.batch_size)
    return Problem(data, TINY, "cpu", torch.float64)


def small_problem():
    """So few inputs that the whole Hessian fits."""
    data, _ = training_data(None, TINY.batch_size)
    data = MultiLabelData(data.x[:, :12], data.y, data.feature_names[:12], data.label_names)
    return Problem(data, dataclasses.replace(TINY, task_hidden=4), "cpu", torch.float64)


def test_our_side_runs_and_writes_what_it_shows(tmp_path, capsys):
    content = hypergradient.run(tmp_path, tmp_path, "cpu", repeats=2, peers=(), sizes=TINY)
    assert json.loads((tmp_path / "hypergradient.json").read_text()) == content
    assert set(content["seconds"]) == {"CE step", "CE step, fused", *content["peak_bytes"]}
    assert content["seconds"]["Neumann, lossnet"] > content["seconds"]["identity, lossnet"] > 0
    checks = content["checks"]
    ratio = content["seconds"]["identity, lossnet"] / content["seconds"]["CE step"]
    assert checks["identity, lossnet over a CE step"]["value"] == ratio
    assert checks["difference between gradients"]["value"] < 1e-9
    shown = capsys.readouterr().out
    assert "CE steps" in shown
    assert "holds" in shown


@pytest.mark.skipif(len(INSTALLED) < len(PEERS), reason="needs betty and TorchOpt: make bench-peers")
def test_peers_find_the_same_gradient(tmp_path):
    content = hypergradient.run(tmp_path, tmp_path, "cpu", repeats=1, sizes=TINY)
    checks = content["checks"]
    assert checks["difference between gradients"]["value"] < 1e-9
    differences = content["difference"]
    assert differences["conjugate gradient, TorchOpt"] < 1e-9
    assert differences["Neumann, betty"] < 1e-9
    assert differences["conjugate gradient, betty, one iteration"] < 1e-9
    assert differences["conjugate gradient, betty"] > 0.01  # if this fails, betty was mended: say so
    assert "Neumann, lossnet over the fastest peer" in checks
    assert set(content["peers"]) == set(PEERS)


def test_missing_peers_are_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(PEERS, "betty-ml", "a_module_that_is_nowhere")
    with pytest.raises(ImportError, match=r"betty-ml.*not installed.*make bench-peers") as error:
        hypergradient.run(tmp_path, None, "cpu", peers=("betty-ml",), sizes=TINY)
    assert "--ignore-requires-python betty-ml" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_solvers_tend_to_the_exact_gradient():
    problem = small_problem()
    damping = 1.5 / problem.step()  # so much that the system is definite
    exact = problem.implicit(Exact(damping))
    errors = [
        difference(problem.implicit(solver), exact)
        for solver in (ConjugateGradient(60, damping=damping), Neumann(200, damping=damping), Identity())
    ]
    assert errors[0] < 1e-9
    assert errors[1] < 1e-9
    assert errors[2] > 0.1


def test_the_hessian_bends_upwards_where_conjugate_gradient_goes(problem):
    """Else it would stop early, unlike the peers', and take less time."""
    residuals = []
    for iterations in range(1, hypergradient.PRODUCTS + 1):
        prediction = problem.prediction()
        losses = problem.outer(prediction), problem.inner(prediction, problem.energy.at(problem.x))
        found = implicit_gradient(*losses, problem.theta, problem.phi, ConjugateGradient(iterations))
        residuals.append(found.residual.item())
    assert len(set(residuals)) == len(residuals)


def test_steps_of_training_leave_the_problem_alone(problem):
    before = [part.detach().clone() for part in (*problem.theta, *problem.phi)]
    problem.ce_step()
    for call in contestants(problem, 0.1, INSTALLED).values():
        call()
    assert all(torch.equal(a, b) for a, b in zip(before, (*problem.theta, *problem.phi), strict=True))
    assert all(part.grad is None for part in (*problem.theta, *problem.phi))


def test_peak_memory_counts_what_is_held_at_a_time():
    def one_after_the_other():
        for _ in range(3):
            torch.empty(250_000)

    assert peak_memory(one_after_the_other, "cpu") == pytest.approx(1_000_000, rel=0.01)
    assert peak_memory(lambda: [torch.empty(250_000) for _ in range(3)], "cpu") == pytest.approx(
        3e6, rel=0.01
    )
