"""Structured tuning: the loss, its weight, and that networks come to obey."""

import pytest
import torch
from torch import nn

from lossnet.energies.role_rules import core_columns, repeated_core_roles
from lossnet.losses import TaskLoss
from lossnet.methods import StructuredTuning
from lossnet.spaces import Batch, MultiLabel, Roles, Tags

NAMES = ("O", "B-A0", "I-A0", "B-AM", "I-AM")
SPACE = Roles(len(NAMES), NAMES)


class Given(nn.Module):
    """Logits that are the parameters."""

    def __init__(self, *shape):
        super().__init__()
        torch.manual_seed(0)
        self.logits = nn.Parameter(torch.randn(*shape))

    def forward(self, x):
        return self.logits


def batch():
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 0]])
    y = torch.eye(5)[torch.tensor([[1, 2, 0], [0, 3, 0]])] * mask.unsqueeze(2)
    return Batch(torch.zeros(2, 3, 1), y, mask)


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_the_loss_is_cross_entropy_and_the_constraint(weight):
    net, given = Given(2, 3, 5), batch()
    method = StructuredTuning(net, SPACE, TaskLoss(energy_weight=weight))
    (update,) = method.updates(given)
    prediction = method.prediction(given)
    broken = repeated_core_roles(prediction.relaxed.unsqueeze(1), core_columns(NAMES)).squeeze(1)
    expected = (prediction.cross_entropy(given.y) + weight * broken).mean()
    torch.testing.assert_close(update.loss, expected)


def test_descent_takes_a_repeated_role_away():
    """``log p − log(1 − q)`` is positive where ``p + q > 1``: descent ends where at most one is likely."""
    net = Given(1, 2, 5)
    with torch.no_grad():
        net.logits[..., 1] = torch.tensor([3.0, 2.5])
    method = StructuredTuning(net, SPACE, TaskLoss(energy_weight=1.0, ce_weight=0.0))
    given = Batch(torch.zeros(1, 2, 1), torch.eye(5)[torch.tensor([[1, 1]])])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        next(iter(method.updates(given))).loss.backward()
        optimizer.step()
    begins = net.logits.detach().softmax(-1)[0, :, 1]
    assert 0.9 < begins.sum() < 1.01


def test_it_is_for_roles_only():
    from lossnet.methods.structured_tuning import SPEC

    (loss,) = SPEC.losses
    assert SPEC.suits(loss, SPACE)
    assert not any(SPEC.suits(loss, space) for space in (Tags(5, NAMES), MultiLabel(3)))
