"""Each method's updates: which networks in which order, and their gradients, written out again."""

import copy

import pytest
import torch
from torch import nn

from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.inference import GradientInference
from lossnet.losses import (
    CD,
    NCE,
    Asymmetric,
    Margin,
    Perceptron,
    Ranking,
    Regression,
    RegressionS,
    TaskLoss,
)
from lossnet.methods import (
    ALEN,
    DVN,
    IALEN,
    SEAL,
    SPEN,
    CrossEntropy,
    EndToEndSPEN,
    InfNet,
    InfNetPlus,
    NCEEnergy,
    SEALStatic,
    Stacked,
)
from lossnet.nets import MLP
from lossnet.nets.layers import Dropout
from lossnet.scores import Manhattan
from lossnet.spaces import Batch, MultiLabel, Prediction

INPUTS, LABELS, ROWS = 5, 4, 6
SPACE = MultiLabel(LABELS)


@pytest.fixture
def energy():
    torch.manual_seed(1)
    return Sum(MLP(INPUTS, 7, 1), Local(7, LABELS), LabelInteraction(LABELS, 3)).double()


@pytest.fixture
def task_net():
    torch.manual_seed(2)
    return MLP(INPUTS, 6, 1, LABELS).double()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64)
    y = (torch.rand(ROWS, LABELS, generator=generator) < 0.5).double()
    y[:, 0] = 1
    return Batch(x, y)


# ---------------------------------------------------------------- the formulas, written out again


def softplus(z):
    return torch.log(1 + torch.exp(z))


def sigmoid(z):
    return 1 / (1 + torch.exp(-z))


def energy_of(energy, x, y):
    """``Σ y_i b_iᵀ T(x) + vᵀ softplus(M y)`` of one output per row."""
    layer, (local, labels) = energy.encoder[0], energy.terms
    features = softplus(x @ layer.weight + layer.bias)
    alone = (y * (features @ local.weights.weight.T)).sum(1)
    return alone + softplus(y @ labels.mixing.weight) @ labels.weights.weight[0]


def logits_of(net, x):
    hidden = softplus(x @ net[0].weight + net[0].bias)
    return hidden @ net[-1].weight.T + net[-1].bias


def f1_of(y, truth):
    return 2 * torch.minimum(y, truth).sum(1) / (y.sum(1) + truth.sum(1))


def ce_of(logits, truth):
    p = sigmoid(logits)
    return -(truth * torch.log(p) + (1 - truth) * torch.log(1 - p)).sum(1)


def hinge_of(energy, batch, y, margin=True):
    cost = 1 - f1_of(y, batch.y) if margin else 0
    violation = cost - energy_of(energy, batch.x, y) + energy_of(energy, batch.x, batch.y)
    return torch.maximum(violation, torch.zeros_like(violation))


def bce_of(energy, batch, y):
    value, score = sigmoid(-energy_of(energy, batch.x, y)), f1_of(y, batch.y)
    return -(score * torch.log(value) + (1 - score) * torch.log(1 - value))


def softmax_of(energy, batch, candidates, extra):
    exponents = [-energy_of(energy, batch.x, y) + extra(y) for y in [batch.y, *candidates.unbind(1)]]
    total = sum(torch.exp(exponent) for exponent in exponents)
    return -torch.log(torch.exp(exponents[0]) / total)


def by_hand(name, energy, batch, candidates, logits):
    """The loss of each instance for one of SEAL's energy losses (design, section 3)."""
    logits = logits.detach()
    if name == "margin":
        return hinge_of(energy, batch, candidates[:, 0])
    if name.startswith("regression"):
        return sum(bce_of(energy, batch, y) for y in candidates.unbind(1)) / candidates.shape[1]
    extras = {
        "nce": lambda y: ce_of(logits, y),  # −log P(y|x)
        "ranking": lambda y: 0,
        "cd": lambda y: 1 - f1_of(y, batch.y),
    }
    return softmax_of(energy, batch, candidates, extras[name])


def taught_of(name, energy, x, y):
    """What the task net descends of the energy: the predicted score, with its sign turned, of regression."""
    value = energy_of(energy, x, y)
    return -sigmoid(-value) if name.startswith("regression") else value


