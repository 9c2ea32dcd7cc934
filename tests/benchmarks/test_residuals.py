import pytest
import torch

from benchmarks.residuals import HEADING, compared, table
from lossnet import MultiLabel, energies, nets
from lossnet.hypergradient import Neumann
from lossnet.methods import Implicit
from lossnet.spaces import Batch


def method(solver):
    torch.manual_seed(0)
    energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    task_net = nets.MLP(4, hidden=8, layers=1, outputs=3, dropout=0.5)
    return Implicit(task_net, energy, MultiLabel(3), solver=solver, max_norm_ratio=None)


BATCH = Batch(torch.rand(6, 4, generator=torch.Generator().manual_seed(1)), torch.ones(6, 3))


def test_a_solver_is_compared_on_the_same_draws():
    own = method(Neumann(5, step="auto"))
    update, found = compared(own, BATCH)
    assert isinstance(own.solver, Neumann)
    assert 0 < found["identity"] <= 2
    assert 0 < found["neumann"] <= 2
    assert found["terms"] > 0
    assert found["apart"] > 1e-3
    assert update.network == "energy"


def test_no_terms_are_the_identity_on_the_same_dropout():
    own = method(Neumann(0, step="auto"))
    first, second = (own.implicit_update(BATCH).gradients for _ in range(2))
    assert any(not torch.equal(one, other) for one, other in zip(first, second, strict=True))
    _, found = compared(own, BATCH)
    assert found["apart"] == pytest.approx(0, abs=1e-5)


def test_the_table_is_over_all_steps_of_all_seeds():
    steps = {"identity": [0.5, 1.5], "neumann": [0.25, 0.75], "terms": [5.0, 0.0], "apart": [1.0, 3.0]}
    results = [{"dataset": "genbase", "seed": seed, "steps": steps} for seed in range(2)]
    (row,) = table(results)
    assert dict(zip(HEADING, row, strict=True)) == {
        "data": "genbase",
        "identity: residual, mean": "1.00",
        "identity: largest": "1.50",
        "Neumann: largest": "0.75",
        "Neumann: residual, mean": "0.50",
        "terms, mean": "2.5",
        "steps without a term": "50.0 %",
        "apart": "2.00",
        "steps": "4",
    }
