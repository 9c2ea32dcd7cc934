import itertools

import numpy as np
import pytest
import torch

from benchmarks.energies import WAYS, Divergence, ResidualTeacher, Way, chosen, table
from lossnet import MultiLabel, nets
from lossnet.data import MultiLabelData
from lossnet.losses import TaskLoss
from lossnet.spaces import Batch, Prediction
from lossnet.training import Trainer

SPACE = MultiLabel(3)
SETS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)), dtype=torch.float64)


def pairs(y):
    """An energy without a local term: the first two labels belong together."""
    return -3 * y[..., 0] * y[..., 1] + y[..., 2] * y[..., 0] - y[..., 1]


def test_its_gradient_is_that_of_the_divergence():
    torch.manual_seed(0)
    logits = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
    log_prob = Prediction(SPACE, logits).log_prob(SETS.unsqueeze(0))
    exact = (log_prob.exp() * (pairs(SETS) + log_prob)).sum()
    (wanted,) = torch.autograd.grad(exact, logits)
    loss = Divergence(energy_weight=2.0, ce_weight=0.0, samples=100_000)(
        Prediction(SPACE, logits), None, pairs
    )
    (found,) = torch.autograd.grad(loss, logits)
    assert found == pytest.approx(2 * wanted, abs=0.03)
    assert wanted.abs().max() > 0.3


def test_the_other_terms_are_those_of_the_task_loss():
    prediction = Prediction(SPACE, torch.randn(4, 3))
    truth = (torch.rand(4, 3) < 0.5).float()
    without = TaskLoss(ce_weight=0.5, score_weight=2.0)(prediction, truth)
    assert Divergence(ce_weight=0.5, score_weight=2.0)(prediction, truth) == without


def teacher(task_loss):
    torch.manual_seed(0)
    make = lambda: nets.MLP(2, hidden=8, layers=1, outputs=2)  # noqa: E731
    return ResidualTeacher([make(), make()], make(), MultiLabel(2), task_loss)


@pytest.mark.parametrize("task_loss", [TaskLoss(), Divergence()])
def test_a_residual_energy_learns_that_labels_come_together(task_loss):
    random = np.random.default_rng(0)
    first = random.integers(0, 2, 300)
    x = random.normal(size=(300, 2)).astype(np.float32)
    data = MultiLabelData.from_arrays(x, np.stack([first, first], 1))
    method = teacher(task_loss)
    lr = {"members": 1e-2, "energy": 3e-2, "task_net": 1e-3}
    history = Trainer(method, lr=lr, max_epochs=15, progress=False).fit(data, data)
    assert [*dict.fromkeys(entry["stage"] for entry in history)] == [
        "networks of folds",
        "energy",
        "task net",
    ]
    with torch.no_grad():
        both, one = method.energy(torch.zeros(1, 2), torch.tensor([[[1.0, 1.0], [1.0, 0.0]]]))[0]
    assert both < one - 2


def test_it_is_told_by_networks_of_other_folds():
    method = teacher(TaskLoss()).eval()
    batch = Batch(torch.rand(4, 2), torch.ones(4, 2), rows=torch.tensor([0, 1, 2, 5]))
    own = torch.stack([member(batch.x) for member in method.members])
    assert torch.equal(method.held_out(batch), own[[0, 1, 0, 1], range(4)])


def line(title, weight, seed, value):
    figures = dict.fromkeys(("f1", "f1_expected", "micro_f1", "macro_f1", "exact_match"), value)
    metrics = {"valid": {"f1_tuned": value}, "test": {**figures, "f1_tuned": value}}
    return {"dataset": "d", "title": title, "weight": weight, "seed": seed, "metrics": metrics}


def test_the_weight_is_chosen_by_validation_data_of_the_first_seed():
    lines = [line("w", 0.1, 0, 0.5), line("w", 1.0, 0, 0.6), line("w", 0.1, 1, 0.9)]
    assert chosen(lines, "d", Way("w", "c")) == 1.0
    assert chosen([], "d", Way("w", "c")) is None


def test_rows_show_what_the_energy_adds_to_its_control():
    control, way = WAYS[2], WAYS[3]
    assert way.control == control.title
    lines = [line(control.title, None, seed, value) for seed, value in ((0, 0.5), (1, 0.6))]
    lines += [line(way.title, weight, 0, value) for weight, value in ((0.1, 0.7), (0.3, 0.1))]
    lines += [line(way.title, 0.1, 1, 0.62)]
    heading, rows = table(lines)
    found = dict(zip(heading, rows[1], strict=True))
    assert found["weight"] == "0.1"
    assert found["F1 tuned"] == "66.00 ± 5.66"
    assert found["tuned − control"] == "+11.00 (9.00)"
    assert found["seeds"] == "2"
