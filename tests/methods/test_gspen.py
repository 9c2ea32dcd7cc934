"""GSPEN: its inference beside brute force over all sets of 8 labels, and its loss beside likelihoods."""

from itertools import product

import pytest
import torch

from lossnet.energies import LabelInteraction, Local, Pairs, Sum
from lossnet.inference import Beliefs, FrankWolfe
from lossnet.inference.beliefs import pair_beliefs
from lossnet.losses import Margin, Perceptron
from lossnet.methods import GSPEN
from lossnet.nets import MLP
from lossnet.scores import F1, Manhattan
from lossnet.spaces import Batch, MultiLabel

LABELS, ROWS = 8, 5
SETS = torch.tensor(list(product([0.0, 1.0], repeat=LABELS)), dtype=torch.float64)
#: pairs that form a tree
TREE = ((0, 1), (1, 2), (1, 3), (3, 4), (0, 5), (5, 6), (5, 7))
EXACT = FrankWolfe(steps=3, sweeps=80)


def problem(edges=TREE, scale=1.5, seed=0):
    """Costs of labels, and potentials of the pairs."""
    generator = torch.Generator().manual_seed(seed)
    potentials = torch.zeros(ROWS, LABELS, LABELS, dtype=torch.float64)
    for i, j in edges:
        drawn = scale * torch.randn(ROWS, generator=generator, dtype=torch.float64)
        potentials[:, i, j] = potentials[:, j, i] = drawn
    return torch.randn(ROWS, LABELS, generator=generator, dtype=torch.float64), potentials


ALL = tuple((i, j) for i in range(LABELS) for j in range(i))


def energies_of_sets(costs, potentials, rest=lambda y: 0.0):
    """The energy of every set, ``(rows, 256)``, pair by pair."""
    total = SETS @ costs.T + rest(SETS)
    for i in range(LABELS):
        for j in range(i):
            total = total + (SETS[:, i] * SETS[:, j]).unsqueeze(1) * potentials[:, i, j]
    return total.T


def marginals(energies, temperature=1.0):
    """Chances of labels and pairs under ``exp(−E / τ)``, by summing over all sets."""
    chances = (-energies / temperature).softmax(1)
    return chances @ SETS, torch.einsum("rs,si,sj->rij", chances, SETS, SETS)


def linear(costs):
    return lambda y: (y * costs.unsqueeze(1)).sum(-1)


@pytest.fixture
def method():
    torch.manual_seed(1)
    energy = Sum(MLP(3, 6, 1), Local(6, LABELS), LabelInteraction(LABELS, 4))
    pairs = Pairs(MLP(3, 6, 1), LABELS, rank=3)
    torch.nn.init.normal_(pairs.strengths.weight, std=0.3)
    return GSPEN(energy, pairs, MultiLabel(LABELS)).double()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(2)
    y = torch.rand(ROWS, LABELS, generator=generator) < 0.4
    return Batch(torch.randn(ROWS, 3, generator=generator, dtype=torch.float64), y.double())


def on_a_tree(method):
    """Keep the potentials of a tree only."""
    kept = torch.zeros(LABELS, LABELS, dtype=torch.float64)
    for i, j in TREE:
        kept[i, j] = kept[j, i] = 1
    original = method.pairs.encode
    method.pairs.encode = lambda x: original(x) * kept
    return method


# ---------------------------------------------------------------- inference


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_beliefs_on_a_tree_are_the_marginals_of_all_sets(temperature):
    costs, potentials = problem()
    found = FrankWolfe(3, 80, temperature)(linear(costs), potentials)
    nodes, pairs = marginals(energies_of_sets(costs, potentials), temperature)
    torch.testing.assert_close(found.nodes, nodes, rtol=0, atol=1e-9)
    joined = potentials != 0
    torch.testing.assert_close(found.pairs[joined], pairs[joined], rtol=0, atol=1e-9)
    torch.testing.assert_close(found.expected(potentials), (potentials * pairs).sum((1, 2)) / 2)


