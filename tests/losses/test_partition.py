"""A learned log-partition, against the sum over all sets."""

import itertools
import math

import pytest
import torch

from lossnet.build import build
from lossnet.energies import LabelInteraction, Local, LogPartition, Sum
from lossnet.losses import Partition
from lossnet.nets import MLP
from lossnet.settings import Settings
from lossnet.spaces import Batch, MultiLabel, Prediction
from lossnet.task import Task

SPACE = MultiLabel(3)
EVERY = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)), dtype=torch.float64)


def uniform(count):
    """Predictions under which all sets are as likely, so that the mean over all is the expectation."""
    return Prediction(SPACE, torch.zeros(count, 3, dtype=torch.float64))


def over_all(values, truth, prediction, loss=None):
    """The loss of energies ``(batch, 8)`` of all sets, its candidates, at the true ones ``(batch,)``."""
    table = {tuple(one.tolist()): place for place, one in enumerate(EVERY)}

    def energy(y):
        places = torch.tensor([[table[tuple(one.tolist())] for one in row] for row in y])
        return values.gather(1, places)

    everything = EVERY.expand(len(values), -1, -1)
    return (loss or Partition())(energy, EVERY[truth], everything, prediction)


def minimised(parameters, loss):
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=400, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def test_at_the_optimum_it_is_the_log_partition_and_the_loss_is_the_likelihood():
    torch.manual_seed(0)
    energies = torch.randn(4, 8, dtype=torch.float64) * 1.5
    truth, partition = torch.tensor([0, 3, 5, 7]), torch.zeros(4, 1, dtype=torch.float64, requires_grad=True)
    minimised([partition], lambda: over_all(energies + partition, truth, uniform(4)).sum())
    wanted = (-energies).logsumexp(1, keepdim=True)
    torch.testing.assert_close(partition.detach(), wanted, atol=1e-6, rtol=0)
    likelihood = -(-energies).log_softmax(1)[torch.arange(4), truth]
    found = over_all(energies + partition, truth, uniform(4)).detach()
    torch.testing.assert_close(found, likelihood, atol=1e-9, rtol=0)
    wrong = over_all(energies + wanted + 0.3, truth, uniform(4))
    assert (wrong > likelihood + 1e-3).all(), "no other one is as low"


def test_energy_and_partition_learn_the_datas_distribution():
    torch.manual_seed(0)
    shares = torch.rand(8, dtype=torch.float64).softmax(0)
    energies = torch.zeros(1, 8, dtype=torch.float64, requires_grad=True)
    partition = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    everything = torch.arange(8)

    def loss():
        each = over_all((energies + partition).expand(8, -1), everything, uniform(8))
        return (shares * each).sum()

    minimised([energies, partition], loss)
    found = (-energies - partition).detach()[0]
    torch.testing.assert_close(found.exp(), shares, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        partition.detach()[0, 0], (-energies).detach().logsumexp(1)[0], atol=1e-6, rtol=0
    )


def test_samples_of_any_noise_have_the_same_expectation():
    torch.manual_seed(0)
    logits = torch.tensor([[0.8, -0.5, 0.2]], dtype=torch.float64)
    values, prediction = torch.randn(1, 8, dtype=torch.float64) + 2, Prediction(SPACE, logits)
    loss = Partition(samples=60000)
    drawn = loss.propose(prediction)
    places = (drawn[0] @ torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)).long()

    def energy(y):
        return torch.cat([values[:, :1], values[:, places]], 1) if y.shape[1] > 1 else values[:, :1]

    sampled = loss(energy, EVERY[:1], drawn, prediction)
    exact = values[0, 0] + (-values).exp().sum() - 1
    assert float(sampled) == pytest.approx(float(exact), abs=0.02)


def test_gradients_and_the_line():
    values = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)
    truth = torch.tensor([1, 6])
    assert torch.autograd.gradcheck(lambda v: over_all(v, truth, uniform(2)), values)
    assert torch.autograd.gradgradcheck(lambda v: over_all(v, truth, uniform(2)), values)
    at = 3 * math.log(2) - 10  # the energy from which on the exponential is a line
    for low in (at - 1e-6, at + 1e-6):
        one = torch.full((1, 8), low, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(over_all(one, truth[:1], uniform(1)), one)
        assert float(slope[0, 0]) == pytest.approx(-math.exp(10) / 8, rel=1e-5)
    far = torch.full((1, 8), -1e6, requires_grad=True, dtype=torch.float64)
    (slope,) = torch.autograd.grad(over_all(far, truth[:1], uniform(1)), far)
    assert slope.isfinite().all()


def test_the_command_line_adds_the_term():
    task, settings = Task.of_sizes(inputs=4, labels=3), Settings(task_hidden=4, energy_hidden=4, samples=5)
    method = build("seal", "partition", settings, task)
    assert isinstance(method.energy.terms[-1], LogPartition)
    assert not any(isinstance(one, LogPartition) for one in build("seal", "nce", settings, task).energy.terms)
    assert method.loss == Partition(samples=5)
    losses = [one.loss.item() for one in method.updates(Batch(torch.randn(6, 4), torch.ones(6, 3)))]
    assert all(map(math.isfinite, losses))
    assert method.energy.unary_logits(torch.zeros(2, 4)).shape == (2, 3)


def test_a_network_learns_the_log_partition_of_each_input():
    """Two labels that are equal, by a coin whose chance is the input."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x = torch.rand(2000, 1, generator=generator)
    y = (torch.rand(2000, 1, generator=generator) < x).float().expand(-1, 2)
    space, net = MultiLabel(2), MLP(1, hidden=16, layers=1)
    energy = Sum(
        net, Local(16, 2), LabelInteraction(2, 8), LogPartition(MLP(1, hidden=16, layers=1, outputs=1))
    )
    optimizer = torch.optim.AdamW(energy.parameters(), lr=2e-2)
    loss, noise = Partition(samples=10), torch.zeros(128, 2)
    for _ in range(1000):
        rows = torch.randint(2000, (128,), generator=generator)
        prediction = Prediction(space, noise)
        value = loss(energy.at(x[rows]), y[rows], loss.propose(prediction), prediction).mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    asked = torch.tensor([[0.2], [0.5], [0.8]])
    every = torch.tensor([[0.0, 0.0], [1, 1], [0, 1], [1, 0]]).expand(3, -1, -1)
    chances = (-energy(asked, every)).exp().detach()
    torch.testing.assert_close(chances.sum(1), torch.ones(3), atol=0.25, rtol=0)
    torch.testing.assert_close(chances[:, 1], asked[:, 0], atol=0.2, rtol=0)
    assert (chances[:, 2:] < 0.12).all()
