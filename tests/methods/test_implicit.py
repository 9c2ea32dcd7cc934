"""The implicit term: against dense derivatives, and against what the task net really does."""

import json
import signal
from collections.abc import Sized
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev

import lossnet
from lossnet.build import build
from lossnet.energies import Energy, LabelInteraction, Local, Sum
from lossnet.hypergradient import Exact, Identity, Neumann, RankOne
from lossnet.loading import load as load_data
from lossnet.losses import CD, NCE, EnergyLoss, Margin, Ranking, Regression, TaskLoss
from lossnet.methods import SEAL, Implicit
from lossnet.nets import MLP
from lossnet.ops import Bernoulli
from lossnet.scores import F1, Accuracy, Hamming, IoU
from lossnet.settings import Settings
from lossnet.spaces import Batch, Mask, MultiLabel, Prediction, Tags
from lossnet.task import Task
from lossnet.training import Interrupted, Trainer

INPUTS, LABELS, ROWS = 3, 3, 5
SPACE = MultiLabel(LABELS)
TASK_LOSS = TaskLoss(energy_weight=0.9, ce_weight=1.1, score_weight=0.7)
LOSSES = {
    "margin": Margin(),
    "regression": Regression(),
    "regression-energy": Regression(term="energy"),
    "cd": CD(4),
    "nce": NCE(4, F1()),
    "ranking": Ranking(4),
}
THROUGH = ("cost", "prediction", "everything")
MEASURED = {"explicit_norm", "implicit_norm", "cosine", "curvature", "residual"}
every_loss = pytest.mark.parametrize("name", LOSSES)
every_through = pytest.mark.parametrize("through", THROUGH)


@pytest.fixture
def task_net():
    torch.manual_seed(2)
    return MLP(INPUTS, 3, 1, LABELS).double()


@pytest.fixture
def energy():
    torch.manual_seed(1)
    return Sum(MLP(INPUTS, 3, 1), Local(3, LABELS), LabelInteraction(LABELS, 2)).double()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64)
    y = (torch.rand(ROWS, LABELS, generator=generator) < 0.5).double()
    y[:, 0] = 1
    return Batch(x, y)


def implicit_update(task_net, energy, batch, name="margin", seed=7, **options):
    plain = {"task_loss": TASK_LOSS, "score": F1(), "solver": Exact(), "weight": 1.0, "max_norm_ratio": None}
    method = Implicit(task_net, energy, SPACE, LOSSES[name], **plain | options)
    torch.manual_seed(seed)
    return next(method.energy_updates(batch))


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def energy_gradient(update, energy):
    """What the trainer would descend."""
    if update.gradients is not None:
        return flat(update.gradients)
    return flat(torch.autograd.grad(update.loss, list(energy.parameters())))


# ---------------------------------------------------------------- the formulas, written out again


def named(module, vector):
    """A module's parameters, read from one vector."""
    parameters = dict(module.named_parameters())
    parts = vector.split([parameter.numel() for parameter in parameters.values()])
    return {
        name: part.view(parameter.shape)
        for (name, parameter), part in zip(parameters.items(), parts, strict=True)
    }


def logits_of(net, theta, x):
    return functional_call(net, named(net, theta), (x,))


def energy_of(energy, phi, x, y):
    """One output per row."""
    return functional_call(energy, named(energy, phi), (x, y.unsqueeze(1))).squeeze(1)


def f1_cost_of(y, truth):
    return 1 - 2 * (y * truth).sum(1) / (y.sum(1) + truth.sum(1))


def log_prob_of(logits, y):
    p = torch.sigmoid(logits)
    return (y * torch.log(p) + (1 - y) * torch.log(1 - p)).sum(1)  # linear in y, as for one-hot ones


def primary_of(name, score_energy, batch, candidates, logits):
    """The energy loss, ``()``, of candidates ``(batch, K, labels)``; logits are those of ``P``."""
    energies = [score_energy(y) for y in (batch.y, *candidates.unbind(1))]
    costs = [f1_cost_of(y, batch.y) for y in candidates.unbind(1)]
    if name == "margin":
        return torch.relu(costs[0] - energies[1] + energies[0]).mean()
    if name.startswith("regression"):
        value = 1 / (1 + torch.exp(energies[1]))
        return -((1 - costs[0]) * torch.log(value) + costs[0] * torch.log(1 - value)).mean()
    exponents = [-one for one in energies]
    if name in ("cd", "nce"):
        exponents[1:] = [one + cost for one, cost in zip(exponents[1:], costs, strict=True)]
    if name == "nce":
        outputs = (batch.y, *candidates.unbind(1))
        exponents = [one - log_prob_of(logits, y) for one, y in zip(exponents, outputs, strict=True)]
    total = sum(torch.exp(one) for one in exponents)
    return -(exponents[0] - torch.log(total)).mean()