def test_entropy_on_a_tree_is_that_of_all_sets():
    costs, potentials = problem()
    found = EXACT(linear(costs), potentials)
    chances = (-energies_of_sets(costs, potentials)).softmax(1)
    torch.testing.assert_close(found.entropy(), -(chances * chances.log()).sum(1))


@pytest.mark.parametrize("scale", [0.2, 0.5])
def test_beliefs_where_all_pairs_are_joined_are_near_the_marginals(scale):
    costs, potentials = problem(ALL, scale)
    nodes, pairs = marginals(energies_of_sets(costs, potentials))
    found = FrankWolfe(3, 40)(linear(costs), potentials)
    apart = (nodes - marginals(energies_of_sets(costs, 0 * potentials))[0]).abs().mean()
    assert (found.nodes - nodes).abs().mean() < 0.15 * apart
    assert (found.pairs - pairs)[potentials != 0].abs().max() < (0.02 if scale == 0.2 else 0.06)


@pytest.mark.parametrize(("edges", "least"), [(TREE, 40), (ALL, 36)], ids=["tree", "all pairs"])
def test_cold_beliefs_are_the_set_of_lowest_energy(edges, least):
    """Brute force over 256 sets; where all pairs are joined and may want the opposite, nearly always."""
    right = 0
    for seed in range(8):
        costs, potentials = problem(edges, 1.0, seed)
        found = FrankWolfe(40, 5, temperature=0.1)(linear(costs), potentials)
        best = SETS[energies_of_sets(costs, potentials).argmin(1)]
        right += int(((found.nodes > 0.5) == best.bool()).all(1).sum())
    assert right >= least, f"{right} of 40"


def test_with_a_learned_part_frank_wolfe_finds_the_lowest_free_energy():
    """Over all distributions of 256 sets, by mirror descent: the same as over beliefs, on a tree."""
    costs, potentials = problem()
    generator = torch.Generator().manual_seed(3)
    mixing = torch.randn(LABELS, 4, generator=generator, dtype=torch.float64)

    def learned(y):  # convex, so that there is one minimum
        return (y @ costs.unsqueeze(-1) if y.dim() < 3 else linear(costs)(y)) + (
            torch.nn.functional.softplus(y @ mixing).sum(-1)
        )

    found = FrankWolfe(150, 5)(learned, potentials)
    alone = energies_of_sets(0 * costs, potentials)
    logits = torch.zeros(ROWS, len(SETS), dtype=torch.float64)
    for _ in range(500):
        mean = (logits.softmax(1) @ SETS).unsqueeze(1).requires_grad_()
        (slope,) = torch.autograd.grad(learned(mean).sum(), mean)
        wanted = -(slope.squeeze(1) @ SETS.T + alone)
        logits = logits + 0.05 * (wanted - logits)
    expected = logits.softmax(1) @ SETS
    assert (expected - EXACT(linear(costs), potentials).nodes).abs().max() > 0.1, "the learned part matters"
    torch.testing.assert_close(found.nodes, expected, rtol=0, atol=3e-3)


def test_beliefs_in_pairs_agree_with_those_in_labels():
    generator = torch.Generator().manual_seed(4)
    nodes = torch.rand(50, 6, generator=generator)
    nodes[0], nodes[1] = 0.0, 1.0
    for scale in (0.0, 1e-4, 1.0, 100.0):
        pairs = pair_beliefs(nodes, scale * torch.randn(50, 6, 6, generator=generator))
        one, other = nodes.unsqueeze(2), nodes.unsqueeze(1)
        assert (pairs >= (one + other - 1).clamp(min=0)).all()
        assert (pairs <= torch.minimum(one, other)).all()
        if scale < 1e-3:
            torch.testing.assert_close(pairs, one * other, rtol=0, atol=1e-4)
        assert torch.isfinite(Beliefs(nodes, pairs).entropy()).all()


def test_potentials_of_any_size_give_finite_beliefs():
    costs, potentials = problem(ALL, 1000.0)
    found = FrankWolfe()(linear(1000 * costs.float()), potentials.float())
    assert torch.isfinite(found.nodes).all()
    assert torch.isfinite(found.entropy()).all()


# ---------------------------------------------------------------- energy and loss