ENERGY_LOSSES = {
    "margin": Margin(),
    "regression": Regression(),
    "regression-s": RegressionS(samples=3),
    "nce": NCE(3),
    "ranking": Ranking(3),
    "cd": CD(3),
}
CANDIDATES = {"margin": 1, "regression": 1, "regression-s": 3, "nce": 3, "ranking": 3, "cd": 3}
every_loss = pytest.mark.parametrize("name", ENERGY_LOSSES)


def gradients(loss, network):
    return torch.autograd.grad(loss, list(network.parameters()), retain_graph=True)


def assert_same_gradients(update_loss, expected_loss, network):
    torch.testing.assert_close(update_loss, expected_loss, rtol=1e-10, atol=1e-12)
    found = gradients(update_loss, network)
    expected = gradients(expected_loss, network)
    assert any(part.abs().max() > 1e-6 for part in expected)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def descend(update, network, rate=0.1):
    with torch.no_grad():
        for parameter, gradient in zip(network.parameters(), gradients(update.loss, network), strict=True):
            parameter -= rate * gradient


def only(updates):
    (update,) = updates
    return update


def joint(method):
    return method.stages()[0].updates


# ---------------------------------------------------------------- cross-entropy and fixed losses


def test_the_formulas_written_out_agree_with_the_networks(energy, task_net, batch):
    torch.testing.assert_close(energy_of(energy, batch.x, batch.y), energy(batch.x, batch.y[:, None])[:, 0])
    torch.testing.assert_close(logits_of(task_net, batch.x), task_net(batch.x))


def test_cross_entropy_takes_one_step_on_cross_entropy(task_net, batch):
    method = CrossEntropy(task_net, SPACE)
    assert [stage.networks for stage in method.stages()] == [("task_net",)]
    update = only(joint(method)(batch))
    assert update.network == "task_net"
    expected = ce_of(logits_of(task_net, batch.x), batch.y).mean()
    assert_same_gradients(update.loss, expected, task_net)


def test_soft_f1_adds_its_cost_to_cross_entropy(task_net, batch):
    update = only(joint(CrossEntropy(task_net, SPACE, TaskLoss(ce_weight=0.7, score_weight=30.0)))(batch))
    logits = logits_of(task_net, batch.x)
    expected = 0.7 * ce_of(logits, batch.y) + 30 * (1 - f1_of(sigmoid(logits), batch.y))
    assert_same_gradients(update.loss, expected.mean(), task_net)


def test_asymmetric_takes_the_place_of_cross_entropy(task_net, batch):
    update = only(joint(CrossEntropy(task_net, SPACE, TaskLoss(fixed=Asymmetric())))(batch))
    p = sigmoid(logits_of(task_net, batch.x))
    q = torch.maximum(p - 0.05, torch.zeros_like(p))
    expected = -(batch.y * (1 - p) * torch.log(p) + (1 - batch.y) * q**4 * torch.log(1 - q))
    assert_same_gradients(update.loss, expected.sum(1).mean(), task_net)


# ---------------------------------------------------------------- SEAL


@pytest.mark.parametrize(("n_e", "n_t"), [(1, 1), (3, 2), (1, 4)])
def test_seal_takes_its_energy_steps_before_each_task_step(task_net, energy, batch, n_e, n_t):
    method = SEAL(task_net, energy, SPACE, energy_steps=n_e, task_steps=n_t)
    assert [stage.networks for stage in method.stages()] == [("energy", "task_net")]
    names = [update.network for update in joint(method)(batch)]
    assert names == (["energy"] * n_e + ["task_net"]) * n_t


@pytest.mark.parametrize(("n_e", "n_t"), [(1, 1), (3, 2), (1, 4)])
def test_grouped_steps_are_the_energys_and_then_the_task_nets(task_net, energy, batch, n_e, n_t):
    method = SEAL(task_net, energy, SPACE, energy_steps=n_e, task_steps=n_t, schedule="grouped")
    names = [update.network for update in joint(method)(batch)]
    assert names == ["energy"] * n_e + ["task_net"] * n_t