class Dense:
    """Both losses as functions of two vectors, and the hypergradient from dense second derivatives."""

    def __init__(self, name, through, task_net, energy, batch, seed=7):
        self.name, self.through, self.batch = name, through, batch
        self.task_net, self.energy = task_net, energy
        self.theta, self.phi = flat(task_net.parameters()), flat(energy.parameters())
        self.now = logits_of(task_net, self.theta, batch.x)
        torch.manual_seed(seed)
        self.samples = Bernoulli(torch.sigmoid(self.now))(4)

    def inner(self, theta, phi):
        logits = logits_of(self.task_net, theta, self.batch.x)
        relaxed, truth = torch.sigmoid(logits), self.batch.y
        terms = 0.9 * energy_of(self.energy, phi, self.batch.x, relaxed)
        if self.name == "regression":
            terms = -0.9 / (1 + torch.exp(terms / 0.9))
        terms = terms - 1.1 * log_prob_of(logits, truth) + 0.7 * f1_cost_of(relaxed, truth)
        return terms.mean()

    def outer(self, theta, phi):
        logits = logits_of(self.task_net, theta, self.batch.x)
        relaxed = torch.sigmoid(self.now if self.through == "cost" else logits)
        candidates = relaxed.unsqueeze(1)
        if self.name in ("cd", "nce", "ranking"):  # straight through
            candidates = self.samples + (relaxed - torch.sigmoid(self.now)).unsqueeze(1)
        density = logits if self.through == "everything" else self.now
        loss = primary_of(
            self.name,
            lambda y: energy_of(self.energy, phi, self.batch.x, y),
            self.batch,
            candidates,
            density,
        )
        extra = f1_cost_of(torch.sigmoid(logits), self.batch.y).mean() if self.through == "cost" else 0.0
        return loss + extra

    def explicit(self):
        return grad(self.outer, 1)(self.theta, self.phi)

    def implicit(self):
        second = hessian(self.inner)(self.theta, self.phi)
        mixed = jacrev(grad(self.inner), 1)(self.theta, self.phi)
        primary = grad(self.outer)(self.theta, self.phi)
        return -(mixed.T @ torch.linalg.solve(second, primary))


@pytest.mark.parametrize("weight", [1.0, -0.4])
@every_through
@every_loss
def test_the_gradient_is_the_explicit_and_the_implicit_term(task_net, energy, batch, name, through, weight):
    update = implicit_update(task_net, energy, batch, name, gradient_path=through, weight=weight)
    dense = Dense(name, through, task_net, energy, batch)
    explicit, implicit = dense.explicit(), weight * dense.implicit()
    assert update.network == "energy"
    assert explicit.norm() > 1e-3
    assert implicit.norm() > 1e-3
    close = {"rtol": 1e-7, "atol": 1e-9}
    torch.testing.assert_close(flat(update.gradients), explicit + implicit, **close)
    measured = update.measured
    torch.testing.assert_close(measured["explicit_norm"], explicit.norm(), **close)
    torch.testing.assert_close(measured["implicit_norm"], implicit.norm(), **close)
    cosine = torch.dot(explicit, implicit) / (explicit.norm() * implicit.norm())
    torch.testing.assert_close(measured["cosine"], cosine, **close)
    assert measured["residual"] < 1e-6  # solved exactly
    largest = torch.linalg.eigvalsh(hessian(dense.inner)(dense.theta, dense.phi)).abs().max()
    torch.testing.assert_close(measured["curvature"], largest)


def test_gradients_are_in_the_order_of_the_energys_parameters(task_net, energy, batch):
    update = implicit_update(task_net, energy, batch, "nce")
    assert [part.shape for part in update.gradients] == [part.shape for part in energy.parameters()]


def test_the_hinge_was_active_for_some_instances_only(task_net, energy, batch):
    """Else the dense check of the margin loss would miss its truncation."""
    relaxed = torch.sigmoid(task_net(batch.x))
    gaps = energy(batch.x, torch.stack([relaxed, batch.y], 1))
    violation = f1_cost_of(relaxed, batch.y) - gaps[:, 0] + gaps[:, 1]
    assert violation.min() < -0.01
    assert violation.max() > 0.01


