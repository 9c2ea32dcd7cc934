import math
from itertools import combinations

import numpy as np
import pytest
import torch

from lossnet.analysis import Interactions, hessian, label_scores, pull_along
from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.nets import MLP

LABELS = 5


@pytest.fixture(params=[False, True], ids=["plain", "conditioned"])
def energy(request):
    torch.manual_seed(0)
    interaction = LabelInteraction(LABELS, hidden=7, features=8 if request.param else None)
    return Sum(MLP(4, hidden=8, layers=1), Local(8, LABELS), interaction).double().eval()


@pytest.fixture
def x():
    return torch.rand(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def y():
    return torch.rand(6, LABELS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.fixture
def interactions():
    generator = torch.Generator().manual_seed(3)
    truth = (torch.rand(40, LABELS, generator=generator, dtype=torch.float64) < 0.4).double()
    truth[:, 1] = truth[:, 0]
    learned = torch.randn(LABELS, LABELS, generator=generator, dtype=torch.float64)
    return Interactions(learned + learned.T, truth)


def at(energy, x, y, **changes):
    """The sum over instances of the energy with some labels set."""
    y = y.clone()
    for label, value in changes.items():
        y[:, int(label[1:])] = value
    return energy(x, y.unsqueeze(1)).sum().item()


# ---------------------------------------------------------------- the energy


def test_the_hessian_agrees_with_finite_differences(energy, x, y):
    step, found = 1e-4, hessian(energy, x, y)
    for i in range(LABELS):
        for j in range(LABELS):
            total = 0.0
            for a in (1, -1):
                for b in (1, -1):
                    moved = y.clone()
                    moved[:, i] += a * step
                    moved[:, j] += b * step
                    total += a * b * energy(x, moved.unsqueeze(1)).sum().item()
            assert float(found[i, j]) == pytest.approx(total / (4 * step**2) / len(x), rel=1e-4, abs=1e-6)


def test_the_hessian_is_the_global_energys_alone(x, y):
    torch.manual_seed(0)
    interaction = LabelInteraction(LABELS, hidden=7)
    alone = Sum(torch.nn.Identity(), interaction).double()
    with_local = Sum(torch.nn.Identity(), Local(4, LABELS), interaction).double()
    torch.testing.assert_close(hessian(with_local, x, y), hessian(alone, x, y))
    mixing, weights = interaction.mixing.weight.T, interaction.weights.weight[0]
    sigmoid = torch.sigmoid(y @ mixing.T)
    explicit = torch.einsum("h,nh,hi,hj->ij", weights, sigmoid * (1 - sigmoid), mixing, mixing) / len(y)
    torch.testing.assert_close(hessian(alone, x, y), explicit.detach())


def test_the_hessian_of_some_labels_is_part_of_that_of_all(energy, x, y):
    done = []
    some = hessian(energy, x, y, labels=[3, 0, 4], progress=done.append)
    order = torch.tensor([3, 0, 4])
    torch.testing.assert_close(some, hessian(energy, x, y)[order][:, order])
    assert done == [0, 1, 2]


def test_nothing_is_left_on_the_parameters(energy, x, y):
    hessian(energy, x, y)
    pull_along(energy, x, y, 0, 1)
    assert all(parameter.grad is None for parameter in energy.parameters())
    assert not y.requires_grad


def test_the_pull_along_another_label_agrees_with_finite_differences(energy, x, y):
    found = pull_along(energy, x, y, label=2, varying=4, at=(0.1, 0.8), steps=3)
    step = 1e-6
    for row, own in enumerate((0.1, 0.8)):
        for column, other in enumerate((0.0, 0.5, 1.0)):
            up = at(energy, x, y, y4=other, y2=own + step)
            down = at(energy, x, y, y4=other, y2=own - step)
            assert float(found[row, column]) == pytest.approx(-(up - down) / (2 * step) / len(x), abs=1e-7)


def test_the_slope_of_the_pull_is_the_learned_interaction(energy, x, y):
    y[:, 1], y[:, 3] = 0.5, 0.5
    pulls = pull_along(energy, x, y, label=1, varying=3, at=(0.5,), steps=2001)[0]
    slope = (pulls[1001] - pulls[999]) * 1000
    assert float(slope) == pytest.approx(-float(hessian(energy, x, y)[1, 3]), rel=1e-5)


# ---------------------------------------------------------------- beside the data


def test_co_occurrence_and_association_agree_with_loops(interactions):
    truth = interactions.truth.numpy()
    for i, j in combinations(range(LABELS), 2):
        assert interactions.together[i, j] == sum(row[i] * row[j] for row in truth)
        expected = np.corrcoef(truth[:, i], truth[:, j])[0, 1]
        assert float(interactions.association[i, j]) == pytest.approx(expected)
    assert float(interactions.association[0, 1]) == pytest.approx(1)


def test_correlations_are_over_pairs_without_the_diagonal(interactions):
    learned = interactions.learned.clone()
    learned.fill_diagonal_(1e9)
    pairs = list(combinations(range(LABELS), 2))
    ours = [float(learned[pair]) for pair in pairs]
    for value, matrix in (
        (interactions.correlation, interactions.association),
        (interactions.correlation_with_counts, interactions.together),
    ):
        assert value == pytest.approx(np.corrcoef(ours, [float(matrix[pair]) for pair in pairs])[0, 1])
    assert Interactions(learned, interactions.truth).correlation == pytest.approx(interactions.correlation)


def test_labels_that_never_vary_have_no_association():
    truth = torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    found = Interactions(torch.ones(3, 3), truth)
    assert found.association[0].tolist() == [0, 0, 0]
    assert math.isnan(found.correlation)


def test_strongest_pairs(interactions):
    pairs = sorted(combinations(range(LABELS), 2), key=lambda pair: float(interactions.learned[pair]))
    assert [pair[:2] for pair in interactions.strongest(3, wanted=False)] == pairs[:3]
    assert [pair[:2] for pair in interactions.strongest(2)] == pairs[::-1][:2]
    weakest = min(pairs, key=lambda pair: abs(float(interactions.learned[pair])))
    assert interactions.indifferent()[:2] == weakest
    assert len(interactions.strongest(100)) + len(interactions.strongest(100, wanted=False)) == 10
    assert all(pair.learned > 0 for pair in interactions.strongest(100))
    assert Interactions(torch.ones(3, 3), torch.eye(3)).strongest(3, wanted=False) == []


def test_the_order_puts_companions_side_by_side(interactions):
    order = interactions.order()
    assert sorted(order) == list(range(LABELS))
    assert abs(order.index(0) - order.index(1)) == 1
    assert Interactions(torch.zeros(2, 2), torch.eye(2)).order() == [0, 1]


def test_label_scores_agree_with_counts():
    generator = torch.Generator().manual_seed(4)
    predicted, truth = ((torch.rand(2, 30, 6, generator=generator) < 0.4).double()).unbind()
    predicted[:, 5] = truth[:, 5] = predicted[:, 4] = 0
    found = label_scores(predicted, truth)
    for label in range(4):
        pairs = list(zip(predicted[:, label].tolist(), truth[:, label].tolist(), strict=True))
        hits, chosen, true = pairs.count((1, 1)), sum(a for a, _ in pairs), sum(b for _, b in pairs)
        assert float(found.precision[label]) == pytest.approx(hits / chosen)
        assert float(found.recall[label]) == pytest.approx(hits / true)
        assert float(found.f1[label]) == pytest.approx(2 * hits / (chosen + true))
    assert float(found.f1[4]) == 0
    assert found.precision[4].isnan()
    assert found.f1[5].isnan()
