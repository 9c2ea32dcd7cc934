import copy
import itertools
import math

import numpy as np
import pytest
import torch

from lossnet.build import build
from lossnet.data import MultiLabelData
from lossnet.methods import SGM, LabelSequence
from lossnet.nets import MLP
from lossnet.settings import Settings
from lossnet.spaces import Batch, MultiLabel
from lossnet.task import Task
from lossnet.training import Trainer

LABELS = 3
TRUTH = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]]).double()


@pytest.fixture
def method():
    torch.manual_seed(0)
    net = LabelSequence(MLP(5, hidden=6, layers=1), LABELS, width=4)
    made = SGM(net, MultiLabel(LABELS)).double()
    made.task_net.count(torch.tensor([1, 5, 3]).double(), torch.tensor([2, 0, 0, 1]))
    return made


@pytest.fixture
def x():
    return torch.from_numpy(np.random.default_rng(0).normal(size=(4, 5)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Written:
    """The decoder once more, in NumPy, for one instance and one sequence at a time."""

    def __init__(self, net, x):
        self.read = {name: value.detach().numpy() for name, value in net.state_dict().items()}
        self.context = net.encoder(x.unsqueeze(0)).detach().numpy()[0]

    def affine(self, name, x):
        return self.read[f"{name}.weight"] @ x + self.read.get(f"{name}.bias", 0)

    def log_probability(self, sequence):
        """Of labels in this order, and then the end."""
        steps = enumerate((*sequence, LABELS))
        return sum(self.next_step(sequence[:place])[label] for place, label in steps)

    def next_step(self, sequence):
        """Log-probabilities of what comes after these labels."""
        embeddings, memory = self.read["embeddings.weight"], self.affine("start", self.context)
        hidden, given, written = np.tanh(memory), embeddings[-1], []
        for label in (*sequence, None):
            x = np.concatenate([given, self.context])
            gates = self.read["cell.weight_ih"] @ x + self.read["cell.bias_ih"]
            gates += self.read["cell.weight_hh"] @ hidden + self.read["cell.bias_hh"]
            take, keep, new, show = np.split(gates, 4)
            memory = sigmoid(keep) * memory + sigmoid(take) * np.tanh(new)
            hidden = sigmoid(show) * np.tanh(memory)
            inner = np.tanh(self.affine("from_state", hidden) + self.affine("from_context", self.context))
            scores = np.exp(self.affine("output", inner))
            scores[written] = 0
            probabilities = scores / scores.sum()
            if label is not None:
                written.append(label)
                expected = probabilities[:LABELS] @ embeddings[:LABELS]
                gate = sigmoid(self.affine("gate", np.concatenate([embeddings[label], expected])))
                given = (1 - gate) * embeddings[label] + gate * expected
        with np.errstate(divide="ignore"):
            return np.log(probabilities)


def test_the_likelihood_against_the_formula(method, x):
    order = [1, 2, 0]  # by frequency
    expected = [
        -Written(method.task_net, x[row]).log_probability([label for label in order if TRUTH[row, label]])
        for row in range(4)
    ]
    np.testing.assert_allclose(method.task_net.losses(x, TRUTH).detach(), expected, rtol=1e-12)
    (update,) = method.updates(Batch(x, TRUTH))
    torch.testing.assert_close(update.loss, torch.tensor(np.mean(expected)))


def test_sequences_of_all_sets_have_a_probability_of_one(method, x):
    written = Written(method.task_net, x[0])
    every = itertools.chain.from_iterable(itertools.permutations(range(LABELS), size) for size in range(4))
    assert sum(math.exp(written.log_probability(one)) for one in every) == pytest.approx(1, rel=1e-12)


def test_a_wide_search_finds_every_sequence(method, x):
    sets, scores = method.task_net.search(x, beam=16)
    written = [Written(method.task_net, row) for row in x]
    every = [*itertools.chain.from_iterable(itertools.permutations(range(LABELS), size) for size in range(4))]
    for row in range(4):
        expected = sorted((written[row].log_probability(one) for one in every), reverse=True)
        np.testing.assert_allclose(scores[row].detach(), expected, rtol=1e-10)
        best = max(every, key=written[row].log_probability)
        assert set(sets[row, 0].nonzero().flatten().tolist()) == set(best)
    exact = sum(math.exp(written[0].log_probability(one)) * np.isin(np.arange(LABELS), one) for one in every)
    method.task_net.search = lambda x: (sets, scores)
    np.testing.assert_allclose(method.predict(x)[0].detach(), exact, rtol=1e-10)


def test_no_sequence_is_longer_than_those_of_training(method, x):
    method.task_net.longest.fill_(1)
    sets, scores = method.task_net.search(x, beam=4)
    assert sets.sum(2).max() == 1
    assert torch.isfinite(scores).all()
    assert method.predict(x).max() <= 1


def test_the_gradient_of_the_likelihood(method, x):
    weight = method.task_net.embeddings.weight
    (slope,) = torch.autograd.grad(method.task_net.losses(x, TRUTH).sum(), weight)
    for place in ((0, 1), (3, 2)):
        step, ends = 1e-5, []
        for sign in (1, -1):
            moved = copy.deepcopy(method)
            with torch.no_grad():
                moved.task_net.embeddings.weight[place] += sign * step
            ends.append(moved.task_net.losses(x, TRUTH).sum().item())
        assert slope[place].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5)


def test_training_counts_labels_and_orders_them_by_frequency(method, x):
    next(method.updates(Batch(x, TRUTH)))
    assert method.task_net.counts.tolist() == [3, 7, 5]
    assert method.task_net.longest.item() == 3
    sequences, real = method.task_net.sequences(TRUTH)
    assert [row[keep].tolist() for row, keep in zip(sequences, real, strict=True)] == [
        [2, 0, 3],
        [1, 3],
        [3],
        [1, 2, 0, 3],
    ]


def test_processes_count_together(method, x):
    halves = [copy.deepcopy(method), copy.deepcopy(method)]
    shares = [slice(0, 3), slice(3, 4)]
    own = []
    for half, share in zip(halves, shares, strict=True):
        half.task_net.longest.fill_(1)
        half.total = lambda parts: own.append(parts) or parts
        next(half.updates(Batch(x[share], TRUTH[share])))
    together = tuple(sum(parts) for parts in zip(*own, strict=True))
    for half, share in zip(halves, shares, strict=True):
        half.task_net.counts.zero_()
        half.total = lambda parts: together
        next(half.updates(Batch(x[share], TRUTH[share])))
        assert half.task_net.counts.tolist() == [2, 2, 2]
        assert half.task_net.longest.item() == 3


def test_it_learns_which_labels_go_together():
    """The second label is the first one's opposite, though the input says nothing of either."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)).astype("float32")
    coin = rng.integers(0, 2, 500)
    y = np.stack([coin, 1 - coin, x[:, 0] > 0, x[:, 0] <= 0], 1)
    data = MultiLabelData.from_arrays(x, y)
    settings = Settings(task_hidden=16, task_layers=1, task_dropout=0.0)
    method = build("sgm", "likelihood", settings, Task.of_sizes(3, 4))
    Trainer(method, lr=0.01, max_epochs=12, seed=0, progress=False).fit(
        data.take(range(400)), data.take(range(400, 500))
    )
    best = method.task_net.search(data.batch(torch.arange(400, 500)).x)[0][:, 0]
    assert (best[:, :2].sum(1) == 1).float().mean() > 0.95  # one of the two, never both
    truth = data.batch(torch.arange(400, 500)).y
    assert (best[:, 2:] == truth[:, 2:]).all(1).float().mean() > 0.9


# ---------------------------------------------------------------- in any order


def completions(written, truth):
    """The next steps from which the fewest labels too many and too few can be reached, by trying all."""
    free = [label for label in range(LABELS) if label not in written]

    def best(written):
        rest = [label for label in range(LABELS) if label not in written]
        ends = itertools.chain.from_iterable(itertools.combinations(rest, size) for size in range(4))
        return min(len({*written, *more} ^ truth) for more in ends)

    costs = {label: best([*written, label]) for label in free} | {LABELS: len({*written} ^ truth)}
    return [step for step, cost in costs.items() if cost == min(costs.values())]


def divergence(net, x, sequence, truth):
    """``Σ_t KL(π* ‖ p_t)`` along a sequence that ends, from the decoder in NumPy."""
    written, total = Written(net, x), 0.0
    for place in range(len(sequence) + 1):
        so_far = sequence[:place]
        steps = completions(so_far, truth)
        for step in steps:
            total += (math.log(1 / len(steps)) - written.next_step(so_far)[step]) / len(steps)
    return total


def test_completions_against_the_formula(method, x, monkeypatch):
    """Along given sequences, right ones and wrong ones, in place of drawn ones."""
    drawn = [[0, 2], [2, 1], [1], [2, 0, 1]]
    asked = iter(torch.tensor([[*row, *[LABELS] * (4 - len(row))] for row in drawn]).T)
    monkeypatch.setattr(torch, "multinomial", lambda chances, count: next(asked).unsqueeze(1))
    found = method.task_net.completion_losses(x, TRUTH)
    truths = [set(row.nonzero().flatten().tolist()) for row in TRUTH]
    expected = [divergence(method.task_net, *each) for each in zip(x, drawn, truths, strict=True)]
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-11)


def test_completions_are_drawn_from_the_network(method, x):
    """A network that is sure of the right labels has nothing to learn, in whatever order it writes them."""
    net = method.task_net
    truth = TRUTH[:1]
    with torch.no_grad():
        for value in net.parameters():
            value.zero_()
        net.output.bias.copy_(torch.tensor([60.0, 0.0, 60.0, 30.0]))  # 0 and 2, alike, then the end
    torch.manual_seed(0)
    losses = torch.stack([net.completion_losses(x[:1], truth) for _ in range(8)])
    torch.testing.assert_close(losses, torch.zeros_like(losses), rtol=0, atol=1e-9)
    wrong = torch.stack([net.completion_losses(x[:1], TRUTH[1:2]) for _ in range(3)])
    assert (wrong > 20).all()


def test_it_learns_sets_in_no_order():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype("float32")
    coin = rng.integers(0, 2, 400)
    y = np.stack([coin, 1 - coin, x[:, 0] > 0, x[:, 0] <= 0], 1)
    data = MultiLabelData.from_arrays(x, y)
    settings = Settings(task_hidden=16, task_layers=1, task_dropout=0.0)
    method = build("sgm", "ocd", settings, Task.of_sizes(3, 4))
    Trainer(method, lr=0.01, max_epochs=12, seed=0, progress=False).fit(
        data.take(range(300)), data.take(range(300, 400))
    )
    batch = data.batch(torch.arange(300, 400))
    sets, _ = method.task_net.search(batch.x)
    best = sets[:, 0]
    assert (best[:, :2].sum(1) == 1).float().mean() > 0.95
    assert (best[:, 2:] == batch.y[:, 2:]).all(1).float().mean() > 0.9
    # Both orders of a set are as likely, so that sequences of one set are found beside each other.
    assert (sets[:, :1] == sets[:, 1:3]).all(2).any(1).float().mean() > 0.5