@every_through
def test_a_task_net_that_is_deaf_to_the_energy_gives_no_implicit_term(task_net, energy, batch, through):
    task_loss = TaskLoss(energy_weight=0.0, score_weight=1.0)
    update = implicit_update(task_net, energy, batch, "cd", gradient_path=through, task_loss=task_loss)
    assert update.measured["implicit_norm"] == 0
    explicit = Dense("cd", through, task_net, energy, batch).explicit()
    torch.testing.assert_close(flat(update.gradients), explicit)


# ---------------------------------------------------------------- weight and value


@every_through
@every_loss
def test_a_weight_of_zero_is_seal(task_net, energy, batch, name, through):
    seal = SEAL(task_net, energy, SPACE, LOSSES[name], TASK_LOSS)
    torch.manual_seed(7)
    expected = next(seal.updates(batch))
    update = implicit_update(task_net, energy, batch, name, gradient_path=through, weight=0.0)
    assert torch.equal(energy_gradient(update, energy), energy_gradient(expected, energy))
    assert update.measured == {}  # nothing was solved


@every_loss
def test_the_value_of_the_loss_is_seals_whatever_the_weight(task_net, energy, batch, name):
    seal = SEAL(task_net, energy, SPACE, LOSSES[name], TASK_LOSS)
    torch.manual_seed(7)
    expected = next(seal.updates(batch)).loss
    for through in THROUGH:
        for weight in (0.0, 0.4, 1000.0):
            options = {"gradient_path": through, "weight": weight, "solver": RankOne()}
            update = implicit_update(task_net, energy, batch, name, **options)
            torch.testing.assert_close(update.loss, expected, rtol=1e-12, atol=1e-14)


@every_through
def test_the_task_nets_steps_are_seals(task_net, energy, batch, through):
    seal = SEAL(task_net, energy, SPACE, Margin(), TASK_LOSS, task_steps=2, schedule="grouped")
    method = Implicit(task_net, energy, SPACE, Margin(), TASK_LOSS, task_steps=2, gradient_path=through)
    assert method.stages()[0].networks == ("energy", "task_net")
    steps, expected = list(method.updates(batch)), list(seal.updates(batch))
    assert [update.network for update in steps] == ["task_net", "task_net", "energy"]  # Algorithm 1
    for update, other in zip(steps[:2], expected[1:], strict=True):
        assert torch.equal(update.loss, other.loss)
        assert update.gradients is None
        assert update.measured == {}


# ---------------------------------------------------------------- where the task net enters


def logit_gradient(energy, batch, logits, through, loss, seed=7, **options):
    """The primary loss's gradient in the logits."""
    options = {"weight": 1.0, **options}
    method = Implicit(nn.Linear(1, 1), energy, SPACE, loss, gradient_path=through, **options)
    logits = logits.detach().requires_grad_()
    torch.manual_seed(seed)
    value = method.primary_loss(energy.at(batch.x), batch.y, Prediction(SPACE, logits))
    (found,) = torch.autograd.grad(value, logits, allow_unused=True, materialize_grads=True)
    return found


