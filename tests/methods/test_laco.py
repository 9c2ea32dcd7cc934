import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lossnet.build import build
from lossnet.data import MultiLabelData
from lossnet.methods import LACO, LabelReader
from lossnet.methods.laco import draw_pairs
from lossnet.nets import MLP
from lossnet.own import OwnParts
from lossnet.settings import Settings
from lossnet.spaces import Batch, MultiLabel
from lossnet.task import Task
from lossnet.training import Trainer

LABELS = 4
TRUTH = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).double()


def laco(task="plcp", labels=LABELS):
    torch.manual_seed(0)
    net = LabelReader(MLP(5, hidden=6, layers=1), labels, width=3)
    return LACO(net, MultiLabel(labels), task).double()


def inputs(rows=4):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(rows, 5)))


def softplus(x):
    return np.log1p(np.exp(x))


def parts(method, x):
    """Features and heads once more, in NumPy."""
    net = method.task_net
    read = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    hidden = net.encoder(x).detach().numpy()
    features = np.stack(
        [softplus(hidden @ read["reading.weight"].T + read["reading.bias"] + e) for e in read["embeddings"]],
        1,
    )

    def head(left, right):
        inner = softplus(read["pair.0.weight"] @ np.concatenate([left, right]) + read["pair.0.bias"])
        return float(read["pair.2.weight"][0] @ inner + read["pair.2.bias"][0])

    logits = np.einsum("blw,lw->bl", features, read["weights"]) + read["bias"]
    return features, logits, head


def bce(logit, truth):
    return math.log1p(math.exp(-logit if truth else logit))


def test_logits_are_read_from_the_features_of_labels():
    method, x = laco(), inputs()
    np.testing.assert_allclose(method.task_net(x).detach(), parts(method, x)[1], rtol=1e-12)


def test_pairs_against_the_formula():
    method, x = laco(), inputs()
    features, _, head = parts(method, x)
    first, second = torch.tensor([0, 1, 1, 0]), torch.tensor([1, 0, 0, 2])
    found = method.pair_losses(method.task_net.label_features(x), TRUTH, first, second)
    expected = [
        bce(head(features[0, 0], features[0, 1]), 0),
        0,
        bce(head(features[2, 1], features[2, 0]), 1),
        0,
    ]
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-12)  # rows of one label or none have no pair


def test_conditions_against_the_formula():
    method, x = laco("clcp"), inputs()
    features, _, head = parts(method, x)
    given = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]).double()
    found = method.conditional_losses(method.task_net.label_features(x), TRUTH, given)
    for row in range(4):
        own = [label for label in range(LABELS) if given[row, label]]
        known = features[row, own].mean(0) if own else np.zeros(3)
        terms = [bce(head(known, features[row, j]), TRUTH[row, j]) for j in range(LABELS) if j not in own]
        np.testing.assert_allclose(found[row].item(), sum(terms), rtol=1e-12)


@pytest.mark.parametrize("task", ["plcp", "clcp"])
def test_an_update_has_both_losses_and_its_gradient(task):
    method, x = laco(task), inputs()
    torch.manual_seed(3)
    (update,) = method.updates(Batch(x, TRUTH))
    own = sum(bce(z, y) for z, y in zip(parts(method, x)[1].ravel(), TRUTH.numpy().ravel(), strict=True)) / 4
    torch.testing.assert_close(update.loss, own + update.measured[task])
    weight = method.task_net.embeddings
    (slope,) = torch.autograd.grad(update.loss, weight)
    step, ends = 1e-5, []
    for sign in (1, -1):
        moved = copy.deepcopy(method)
        with torch.no_grad():
            moved.task_net.embeddings[2, 1] += sign * step
        torch.manual_seed(3)
        ends.append(next(moved.updates(Batch(x, TRUTH))).loss.item())
    assert slope[2, 1].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_a_third_of_the_pairs_occurs_together():
    truth = TRUTH[:3].repeat(2000, 1)
    truth = truth[truth.sum(1) > 1]
    first, second = draw_pairs(truth)
    rows = torch.arange(len(truth))
    assert (first != second).all()
    assert (truth[rows, first] == 1).all()
    assert truth[rows, second].mean().item() == pytest.approx(1 / 3, abs=0.03)
    drawn = first[truth[:, 3] == 1]
    assert [(drawn == label).double().mean().item() for label in (0, 2, 3)] == pytest.approx(
        [1 / 3] * 3, abs=0.05
    )


def test_rows_that_have_every_label_are_drawn_from_as_well():
    first, second = draw_pairs(torch.ones(50, 3))
    assert (first != second).all()


@pytest.mark.parametrize("task", ["plcp", "clcp"])
def test_it_learns_from_pairs(task):
    """Labels are signs of inputs and of their product; a linear reading of the input would not do."""
    x = np.random.default_rng(0).normal(size=(500, 2)).astype("float32")
    y = np.stack([x[:, 0] > 0, x[:, 1] > 0, x[:, 0] * x[:, 1] > 0], 1)
    data = MultiLabelData.from_arrays(x, y)
    settings = Settings(task_hidden=24, task_layers=1, task_dropout=0.0)
    method = build("laco", task, settings, Task.of_sizes(2, 3))
    trainer = Trainer(method, lr=0.01, max_epochs=25, seed=0, progress=False)
    history = trainer.fit(data.take(range(400)), data.take(range(400, 500)))
    assert history[-1]["f1"] > 0.9
    first, last = (history[place]["measured"]["task_net"][task] for place in (0, -1))
    assert last < 0.8 * first


def test_one_label_occurs_with_no_other():
    with pytest.raises(ValueError, match="and there is one; use cross-entropy"):
        build("laco", "plcp", Settings(), Task.of_sizes(2, 1))


def test_a_task_net_of_ones_own_has_no_features():
    task = replace(Task.of_sizes(2, 3), own=OwnParts(task_net=torch.nn.Linear))
    with pytest.raises(
        ValueError, match="method laco reads features, and a task net of your own gives logits"
    ):
        build("laco", "plcp", Settings(), task)