def test_pairs_are_summed_once_each(method, batch):
    potentials = method.pairs.encode(batch.x)
    torch.testing.assert_close(potentials, potentials.mT)
    assert potentials.diagonal(dim1=1, dim2=2).eq(0).all()
    features = method.pairs.encoder(batch.x)
    layer, factors = method.pairs.strengths, method.pairs.factors
    for row in range(ROWS):
        strengths = layer.weight @ features[row] + layer.bias
        expected = sum(
            strengths[h] * factors[h, i] * factors[h, j] * batch.y[row, i] * batch.y[row, j]
            for h in range(3)
            for i, j in ALL
        )
        found = method.pairs(batch.x[row : row + 1], batch.y[None, row : row + 1])
        torch.testing.assert_close(found.squeeze(), expected)


@pytest.mark.parametrize("loss", [Perceptron(), Margin(Manhattan())], ids=["no cost", "Manhattan"])
def test_the_loss_of_a_linear_energy_is_a_negative_log_likelihood(method, batch, loss):
    """``log Σ_y′ exp(cost(y′, y) − E(x, y′)) + E(x, y)`` over all sets, and its gradient."""
    on_a_tree(method)
    method.loss, method.inference = loss, EXACT
    method.energy.terms = method.energy.terms[:1]  # without the learned part
    updates = list(method.updates(batch))
    assert [update.network for update in updates] == ["energy", "pairs"]
    energy = energies_of_sets(method.energy.terms[0].prepare(method.energy.encoder(batch.x)),
                              method.pairs.encode(batch.x))  # fmt: skip
    cost = (SETS - batch.y.unsqueeze(1)).abs().sum(-1)
    cost = 0 if isinstance(loss, Perceptron) else cost
    place = (batch.y @ (2 ** torch.arange(LABELS - 1, -1, -1, dtype=torch.float64))).long()
    truth = energy.gather(1, place.unsqueeze(1)).squeeze(1)
    expected = ((cost - energy).logsumexp(1) + truth).mean()
    for update, network in zip(updates, (method.energy, method.pairs), strict=True):
        torch.testing.assert_close(update.loss, expected.detach(), rtol=1e-9, atol=0)
        gradients = torch.autograd.grad(expected, list(network.parameters()), retain_graph=True)
        assert any(part.abs().max() > 1e-3 for part in gradients)
        torch.testing.assert_close(update.gradients, gradients, rtol=1e-6, atol=1e-8)


def test_the_loss_is_the_hinge_at_the_beliefs_found(method, batch):
    """With F1's cost and a learned part, from the formula in the docstring."""
    energy = method.energy
    found = method.inference(
        lambda y: energy(batch.x, y) - F1().cost(y, batch.y), method.pairs.encode(batch.x)
    )
    total = 0.0
    for row in range(ROWS):
        x, y, b = batch.x[row : row + 1], batch.y[row], found.nodes[row]
        potentials = method.pairs.encode(x)[0]
        cost = 1 - 2 * torch.minimum(b, y).sum() / (b + y).sum()
        at_beliefs = energy(x, b[None, None]).squeeze()
        at_truth = energy(x, y[None, None]).squeeze()
        for i, j in ALL:
            at_beliefs = at_beliefs + potentials[i, j] * found.pairs[row, i, j]
            at_truth = at_truth + potentials[i, j] * y[i] * y[j]
        value = cost - at_beliefs + found.entropy()[row] + at_truth
        total = total + torch.maximum(value, torch.zeros_like(value)) / ROWS
    update, _ = method.updates(batch)
    torch.testing.assert_close(update.loss, total.detach(), rtol=1e-10, atol=1e-12)
    expected = torch.autograd.grad(total, list(energy.parameters()))
    torch.testing.assert_close(update.gradients, expected, rtol=1e-8, atol=1e-10)


def test_without_pairs_predictions_are_the_local_terms(method, batch):
    method.energy.terms = method.energy.terms[:1]
    torch.nn.init.zeros_(method.pairs.strengths.weight)
    torch.testing.assert_close(method.predict(batch.x), method.predict_locally(batch.x))