class Blind(EnergyLoss):
    """An energy loss that candidates do not change, nor a prediction."""

    def propose(self, prediction):
        return prediction.relaxed.unsqueeze(1)

    def __call__(self, energy, truth, candidates, prediction):
        return energy(truth.unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("score", [F1(), Hamming()], ids=["f1", "hamming"])
def test_the_cost_is_a_term_of_its_own_for_cost_only(task_net, energy, batch, score):
    logits = task_net(batch.x).detach().requires_grad_()
    p = torch.sigmoid(logits)
    cost = f1_cost_of(p, batch.y) if isinstance(score, F1) else (p - batch.y).abs().mean(1)
    (expected,) = torch.autograd.grad(cost.mean(), logits)
    assert expected.abs().min() > 1e-4
    found = logit_gradient(energy, batch, logits, "cost", Blind(), score=score)
    torch.testing.assert_close(found, expected)
    for through in ("prediction", "everything"):
        found = logit_gradient(energy, batch, logits, through, Blind(), score=score)
        assert torch.equal(found, torch.zeros_like(found))


@every_loss
def test_cost_leaves_nothing_of_the_energy_loss(task_net, energy, batch, name):
    logits = task_net(batch.x)
    found = logit_gradient(energy, batch, logits, "cost", LOSSES[name])
    torch.testing.assert_close(found, logit_gradient(energy, batch, logits, "cost", Blind()))


@pytest.mark.parametrize("name", ["cd", "nce", "ranking"])
def test_samples_have_the_predictions_gradient(task_net, energy, batch, name):
    """Straight through: each sample moves as the relaxed prediction does."""
    logits = task_net(batch.x).detach()
    torch.manual_seed(7)
    samples = Prediction(SPACE, logits).sample(4).requires_grad_()
    value = primary_of(name, lambda y: energy(batch.x, y[:, None])[:, 0], batch, samples, logits)
    (slopes,) = torch.autograd.grad(value, samples)
    p = torch.sigmoid(logits)
    expected = p * (1 - p) * slopes.sum(1)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(logit_gradient(energy, batch, logits, "prediction", LOSSES[name]), expected)


def test_log_p_counts_for_everything_with_nce(task_net, energy, batch):
    logits = task_net(batch.x).detach()
    torch.manual_seed(7)
    samples = Prediction(SPACE, logits).sample(4)
    outputs = torch.cat([batch.y[:, None], samples], 1)
    costs = torch.stack([f1_cost_of(y, batch.y) for y in outputs.unbind(1)], 1)
    log_p = torch.stack([log_prob_of(logits, y) for y in outputs.unbind(1)], 1)
    share = (costs - energy(batch.x, outputs).detach() - log_p).softmax(1)  # the truth's cost is 0
    share[:, 0] -= 1
    # ∂/∂l of −log P(y) is σ(l) − y.
    through_p = (share[..., None] * (torch.sigmoid(logits)[:, None] - outputs)).sum(1) / ROWS
    assert through_p.abs().max() > 1e-3
    everything = logit_gradient(energy, batch, logits, "everything", LOSSES["nce"])
    prediction = logit_gradient(energy, batch, logits, "prediction", LOSSES["nce"])
    torch.testing.assert_close(everything - prediction, through_p)


@pytest.mark.parametrize("name", ["margin", "regression", "cd", "ranking"])
def test_without_log_p_everything_is_the_prediction(task_net, energy, batch, name):
    logits = task_net(batch.x)
    everything = logit_gradient(energy, batch, logits, "everything", LOSSES[name])
    prediction = logit_gradient(energy, batch, logits, "prediction", LOSSES[name])
    assert torch.equal(everything, prediction)
    assert everything.abs().max() > 1e-3


@every_through
@every_loss
def test_the_weight_stretches_the_gradient_in_the_logits(task_net, energy, batch, name, through):
    logits = task_net(batch.x)
    once = logit_gradient(energy, batch, logits, through, LOSSES[name])
    assert once.abs().max() > 1e-3
    for weight in (0.0, 2.5, -1.0):
        found = logit_gradient(energy, batch, logits, through, LOSSES[name], weight=weight)
        torch.testing.assert_close(found, weight * once)


# ---------------------------------------------------------------- the cap, and which steps


@pytest.mark.parametrize("ratio", [0.0, 0.5, 2.0, 1e9])
@every_through
def test_the_implicit_term_is_capped(task_net, energy, batch, through, ratio):
    free = implicit_update(task_net, energy, batch, "nce", gradient_path=through, weight=10.0)
    explicit = Dense("nce", through, task_net, energy, batch).explicit()
    implicit = flat(free.gradients) - explicit
    found = implicit_update(
        task_net, energy, batch, "nce", gradient_path=through, weight=10.0, max_norm_ratio=ratio
    )
    capped = flat(found.gradients) - explicit
    limit = ratio * explicit.norm()
    assert capped.norm() <= limit * (1 + 1e-9) + 1e-12
    expected = implicit * min(1.0, limit / implicit.norm())
    torch.testing.assert_close(capped, expected, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.measured["implicit_norm"], implicit.norm())  # before the cap
    assert "capped" not in free.measured
    assert found.measured["capped"] == float(implicit.norm() > limit)


def test_the_cap_was_reached_in_these_tests(task_net, energy, batch):
    for through in THROUGH:
        measured = implicit_update(
            task_net, energy, batch, "nce", gradient_path=through, weight=10.0
        ).measured
        assert 0.5 < measured["implicit_norm"] / measured["explicit_norm"] < 1e9


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [(1, 1, "i"), (3, 1, "iii"), (4, 2, "eiei"), (4, 3, "eeie"), (4, 4, "eeei"), (5, 2, "eieie")],
)
def test_the_implicit_term_is_part_of_every_so_many_th_step(
    task_net, energy, batch, steps, every, expected, monkeypatch
):
    monkeypatch.setattr("lossnet.ops.candidates.OF_EACH", 1)  # each step draws when its turn comes
    method = Implicit(task_net, energy, SPACE, CD(4), energy_steps=steps, task_steps=2, every=every)
    seal = SEAL(task_net, energy, SPACE, CD(4), energy_steps=steps)
    torch.manual_seed(7)
    updates = list(method.energy_updates(batch))
    torch.manual_seed(7)
    plain = list(seal.energy_updates(batch))
    assert len(updates) == steps
    kinds = ["i" if set(update.measured) == MEASURED | {"capped"} else "e" for update in updates]
    assert "".join(kinds) == expected
    for kind, update, other in zip(kinds, updates, plain, strict=False):
        torch.testing.assert_close(update.loss, other.loss, rtol=1e-12, atol=0)  # it draws the same samples
        assert (update.gradients is None) == (kind == "e")
        same = torch.allclose(energy_gradient(update, energy), energy_gradient(other, energy), rtol=1e-9)
        assert same == (kind == "e")


