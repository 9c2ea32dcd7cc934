import pytest
import torch
from torch import nn

import lossnet
from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.losses import NCE, Margin, RegressionS, TaskLoss
from lossnet.methods import SEAL
from lossnet.nets import MLP
from lossnet.spaces import Batch, MultiLabel

SPACE = MultiLabel(4)


@pytest.fixture
def energy():
    torch.manual_seed(1)
    return Sum(MLP(6, 8, 1), Local(8, 4), LabelInteraction(4, 5))


@pytest.fixture
def model():
    torch.manual_seed(2)
    return MLP(6, 8, 1, 4)


@pytest.fixture
def batch(make_data):
    return make_data(64).batch(torch.arange(64))


def test_the_three_lines_of_the_design_train_both_networks(energy, model, batch):
    criterion = lossnet.LearnedLoss(energy, space=SPACE, loss=lossnet.losses.NCE(samples=20), lr=1e-2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y, *_ = batch
    before = [parameter.clone() for parameter in energy.parameters()]

    def right():
        return ((model(x) > 0) == (y > 0)).float().mean().item()

    start = right()
    torch.manual_seed(0)
    energy_losses = []
    for _ in range(60):
        loss = criterion(x, model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        energy_losses.append(criterion.step())
    assert right() > max(0.85, start + 0.2)
    assert all(isinstance(value, float) for value in energy_losses)
    for parameter, old in zip(energy.parameters(), before, strict=True):
        assert not torch.equal(parameter, old)


def test_the_energy_learns_on_a_fixed_prediction(energy, model, batch):
    x, y, *_ = batch
    criterion = lossnet.LearnedLoss(energy, SPACE, NCE(20), lr=1e-2, steps=3)
    criterion(x, model(x), y)
    torch.manual_seed(0)
    values = [criterion.step() for _ in range(15)]
    assert values[-1] < 0.8 * values[0]


def test_backward_leaves_no_gradient_in_the_energy(energy, model, batch):
    x, y, *_ = batch
    frozen = energy.terms[0].weights.weight.requires_grad_(False)  # the user's own choice
    criterion = lossnet.LearnedLoss(energy, SPACE)
    x.requires_grad_()
    criterion(x, model(x), y).backward()
    assert all(parameter.grad is None for parameter in criterion.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
    flags = {id(p): p.requires_grad for p in energy.parameters()}
    assert not flags.pop(id(frozen))
    assert all(flags.values()), "they can still be trained"


@pytest.mark.parametrize(
    "task_loss", [TaskLoss(), TaskLoss(energy_weight=3.0, ce_weight=0.2, score_weight=5.0)]
)
def test_its_gradient_is_that_of_seals_task_step(energy, model, batch, task_loss):
    criterion = lossnet.LearnedLoss(energy, SPACE, task_loss=task_loss)
    loss = criterion(batch.x, model(batch.x), batch.y)
    (update,) = SEAL(model, energy, SPACE, task_loss=task_loss).task_updates(batch, task_loss)
    parameters = list(model.parameters())
    torch.testing.assert_close(loss, update.loss)
    torch.testing.assert_close(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(update.loss, parameters)
    )


@pytest.mark.parametrize("loss", [NCE(5), Margin(), RegressionS(samples=3)])
@pytest.mark.parametrize("clip", [10.0, 0.01])
def test_its_step_is_seals_energy_step(energy, model, batch, loss, clip):
    x, y, *_ = batch
    criterion = lossnet.LearnedLoss(energy, SPACE, loss, lr=0.03, weight_decay=0.1, clip=clip)
    criterion(x, model(x), y)
    torch.manual_seed(5)
    update = next(SEAL(model, energy, SPACE, loss).updates(Batch(x, y)))
    expected = [parameter.detach().clone() for parameter in energy.parameters()]
    gradients = torch.autograd.grad(update.loss, list(energy.parameters()))
    for parameter, gradient in zip(expected, gradients, strict=True):
        parameter.grad = gradient
    nn.utils.clip_grad_norm_(expected, clip)
    torch.optim.AdamW(expected, lr=0.03, weight_decay=0.1).step()
    torch.manual_seed(5)
    assert criterion.step() == pytest.approx(update.loss.item(), rel=1e-6)
    for found, wanted in zip(energy.parameters(), expected, strict=True):
        torch.testing.assert_close(found.detach(), wanted.detach())


def test_a_step_warns_of_nothing(energy, model, batch):
    criterion = lossnet.LearnedLoss(energy, SPACE)
    criterion(batch.x, model(batch.x), batch.y)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else only a process's first warning would be seen
    try:
        criterion.step()
    finally:
        torch.set_warn_always(before)


def test_a_step_does_not_touch_the_model(energy, model, batch):
    criterion = lossnet.LearnedLoss(energy, SPACE)
    criterion(batch.x, model(batch.x), batch.y)
    criterion.step()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_step_before_a_call_is_an_error(energy):
    with pytest.raises(RuntimeError, match="call the criterion on a batch before"):
        lossnet.LearnedLoss(energy, SPACE).step()


def test_masks_are_passed_on():
    space = lossnet.Tags(3)

    class Unary(lossnet.energies.Energy):
        def __init__(self):
            super().__init__()
            self.unit = nn.Linear(2, 3)

        def encode(self, x):
            return self.unit(x)

        def evaluate(self, encoded, y):
            return -(y * encoded.unsqueeze(1)).flatten(2).sum(-1)

    torch.manual_seed(0)
    criterion = lossnet.LearnedLoss(Unary(), space)
    x, logits = torch.randn(2, 4, 2), torch.randn(2, 4, 3, requires_grad=True)
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
    y = nn.functional.one_hot(torch.randint(3, (2, 4)), 3) * mask.unsqueeze(-1)
    criterion(x, logits, y, mask).backward()
    reached = logits.grad.abs().sum(-1) > 0
    assert torch.equal(reached, mask > 0)
    assert criterion.step() > 0