@every_loss
def test_nested_and_grouped_are_the_same_for_one_step_of_each(task_net, energy, batch, name):
    noisy = with_dropout(task_net, energy)
    taken = []
    for schedule in ("nested", "grouped"):
        torch.manual_seed(7)
        method = SEAL(*noisy, SPACE, ENERGY_LOSSES[name], schedule=schedule).train()
        taken.append([update.loss for update in joint(method)(batch)])
    assert taken[0] == taken[1]


def with_dropout(task_net, energy):
    """The same networks with dropout behind their hidden layers."""
    net, own = copy.deepcopy(task_net), copy.deepcopy(energy)
    net.insert(2, Dropout(0.5))
    own.encoder.append(Dropout(0.5))
    return net, own


class Recorder(nn.Module):
    """A dropout layer that keeps the masks it has drawn."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def forward(self, x):
        mask = (torch.rand_like(x) < 0.5).to(x.dtype)
        self.drawn.append(mask.detach())
        return 2 * x * mask


@pytest.mark.parametrize(("schedule", "task", "own"), [("nested", 8, 8), ("grouped", 3, 4)])
@every_loss
def test_nested_steps_have_dropout_of_their_own(task_net, energy, batch, name, schedule, task, own):
    """Two rounds of three energy steps and a task step; grouped steps share what each reads of the other."""
    task_net.insert(2, Recorder())
    energy.encoder.append(Recorder())
    loss = ENERGY_LOSSES[name]
    method = SEAL(task_net, energy, SPACE, loss, energy_steps=3, task_steps=2, schedule=schedule).train()
    assert len(list(joint(method)(batch))) == (8 if schedule == "nested" else 5)
    for recorder, count in ((task_net[2], task), (energy.encoder[-1], own)):
        masks = {tuple(mask.flatten().tolist()) for mask in recorder.drawn}
        assert len(masks) == len(recorder.drawn) == count


@every_loss
def test_each_nested_step_sees_both_networks_as_they_are(task_net, energy, batch, name):
    """Against the published losses, written out, with both networks stepped in between."""
    loss, weights = ENERGY_LOSSES[name], TaskLoss(energy_weight=1.3, ce_weight=0.4)
    before = copy.deepcopy(task_net)
    torch.manual_seed(7)
    updates = joint(SEAL(task_net, energy, SPACE, loss, weights, energy_steps=2, task_steps=2))(batch)
    for _ in range(2):
        for _ in range(2):
            state = torch.get_rng_state()
            prediction = Prediction(SPACE, task_net(batch.x).detach())
            if isinstance(loss, Ranking):
                (candidates,) = prediction.candidate_batches(batch.y, loss.samples, 1)
                candidates = candidates[:, 1:]
            else:
                candidates = loss.propose(prediction)
            torch.set_rng_state(state)
            update = next(updates)
            assert update.network == "energy"
            expected = by_hand(name, energy, batch, candidates, logits_of(task_net, batch.x)).mean()
            assert_same_gradients(update.loss, expected, energy)
            descend(update, energy)
        update = next(updates)
        assert update.network == "task_net"
        logits = logits_of(task_net, batch.x)
        expected = 1.3 * taught_of(name, energy, batch.x, sigmoid(logits)) + 0.4 * ce_of(logits, batch.y)
        assert_same_gradients(update.loss, expected.mean(), task_net)
        descend(update, task_net, rate=0.5)
    assert next(updates, None) is None
    assert not torch.allclose(task_net(batch.x), before(batch.x))


@pytest.mark.parametrize("schedule", ["nested", "grouped"])
def test_seal_without_energy_steps_trains_the_task_net_alone(task_net, energy, batch, schedule):
    method = SEAL(task_net, energy, SPACE, energy_steps=0, task_steps=2, schedule=schedule)
    (stage,) = method.stages()
    assert stage.networks == ("task_net",)
    state = torch.get_rng_state()
    assert [update.network for update in stage.updates(batch)] == ["task_net", "task_net"]
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn for an energy that stays as it is


@every_loss
def test_seals_energy_step_is_the_published_loss(task_net, energy, batch, name):
    loss = ENERGY_LOSSES[name]
    torch.manual_seed(7)
    candidates = loss.propose(Prediction(SPACE, task_net(batch.x)))
    assert candidates.shape == (ROWS, CANDIDATES[name], LABELS)
    torch.manual_seed(7)
    update = next(joint(SEAL(task_net, energy, SPACE, loss))(batch))
    assert update.network == "energy"
    expected = by_hand(name, energy, batch, candidates, logits_of(task_net, batch.x)).mean()
    assert_same_gradients(update.loss, expected, energy)
    reached = torch.autograd.grad(update.loss, list(task_net.parameters()), allow_unused=True)
    assert all(part is None for part in reached), "the task net's prediction is held fixed"


@every_loss
def test_each_grouped_step_draws_anew_and_sees_the_stepped_energy(task_net, energy, batch, name):
    loss = ENERGY_LOSSES[name]
    torch.manual_seed(7)
    prediction = Prediction(SPACE, task_net(batch.x).detach())
    if isinstance(loss, Ranking):  # which draws for both steps at once
        batches = prediction.candidate_batches(batch.y, loss.samples, 2)
        first, second = (candidates[:, 1:] for candidates in batches)
    else:
        first, second = loss.propose(prediction), loss.propose(prediction)
    assert torch.equal(first, second) == (name in ("margin", "regression"))
    torch.manual_seed(7)
    updates = joint(SEAL(task_net, energy, SPACE, loss, energy_steps=2, schedule="grouped"))(batch)
    descend(next(updates), energy)
    expected = by_hand(name, energy, batch, second, logits_of(task_net, batch.x)).mean()
    assert_same_gradients(next(updates).loss, expected, energy)


def test_a_task_step_leaves_the_energy_alone_but_not_what_both_share(task_net, batch):
    encoder = MLP(INPUTS, 6, 1).double()
    encoder[0] = task_net[0]
    energy = Sum(encoder, Local(6, LABELS), LabelInteraction(LABELS, 3)).double()
    *_, update = joint(SEAL(task_net, energy, SPACE))(batch)
    shared, alone = task_net[0].weight, energy.terms[1].mixing.weight
    gradients = torch.autograd.grad(update.loss, [shared, alone], allow_unused=True)
    assert gradients[0].abs().max() > 0
    assert gradients[1] is None
    assert all(parameter.requires_grad for parameter in energy.parameters())


@every_loss
def test_seals_task_step_sees_the_new_energy(task_net, energy, batch, name):
    weights = TaskLoss(energy_weight=1.7, ce_weight=0.6, score_weight=2.5)
    before = copy.deepcopy(energy)
    method = SEAL(task_net, energy, SPACE, ENERGY_LOSSES[name], weights, task_steps=2, schedule="grouped")
    updates = joint(method)(batch)
    descend(next(updates), energy, rate=1.0)
    for _ in range(2):
        update = next(updates)
        logits = logits_of(task_net, batch.x)
        relaxed = sigmoid(logits)
        rest = 0.6 * ce_of(logits, batch.y) + 2.5 * (1 - f1_of(relaxed, batch.y))
        expected = (1.7 * taught_of(name, energy, batch.x, relaxed) + rest).mean()
        stale = (1.7 * taught_of(name, before, batch.x, relaxed) + rest).mean()
        assert not torch.isclose(expected, stale)
        assert_same_gradients(update.loss, expected, task_net)
        descend(update, task_net, rate=0.01)  # the second step must see the stepped task net
    assert next(updates, None) is None


# ---------------------------------------------------------------- InfNet


def test_seal_with_margin_is_infnets_published_special_case(task_net, energy, batch):
    """Tu & Gimpel 2018 with the margin kept for the energy and removed for the network."""
    method = SEAL(task_net, energy, SPACE, Margin(), TaskLoss(energy_weight=1.0, ce_weight=0.0))
    updates = joint(method)(batch)
    for _ in range(4):  # whole alternating steps, so that the two games are the same
        output = sigmoid(logits_of(task_net, batch.x)).detach()
        gap = energy_of(energy, batch.x, batch.y) - energy_of(energy, batch.x, output)
        hinge = torch.relu(1 - f1_of(output, batch.y) + gap).mean()
        update = next(updates)
        assert_same_gradients(update.loss, hinge, energy)
        descend(update, energy, rate=0.05)

        output = sigmoid(logits_of(task_net, batch.x))
        truth = energy_of(energy, batch.x, batch.y)
        adversary = -(-energy_of(energy, batch.x, output) + truth).mean()
        update = next(updates)
        assert update.network == "task_net"
        torch.testing.assert_close(
            gradients(update.loss, task_net), gradients(adversary, task_net), rtol=1e-9, atol=1e-12
        )
        descend(update, task_net)
        assert next(updates, None) is None
        updates = joint(method)(batch)


@pytest.mark.parametrize("ce", [0.0, 0.8])
@pytest.mark.parametrize("weight", [1.0, 2.3])
def test_infnets_network_maximises_the_margin(task_net, energy, batch, weight, ce):
    task_loss = TaskLoss(energy_weight=weight, ce_weight=ce)
    updates = joint(InfNet(task_net, energy, SPACE, Margin(), task_loss))(batch)
    output = sigmoid(logits_of(task_net, batch.x))
    update = next(updates)
    assert_same_gradients(update.loss, hinge_of(energy, batch, output.detach()).mean(), energy)
    update = next(updates)
    logits = logits_of(task_net, batch.x)
    output = sigmoid(logits)
    expected = weight * (energy_of(energy, batch.x, output) - (1 - f1_of(output, batch.y)))
    assert update.network == "task_net"
    assert_same_gradients(update.loss, (expected + ce * ce_of(logits, batch.y)).mean(), task_net)


def test_infnet_with_a_perceptron_has_no_cost(task_net, energy, batch):
    updates = joint(InfNet(task_net, energy, SPACE, Perceptron(), TaskLoss(ce_weight=0.4)))(batch)
    logits = logits_of(task_net, batch.x)
    output = sigmoid(logits)
    hinge = hinge_of(energy, batch, output.detach(), margin=False)
    assert hinge.max() > 0
    assert_same_gradients(next(updates).loss, hinge.mean(), energy)
    expected = energy_of(energy, batch.x, output) + 0.4 * ce_of(logits, batch.y)
    assert_same_gradients(next(updates).loss, expected.mean(), task_net)


def test_infnets_fine_tuning_minimises_the_plain_task_loss(task_net, energy, batch):
    task_loss = TaskLoss(energy_weight=1.4, ce_weight=0.3, score_weight=2.0)
    method = InfNet(task_net, energy, SPACE, task_loss=task_loss, energy_steps=2, task_steps=3)
    first, second = method.stages()
    assert (first.networks, second.networks) == (("energy", "task_net"), ("task_net",))
    assert [u.network for u in first.updates(batch)] == ["energy"] * 2 + ["task_net"] * 3
    updates = list(second.updates(batch))
    assert [update.network for update in updates] == ["task_net"] * 3
    logits = logits_of(task_net, batch.x)
    output = sigmoid(logits)
    expected = 1.4 * energy_of(energy, batch.x, output) + 0.3 * ce_of(logits, batch.y)
    expected = expected + 2.0 * (1 - f1_of(output, batch.y))
    assert_same_gradients(updates[0].loss, expected.mean(), task_net)


def descended(start, steps, lr, objective, through=False):
    """Each step of mirror descent in the logits."""
    path, state = [], start
    for _ in range(steps):
        y = sigmoid(state)
        y = y if y.requires_grad else y.requires_grad_()
        (direction,) = torch.autograd.grad(objective(y).sum(), y, create_graph=through)
        state = state - lr * direction
        path.append(state)
    return path


def test_alens_energy_learns_where_refinement_ends_and_its_network_where_it_begins(task_net, energy, batch):
    task_loss = TaskLoss(energy_weight=0.7, ce_weight=0.4)
    refine = GradientInference(steps=6, lr=0.5, candidates=3)  # which starts at zeros, unless told
    method = ALEN(task_net, energy, SPACE, Margin(), task_loss, energy_steps=2, inference=refine)
    (stage,) = method.stages()
    assert stage.networks == ("energy", "task_net")
    updates = stage.updates(batch)

    def adversary(y):
        return energy_of(energy, batch.x, y) - (1 - f1_of(y, batch.y))

    start = logits_of(task_net, batch.x).detach()
    for _ in range(2):
        update = next(updates)
        assert update.network == "energy"
        end = sigmoid(descended(start, 6, 0.5, adversary)[-1]).detach()
        assert (adversary(end) < adversary(sigmoid(start)) - 1e-3).all()
        assert_same_gradients(update.loss, hinge_of(energy, batch, end).mean(), energy)
        descend(update, energy)
    logits = logits_of(task_net, batch.x)
    expected = 0.7 * adversary(sigmoid(logits)) + 0.4 * ce_of(logits, batch.y)
    assert_same_gradients(only(updates).loss, expected.mean(), task_net)
    end = sigmoid(descended(start, 6, 0.5, lambda y: energy_of(energy, batch.x, y))[-1])
    torch.testing.assert_close(method.predict(batch.x), end)
    assert not method.feed_forward
    alone = IALEN(task_net, energy, SPACE, inference=refine)
    torch.testing.assert_close(alone.predict(batch.x), sigmoid(logits))
    assert alone.feed_forward


# ---------------------------------------------------------------- energies alone

NET_START = GradientInference(steps=8, lr=0.5, start="net")


def test_spen_pretrains_its_local_term_as_a_classifier(energy, batch):
    first, second = SPEN(energy, SPACE, inference=NET_START).stages()
    assert first.networks == second.networks == ("energy",)
    update = only(first.updates(batch))
    assert update.network == "energy"
    layer, local = energy.encoder[0], energy.terms[0].weights.weight
    logits = -(softplus(batch.x @ layer.weight + layer.bias) @ local.T)
    expected = ce_of(logits, batch.y).mean()
    torch.testing.assert_close(update.loss, expected, rtol=1e-10, atol=1e-12)
    trained = nn.ModuleList([layer, energy.terms[0]])
    assert_same_gradients(update.loss, expected, trained)
    untouched = list(energy.terms[1].parameters())
    assert all(g is None for g in torch.autograd.grad(update.loss, untouched, allow_unused=True))
    torch.testing.assert_close(first.predict(batch.x, None), sigmoid(logits))


@pytest.mark.parametrize("lr", [0.5, 50.0])  # with the second, steps overshoot
def test_spens_candidate_violates_the_margin_at_least_as_much_as_the_start(energy, batch, lr, monkeypatch):
    method = SPEN(energy, SPACE, inference=GradientInference(steps=8, lr=lr, start="net"))
    seen = []
    original = Margin.__call__

    def record(self, function, truth, candidates, prediction):
        seen.append(candidates)
        return original(self, function, truth, candidates, prediction)

    monkeypatch.setattr(Margin, "__call__", record)
    update = only(method.stages()[1].updates(batch))
    assert update.network == "energy"
    (candidates,) = seen
    assert candidates.shape == (ROWS, 1, LABELS)
    found = candidates[:, 0]
    assert not found.requires_grad
    assert_same_gradients(update.loss, hinge_of(energy, batch, found).mean(), energy)

    def violation(y):
        return 1 - f1_of(y, batch.y) - energy_of(energy, batch.x, y)

    start = sigmoid(energy.unary_logits(batch.x)).detach()
    gain = (violation(found) - violation(start)).detach()
    assert (gain >= -1e-12).all()
    if lr < 1:
        assert gain.max() > 1e-3
        # Each mirror step descends in the logits along the gradient of E − cost.
        state = energy.unary_logits(batch.x).detach()
        for _ in range(8):
            y = sigmoid(state).requires_grad_()
            (direction,) = torch.autograd.grad(-violation(y).sum(), y)
            state = state - lr * direction
        torch.testing.assert_close(found, sigmoid(state))


def test_end_to_end_learns_from_every_step_of_inference_through_all_of_them(energy, batch):
    inference = GradientInference(steps=3, lr=0.8)
    method = EndToEndSPEN(energy, SPACE, TaskLoss(), inference)
    local, stage = method.stages()
    assert (local.name, stage.networks) == ("local energy", ("energy",))
    start = torch.zeros_like(batch.y)
    path = descended(start, 3, 0.8, lambda y: energy_of(energy, batch.x, y), through=True)
    expected = sum(w * ce_of(z, batch.y) for w, z in zip((1 / 3, 1 / 2, 1), path, strict=True)) / (11 / 6)
    update = only(stage.updates(batch))
    assert_same_gradients(update.loss, expected.mean(), energy)
    torch.testing.assert_close(method.predict(batch.x), sigmoid(path[-1]))
    # and by finite differences, the derivatives of derivatives among them
    weight, (slope, *_) = energy.terms[1].mixing.weight, gradients(update.loss, energy.terms[1].mixing)
    with torch.no_grad():
        for place in ((0, 0), (2, 1)):
            values = []
            for step in (1e-5, -2e-5):
                weight[place] += step
                with torch.enable_grad():
                    values.append(only(stage.updates(batch)).loss.item())
            weight[place] += 1e-5
            assert (values[0] - values[1]) / 2e-5 == pytest.approx(slope[place].item(), rel=1e-5)


def test_dvn_sees_what_it_predicts_an_adversary_and_the_truth(energy, batch, monkeypatch):
    method = DVN(energy, SPACE, inference=NET_START)
    seen = []
    original = Regression.__call__

    def record(self, function, truth, candidates, prediction):
        seen.append(candidates)
        return original(self, function, truth, candidates, prediction)

    monkeypatch.setattr(Regression, "__call__", record)
    torch.manual_seed(5)
    update = only(joint(method)(batch))
    assert update.network == "energy"
    ((predicted, attacked, truth),) = (candidates.unbind(1) for candidates in seen)
    assert torch.equal(truth, batch.y)
    torch.testing.assert_close(predicted, method.predict(batch.x))
    assert (energy_of(energy, batch.x, predicted) < energy_of(energy, batch.x, truth)).any()
    # The adversary starts at Gaussian logits and only ever makes the regression worse.
    torch.manual_seed(5)
    torch.randn(ROWS, 1, LABELS, dtype=torch.float64)  # prediction's own, unused, noise
    start = sigmoid(torch.randn(ROWS, 1, LABELS, dtype=torch.float64))[:, 0]
    worse = (bce_of(energy, batch, attacked) - bce_of(energy, batch, start)).detach()
    assert (worse >= -1e-12).all()
    assert worse.max() > 1e-3
    expected = sum(bce_of(energy, batch, y) for y in (predicted, attacked, truth)) / 3
    assert_same_gradients(update.loss, expected.mean(), energy)


def test_spens_inference_starts_at_a_net_that_is_trained_with_cross_entropy(task_net, energy, batch):
    still = GradientInference(steps=0, start="net")
    method = SPEN(energy, SPACE, inference=still, start_net=task_net)
    first, local, last = method.stages()
    assert (first.networks, local.networks, last.networks) == (("start_net",), ("energy",), ("energy",))
    update = only(first.updates(batch))
    assert update.network == "start_net"
    assert_same_gradients(update.loss, ce_of(logits_of(task_net, batch.x), batch.y).mean(), task_net)
    start = sigmoid(logits_of(task_net, batch.x)).detach()
    torch.testing.assert_close(first.predict(batch.x, None), start)
    torch.testing.assert_close(method.predict(batch.x), start)  # no step away from it
    update = only(last.updates(batch))
    assert_same_gradients(update.loss, hinge_of(energy, batch, start).mean(), energy)
    assert torch.autograd.grad(update.loss, list(task_net.parameters()), allow_unused=True)[0] is None


@pytest.mark.parametrize("name", ["nce", "ranking"])
def test_nce_energy_contrasts_the_noise_nets_samples_with_the_truth(task_net, energy, batch, name):
    loss = ENERGY_LOSSES[name]
    first, second = NCEEnergy(energy, task_net, SPACE, loss, NET_START).stages()
    assert (first.networks, second.networks) == (("noise_net",), ("energy",))
    update = only(first.updates(batch))
    assert update.network == "noise_net"
    logits = logits_of(task_net, batch.x)
    assert_same_gradients(update.loss, ce_of(logits, batch.y).mean(), task_net)
    torch.testing.assert_close(first.predict(batch.x, None), sigmoid(logits))
    torch.manual_seed(7)
    samples = loss.propose(Prediction(SPACE, logits.detach()))
    torch.manual_seed(7)
    update = only(second.updates(batch))
    assert update.network == "energy"
    assert_same_gradients(update.loss, by_hand(name, energy, batch, samples, logits).mean(), energy)


def test_seal_static_adds_a_task_stage_to_its_teachers(task_net, energy, batch):
    teacher = DVN(energy, SPACE, inference=NET_START)
    weights = TaskLoss(energy_weight=2.0, ce_weight=0.5)
    first, second = SEALStatic(task_net, teacher, SPACE, weights, task_steps=2).stages()
    assert (first.networks, second.networks) == (("energy",), ("task_net",))
    assert [update.network for update in first.updates(batch)] == ["energy"]
    updates = list(second.updates(batch))
    assert [update.network for update in updates] == ["task_net"] * 2
    logits = logits_of(task_net, batch.x)
    expected = 2 * taught_of("regression", energy, batch.x, sigmoid(logits)) + 0.5 * ce_of(logits, batch.y)
    assert_same_gradients(updates[0].loss, expected.mean(), task_net)


@pytest.mark.parametrize("kind", [SPEN, NCEEnergy])
def test_seal_static_with_other_teachers_descends_the_energy(task_net, energy, batch, kind):
    parts = (energy, task_net, SPACE) if kind is NCEEnergy else (energy, SPACE)
    method = SEALStatic(task_net, kind(*parts), SPACE, TaskLoss(energy_weight=2.0, ce_weight=0.5))
    update = only(method.stages()[-1].updates(batch))
    logits = logits_of(task_net, batch.x)
    expected = 2 * energy_of(energy, batch.x, sigmoid(logits)) + 0.5 * ce_of(logits, batch.y)
    assert_same_gradients(update.loss, expected.mean(), task_net)


def test_infnet_plus_with_nested_steps_is_the_authors_margin(task_net, energy, batch):
    """The networks' steps first; a Manhattan cost; F is W [A(x); y] + b (`Stacked`)."""
    cost_net = Stacked(SPACE).double()
    task_loss = TaskLoss(energy_weight=0.6, ce_weight=0.3)
    loss = Margin(Manhattan())
    method = InfNetPlus(task_net, cost_net, energy, SPACE, loss, task_loss, task_steps=2, energy_steps=2)
    updates = joint(method)(batch)
    both = nn.ModuleList([task_net, cost_net])
    for _ in range(2):
        for _ in range(2):
            logits = logits_of(task_net, batch.x)
            seen = torch.cat([sigmoid(logits).detach(), batch.y], 1)
            augmented = seen @ cost_net.change.weight.T + cost_net.change.bias
            low = energy_of(energy, batch.x, batch.y).detach()
            of_a, of_f = (energy_of(energy, batch.x, sigmoid(z)) for z in (logits, augmented))
            distance = (sigmoid(augmented) - batch.y).abs().sum(1)
            game = distance - of_f + low + low - of_a
            expected = 0.3 * (ce_of(logits, batch.y) + ce_of(augmented, batch.y)) - 0.6 * game
            first, second = next(updates), next(updates)
            assert (first.network, second.network) == ("task_net", "cost_net")
            torch.testing.assert_close(
                (*first.gradients, *second.gradients), gradients(expected.mean(), both)
            )
            with torch.no_grad():
                for net, update in ((task_net, first), (cost_net, second)):
                    for parameter, gradient in zip(net.parameters(), update.gradients, strict=True):
                        parameter -= 0.1 * gradient
        logits = logits_of(task_net, batch.x).detach()
        augmented = torch.cat([sigmoid(logits), batch.y], 1) @ cost_net.change.weight.T + cost_net.change.bias
        f, a = sigmoid(augmented).detach(), sigmoid(logits)
        low = energy_of(energy, batch.x, batch.y)
        margin = (f - batch.y).abs().sum(1) - energy_of(energy, batch.x, f) + low
        perceptron = low - energy_of(energy, batch.x, a)
        update = next(updates)
        assert update.network == "energy"
        assert_same_gradients(update.loss, (torch.relu(margin) + torch.relu(perceptron)).mean(), energy)
        descend(update, energy, rate=0.01)
    assert next(updates, None) is None


@pytest.mark.parametrize("kind", [SPEN, DVN])
def test_energy_methods_work_in_double_precision_from_zeros(energy, batch, kind):
    method = kind(energy, SPACE, inference=GradientInference(steps=2))
    assert method.predict(batch.x).dtype == torch.float64
    assert torch.isfinite(only(method.stages()[-1].updates(batch)).loss)