def test_later_steps_see_the_stepped_energy(task_net, energy, batch):
    method = Implicit(
        task_net, energy, SPACE, Margin(), TASK_LOSS, 2, solver=Exact(), weight=1.0, max_norm_ratio=None
    )
    updates = method.energy_updates(batch)
    first = next(updates)
    with torch.no_grad():
        for parameter, gradient in zip(energy.parameters(), first.gradients, strict=True):
            parameter -= 0.01 * gradient
    dense = Dense("margin", "cost", task_net, energy, batch)
    expected = dense.explicit() + dense.implicit()
    torch.testing.assert_close(flat(next(updates).gradients), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be from 1 to energy_steps=3, not 0"),
        ({"every": 4}, "every must be from 1 to energy_steps=3, not 4"),
        ({"every": -1}, "every must be from 1 to energy_steps=3, not -1"),
        (
            {"gradient_path": "samples"},
            "gradient_path must be one of cost, prediction, everything, not 'samples'",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(task_net, energy, options, message):
    with pytest.raises(ValueError, match=message):
        Implicit(task_net, energy, SPACE, energy_steps=3, **options)


def test_nothing_is_left_in_grad(task_net, energy, batch):
    implicit_update(task_net, energy, batch, "nce", gradient_path="everything", solver=Neumann(3))
    assert all(p.grad is None for p in (*task_net.parameters(), *energy.parameters()))


# ---------------------------------------------------------------- the solver and its state


def test_a_solver_is_no_state(task_net, energy, batch):
    method = Implicit(task_net, energy, SPACE, Margin(), solver=Neumann(2))
    networks = {f"task_net.{name}" for name in task_net.state_dict()}
    assert set(method.state_dict()) == networks | {f"energy.{name}" for name in energy.state_dict()}
    one, two = (next(method.energy_updates(batch)) for _ in range(2))
    assert torch.equal(flat(one.gradients), flat(two.gradients))


@every_through
def test_the_step_is_that_of_this_batch(task_net, energy, batch, through):
    """``α b`` with the curvature of three products with the dense Hessian from ``b``."""
    update = implicit_update(task_net, energy, batch, gradient_path=through, solver=Identity())
    dense = Dense("margin", through, task_net, energy, batch)
    second, vector = hessian(dense.inner)(dense.theta, dense.phi), grad(dense.outer)(dense.theta, dense.phi)
    power = vector
    for _ in range(2):
        power = second @ power / (second @ power).norm()
    largest = (second @ power).norm()
    torch.testing.assert_close(update.measured["curvature"], largest)
    left = (vector - second @ vector / largest).norm() / vector.norm()
    assert left <= 1  # else the step would be shorter
    torch.testing.assert_close(update.measured["residual"], left)
    mixed = jacrev(grad(dense.inner), 1)(dense.theta, dense.phi)
    expected = dense.explicit() - mixed.T @ vector / largest
    torch.testing.assert_close(flat(update.gradients), expected, rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------- training

SMALL = Settings(
    task_hidden=6,
    energy_hidden=6,
    global_hidden=3,
    samples=4,
    energy_steps=2,
    task_dropout=0.3,
    energy_dropout=0.3,
    solver="neumann",
    solver_terms=2,
    implicit_every=1,
)


class Stopping(Sized):
    """A data set that presses Ctrl-C when it is asked for its n-th batch."""

    def __init__(self, data, at):
        self.data, self.left = data, at

    def __len__(self):
        return len(self.data)

    def batch(self, indices):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)
        return self.data.batch(indices)


def made(seed=0, loss="nce", **changes):
    torch.manual_seed(seed)
    return build("implicit", loss, replace(SMALL, **changes), Task.of_sizes(6, 4))


def trainer(method, **options):
    options = {"max_epochs": 3, "batch_size": 16, "lr": 0.02, "progress": False, "seed": 3, **options}
    return Trainer(method, **options)


def timeless(history):
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in history]


@pytest.mark.parametrize(
    ("loss", "through", "at"),
    # within the first epoch, at its end, and within the second
    [("nce", "everything", 2), ("margin", "cost", 3), ("nce", "cost", 5)],
)
def test_a_resumed_run_is_the_uninterrupted_one(make_data, tmp_path, loss, through, at):
    train, valid = make_data(40), make_data(24, seed=1)
    changes = {"loss": loss, "implicit_through": through}
    whole = made(**changes)
    history = trainer(whole).fit(train, valid)
    checkpoint = tmp_path / "checkpoint.safetensors"
    with pytest.raises(Interrupted):
        trainer(made(**changes), checkpoint=checkpoint).fit(Stopping(train, at), valid)
    resumed = made(seed=99, **changes)
    again = trainer(resumed, checkpoint=checkpoint).fit(train, valid, resume=True)
    assert timeless(again) == timeless(history)
    assert set(history[0]["measured"]["energy"]) == MEASURED | {"capped", "terms"}
    assert whole.state_dict().keys() == resumed.state_dict().keys()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_a_run_tells_what_it_measured(tmp_path):
    data = load_data("digits-pairs")
    data = replace(
        data,
        train=data.train.take(range(200)),
        valid=data.valid.take(range(50)),
        test=data.test.take(range(50)),
    )
    settings = replace(SMALL, epochs=1, batch_size=50, solver="identity", implicit_every=0)
    run = lossnet.Run("digits-pairs", "implicit", settings=settings, output=tmp_path, device="cpu")
    result = lossnet.train(replace(run, progress=False), data)
    written = json.loads((tmp_path / "result.json").read_text())
    (entry,) = map(json.loads, (tmp_path / "history.jsonl").read_text().splitlines())
    assert written["measured"] == entry["measured"] == result["measured"]
    assert set(written["measured"]) == {"energy"}
    measured = written["measured"]["energy"]
    assert set(measured) == MEASURED | {"capped"}
    assert all(measured[name] > 0 for name in MEASURED - {"cosine"})
    assert 0 <= measured["capped"] <= 1
    assert measured["residual"] <= 2
    assert -1 <= measured["cosine"] <= 1
    assert written["steps"] == 4 * 3
    model = lossnet.load(tmp_path)  # which has no energy
    probabilities, _ = model.probabilities(data.test)
    assert probabilities.shape == (50, data.test.labels)


# ---------------------------------------------------------------- other spaces


class Chain(Energy):
    """Units alone given the input, and neighbours along the first axis of the event together."""

    def __init__(self, unit: nn.Module, last: int) -> None:
        super().__init__()
        self.unit = unit
        self.together = nn.Parameter(torch.linspace(-0.5, 0.4, last))

    def encode(self, x: Tensor) -> Tensor:
        return self.unit(x)

    def evaluate(self, encoded: Tensor, y: Tensor) -> Tensor:
        alone = -(y * encoded.unsqueeze(1)).flatten(2).sum(-1)
        return alone - (y[:, :, 1:] * y[:, :, :-1] * self.together).flatten(2).sum(-1)


class Pixelwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(0.6)), nn.Parameter(torch.tensor(-0.2))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.shift


