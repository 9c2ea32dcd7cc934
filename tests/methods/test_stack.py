import numpy as np
import pytest
import torch

from lossnet.data import MultiLabelData
from lossnet.methods import Stack
from lossnet.methods.stack import Correction
from lossnet.nets import MLP
from lossnet.spaces import Batch, MultiLabel
from lossnet.training import Trainer

LABELS = 3


def stack(members=3, dropout=0.0):
    torch.manual_seed(0)
    nets = [MLP(5, hidden=6, layers=1, outputs=LABELS, dropout=dropout) for _ in range(members)]
    return Stack(nets, MultiLabel(LABELS)).double()


def batch(rows, **others):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(len(rows), 5)))
    y = torch.from_numpy(rng.integers(0, 2, (len(rows), LABELS)).astype(float))
    return Batch(x, y, rows=torch.tensor(rows), **others)


def gradients(method, given):
    (update,) = method.fold_updates(given)
    parameters = [list(member.parameters()) for member in method.members]
    flat = torch.autograd.grad(update.loss, [one for own in parameters for one in own])
    return update.loss, torch.stack([part.abs().sum() for part in flat]).view(len(parameters), -1).sum(1)


@pytest.mark.parametrize("fold", [0, 1, 2])
def test_a_network_never_sees_its_own_fold(fold):
    _, found = gradients(stack(), batch([fold, fold + 3, fold + 30]))
    assert [bool(size) for size in found] == [number != fold for number in range(3)]


def test_the_loss_is_the_mean_over_pairs_of_network_and_instance():
    method, given = stack(), batch([7, 3, 4, 8])
    loss, _ = gradients(method, given)
    losses = [
        torch.nn.functional.binary_cross_entropy_with_logits(member(x), y, reduction="sum")
        for row, x, y in zip(given.rows, given.x, given.y, strict=True)
        for number, member in enumerate(method.members)
        if number != row % 3
    ]
    torch.testing.assert_close(loss, torch.stack(losses).sum() / (2 * 4))


def test_weights_count():
    method, rows = stack(), [0, 1, 2, 3]
    first = batch(rows)
    weighted, _ = gradients(method, first._replace(weight=torch.tensor([2.0, 2, 0, 0]).double()))
    part, _ = gradients(method, Batch(first.x[:2], first.y[:2], rows=first.rows[:2]))
    torch.testing.assert_close(weighted, part)


def test_the_correction_learns_from_out_of_fold_logits():
    method, given = stack(), batch([5, 0, 1])
    torch.nn.init.normal_(method.correction.linear.weight)
    (update,) = method.updates(given)
    logits = torch.stack([method.members[row % 3](x) for row, x in zip([5, 0, 1], given.x, strict=True)])
    weight = method.correction.linear.weight
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits + logits @ weight.T, given.y)
    torch.testing.assert_close(update.loss, expected * LABELS)
    with pytest.raises(RuntimeError, match="not have been used"):  # networks of folds are held fixed
        torch.autograd.grad(update.loss, list(method.members.parameters()))


def test_prediction_corrects_the_mean():
    method, x = stack(), batch([0, 1]).x
    torch.testing.assert_close(method.predict(x), method.predict_mean(x))  # before it is trained
    torch.nn.init.normal_(method.correction.linear.weight)
    mean = sum(member(x) for member in method.members) / 3
    torch.testing.assert_close(method.predict(x), torch.sigmoid(method.correction(mean)))


def test_it_needs_row_numbers_and_two_networks():
    with pytest.raises(ValueError, match="row numbers"):
        next(stack().fold_updates(batch([0])._replace(rows=None)))
    with pytest.raises(ValueError, match="two networks or more, not 1"):
        stack(members=1)


def test_it_learns_what_one_label_says_of_another():
    """The second label is the first one's copy, whose inputs are noise: only the correction can tell."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2, 400)
    x = rng.normal(size=(400, 5)) + 2 * first[:, None] * np.array([1, 0, 0, 0, 0])
    y = np.stack([first, first, 1 - first], 1)
    data = MultiLabelData.from_arrays(x.astype("float32"), y)
    method = stack().float()
    method.members[0].register_forward_hook(lambda module, given, out: out * torch.tensor([1.0, 0, 0]))
    method.members[1].register_forward_hook(lambda module, given, out: out * torch.tensor([1.0, 0, 0]))
    method.members[2].register_forward_hook(lambda module, given, out: out * torch.tensor([1.0, 0, 0]))
    trainer = Trainer(method, lr=0.02, max_epochs=30, seed=0)
    trainer.fit(data.take(range(300)), data.take(range(300, 400)))
    assert [stage["stage"] for stage in trainer.stages] == ["networks of folds", "stack"]
    part = data.batch(torch.arange(300, 400))
    before = (method.predict_mean(part.x).round() == part.y).float().mean(0)
    after = (method.predict(part.x).round() == part.y).float().mean(0)
    assert before[1] < 0.7
    assert after.min() > 0.8


def test_a_correction_starts_as_the_identity():
    logits = torch.randn(2, 4)
    assert torch.equal(Correction(4)(logits), logits)