def problem(kind):
    """Space, score, networks, and a batch with padding: the last units of some instances."""
    torch.manual_seed(4)
    x = torch.randn(6, 4, 3, dtype=torch.float64)
    mask = (torch.arange(4) < torch.tensor([4, 3, 2, 4, 1, 3]).unsqueeze(1)).double()
    if kind == "tags":
        y = nn.functional.one_hot(x.argmax(-1), 3).double() * mask.unsqueeze(-1)
        parts = Tags(3), Accuracy(), nn.Linear(3, 3).double(), Chain(nn.Linear(3, 3), 3).double()
        return *parts, Batch(x, y, mask)
    mask = mask.unsqueeze(-1).expand_as(x)
    parts = Mask(), IoU(), Pixelwise().double(), Chain(Pixelwise(), 3).double()
    return *parts, Batch(x, (x > 0.2) * mask, mask)


IN_EVERY_SPACE = {
    "margin": lambda score: Margin(score),
    "regression": lambda score: Regression(score),
    "cd": lambda score: CD(4, score),
    "nce": lambda score: NCE(4, score),
}


def update_in(kind, name, through, batch=None, solver=None):
    space, score, net, energy, own = problem(kind)
    method = Implicit(
        net,
        energy,
        space,
        IN_EVERY_SPACE[name](score),
        TaskLoss(energy_weight=0.5, score_weight=0.5, score=score),
        score=score,
        gradient_path=through,
        solver=solver or Neumann(4),
        weight=1.0,
        max_norm_ratio=None,
    )
    torch.manual_seed(7)
    return next(method.energy_updates(own if batch is None else batch))


@every_through
@pytest.mark.parametrize("name", IN_EVERY_SPACE)
@pytest.mark.parametrize("kind", ["tags", "mask"])
def test_padding_changes_nothing_in_any_space(kind, name, through):
    batch = problem(kind)[-1]
    real = batch.mask.bool() if kind == "mask" else batch.mask.bool().unsqueeze(-1)
    other = torch.where(real, batch.x, 50 * torch.rand_like(batch.x))
    assert not torch.equal(other, batch.x)
    one, two = update_in(kind, name, through), update_in(kind, name, through, batch._replace(x=other))
    torch.testing.assert_close(one.loss, two.loss)
    torch.testing.assert_close(one.gradients, two.gradients, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(dict(one.measured), dict(two.measured), rtol=1e-9, atol=1e-11)
    assert one.measured["explicit_norm"] > 1e-3
    assert one.measured["implicit_norm"] > 1e-3


@pytest.mark.parametrize("through", ["cost", "prediction"])
@pytest.mark.parametrize("kind", ["tags", "mask"])
def test_the_gradient_is_right_in_any_space(kind, through):
    """Regression, with the padding written out as products with the mask."""
    _, _, net, energy, batch = problem(kind)
    update = update_in(kind, "regression", through, solver=Exact())
    theta, phi = flat(net.parameters()), flat(energy.parameters())
    mask = batch.mask if kind == "mask" else batch.mask.unsqueeze(-1)

    def relaxed(at):
        logits = logits_of(net, at, batch.x)
        return mask * (torch.sigmoid(logits) if kind == "mask" else logits.softmax(-1))

    def log_prob(at):
        logits = logits_of(net, at, batch.x)
        if kind == "tags":
            return (batch.y * logits.log_softmax(-1)).flatten(1).sum(1)
        terms = batch.y * logits.sigmoid().log() + (1 - batch.y) * (-logits).sigmoid().log()
        return (mask * terms).flatten(1).sum(1)

    def cost(y):
        overlap = (y * batch.y).flatten(1).sum(1)
        total = batch.y.flatten(1).sum(1)
        if kind == "mask":
            total = total + y.flatten(1).sum(1) - overlap
        return 1 - overlap / total

    def inner(at, phi):
        y = relaxed(at)
        score = torch.sigmoid(-energy_of(energy, phi, batch.x, y))
        return (-0.5 * score - log_prob(at) + 0.5 * cost(y)).mean()

    def outer(at, phi):
        y = relaxed(theta if through == "cost" else at)
        value = torch.sigmoid(-energy_of(energy, phi, batch.x, y))
        loss = -((1 - cost(y)) * value.log() + cost(y) * (1 - value).log()).mean()
        return loss + (cost(relaxed(at)).mean() if through == "cost" else 0.0)

    second, mixed = hessian(inner)(theta, phi), jacrev(grad(inner), 1)(theta, phi)
    # Logits of tags may be shifted together: the Hessian is singular along that, and the right side 0.
    solved = torch.linalg.pinv(second, hermitian=True, rtol=1e-10) @ grad(outer)(theta, phi)
    expected = grad(outer, 1)(theta, phi) - mixed.T @ solved
    torch.testing.assert_close(flat(update.gradients), expected, rtol=1e-7, atol=1e-9)


# ---------------------------------------------------------------- the right way


class Bias(Energy):
    """``φ y``: all it can do is to move the bias of the task net's only label."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def encode(self, x: Tensor) -> Tensor:
        return x

    def evaluate(self, encoded: Tensor, y: Tensor) -> Tensor:
        return self.slope * y.sum(-1)


class Zero(EnergyLoss):
    """No energy loss at all: the explicit term vanishes."""

    def propose(self, prediction):
        return prediction.relaxed.unsqueeze(1)

    def __call__(self, energy, truth, candidates, prediction):
        return torch.zeros(len(truth), dtype=truth.dtype)


class OneLabel:
    """Logistic regression on labels that no line separates, and its cost once the energy has had its say."""

    def __init__(self, score):
        torch.manual_seed(0)
        x = torch.randn(40, 2, dtype=torch.float64)
        y = (torch.rand(40) < torch.sigmoid(x[:, 0] - 0.8 + 0.5 * x[:, 1])).double().unsqueeze(1)
        self.batch, self.score = Batch(x, y), score
        self.net, self.energy = nn.Linear(2, 1).double(), Bias()
        options = {"score": score, "solver": Exact(), "weight": 1.0, "max_norm_ratio": None}
        self.method = Implicit(self.net, self.energy, MultiLabel(1), Zero(), TaskLoss(), **options)

    def solve(self):
        """The task net's optimum for the energy as it is, by Newton's method."""
        x, y = self.batch.x, self.batch.y[:, 0]
        slope = self.energy.slope.detach()

        def inner(theta):
            logits = x @ theta[:2] + theta[2]
            nll = nn.functional.softplus(logits) - y * logits
            return (nll + slope * torch.sigmoid(logits)).mean()

        theta = torch.zeros(3, dtype=torch.float64)
        for _ in range(7):
            theta = theta - torch.linalg.solve(hessian(inner)(theta), grad(inner)(theta))
        assert grad(inner)(theta).norm() < 1e-12
        assert torch.linalg.eigvalsh(hessian(inner)(theta)).min() > 0  # a minimum
        with torch.no_grad():
            self.net.weight.copy_(theta[None, :2])
            self.net.bias.copy_(theta[2])

    def cost(self, slope=None):
        """The cost of the inner optimum."""
        if slope is not None:
            self.energy.slope.data.fill_(slope)
        self.solve()
        p, y = torch.sigmoid(self.net(self.batch.x)).detach(), self.batch.y
        if isinstance(self.score, Hamming):
            return (p - y).abs().mean().item()
        return torch.where(y > 0, 1 - 2 * p / (p + 1), 1.0).mean().item()  # F1 is 0 where there is no label

    def gradient(self):
        (gradient,) = next(self.method.energy_updates(self.batch)).gradients
        return gradient.item()


@pytest.mark.parametrize("score", [F1(), Hamming()], ids=["f1", "hamming"])
@pytest.mark.parametrize("slope", [-0.6, 0.0, 0.5])
def test_the_implicit_term_is_the_slope_of_the_solved_tasks_cost(score, slope):
    problem = OneLabel(score)
    problem.cost(slope)
    found = problem.gradient()
    h = 1e-4
    expected = (problem.cost(slope + h) - problem.cost(slope - h)) / (2 * h)
    assert abs(expected) > 1e-3
    assert found == pytest.approx(expected, rel=1e-6)


def test_descending_the_implicit_term_lowers_the_cost_of_the_solved_task():
    problem = OneLabel(F1())
    costs = [problem.cost()]
    for _ in range(6):
        problem.energy.slope.data -= 2.0 * problem.gradient()
        costs.append(problem.cost())
    assert all(later < earlier for earlier, later in pairwise(costs))
    assert costs[-1] < costs[0] - 0.05
    assert problem.energy.slope < 0  # an empty set never scores, so the label is made more likely


@every_through
def test_forbidden_tags_do_no_harm(through):
    """A logit of −∞ forbids a tag (see `Tags.log_prob`), for SEAL too."""
    space, score, net, energy, batch = problem("tags")

    class Forbidding(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x).masked_fill(torch.tensor([False, False, True]), -torch.inf)

    method = Implicit(Forbidding(), energy, space, CD(4, score), score=score, gradient_path=through)
    update = next(method.energy_updates(batch))
    assert update.loss.isfinite()
    assert all(part.isfinite().all() for part in update.gradients)
