"""Methods under the trainer: what moves, what stays frozen, and the grids of what goes together."""

import copy
from collections.abc import Sized

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lossnet.build import METHODS, build
from lossnet.energies import Energy, LabelInteraction, Local, Sum
from lossnet.inference import GradientInference
from lossnet.losses import CD, NCE, Margin, Ranking, Regression, RegressionS, TaskLoss
from lossnet.methods import DVN, SEAL, CrossEntropy, InfNet, NCEEnergy
from lossnet.nets import MLP
from lossnet.scores import Accuracy, IoU, metrics
from lossnet.settings import Settings
from lossnet.spaces import Batch, Mask, MultiLabel, Tags
from lossnet.task import Task
from lossnet.training import Trainer
from lossnet.training.engines import Eager

SMALL = Settings(
    task_hidden=8,
    energy_hidden=8,
    global_hidden=4,
    samples=4,
    inference_steps=4,
    task_dropout=0.2,
    energy_dropout=0.2,
)
GRID = [
    (method, loss)
    for method, spec in METHODS.items()
    for loss in spec.losses
    if spec.suits(loss, MultiLabel(4))
]


def trainer(method, **options):
    return Trainer(method, **{"max_epochs": 1, "progress": False, "batch_size": 16, **options})


def weights(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def identical(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("method", "loss"), GRID, ids=["-".join(names) for names in GRID])
def test_every_method_and_loss_trains_and_predicts_probabilities(make_data, method, loss):
    train, valid = make_data(40), make_data(20, seed=1)
    torch.manual_seed(0)
    built = build(method, loss, SMALL, Task.of_sizes(6, 4))
    before = {name: weights(net) for name, net in built.named_children()}
    history = trainer(built).fit(train, valid)
    assert [entry["stage"] for entry in history] == [stage.name for stage in built.stages()]
    for name, net in built.named_children():
        assert not identical(before[name], weights(net)), f"{name} was never trained"
    probabilities = built.predict(valid.batch(torch.arange(20)).x)
    assert probabilities.shape == (20, 4)
    assert torch.isfinite(probabilities).all()
    assert (probabilities >= 0).all()
    assert (probabilities <= 1).all()


def test_the_grid_is_the_designs():
    energy = {"nce", "margin", "regression", "regression-s", "ranking"}
    assert energy <= set(METHODS["seal"].losses)
    assert {"margin", "regression", "nce"} <= set(METHODS["seal-static"].losses)
    assert {"spen", "dvn", "nce-energy", "infnet", "cross-entropy"} <= set(METHODS)
    assert {"soft-f1", "asymmetric"} <= set(METHODS["cross-entropy"].losses)


class Spy(Eager):
    """Keeps copies of the weights before each stage."""

    def begin(self, jobs, numbers, train):
        super().begin(jobs, numbers, train)
        self.log = [*getattr(self, "log", []), weights(jobs[0].method)]


def parts(snapshot, network):
    return {name: part for name, part in snapshot.items() if name.startswith(network + ".")}


@pytest.mark.parametrize(
    ("method", "loss", "frozen", "trained"),
    [
        ("nce-energy", "nce", "noise_net", "energy"),
        ("seal-static", "nce", "energy", "task_net"),
        ("seal-static", "margin", "energy", "task_net"),
        ("seal-static", "regression", "energy", "task_net"),
        ("infnet", "margin", "energy", "task_net"),
    ],
)
def test_the_last_stage_leaves_the_other_network_bitwise_alone(make_data, method, loss, frozen, trained):
    built = build(method, loss, SMALL, Task.of_sizes(6, 4))
    spy = Spy(torch.device("cpu"))
    trainer(built, max_epochs=2, engine=spy).fit(make_data(40), make_data(20, seed=1))
    first, last, end = spy.log[0], spy.log[-1], weights(built)
    assert not identical(parts(first, frozen), parts(last, frozen)), "it is trained before"
    assert identical(parts(last, frozen), parts(end, frozen)), "and frozen then"
    assert not identical(parts(last, trained), parts(end, trained))


def test_frozen_networks_have_no_dropout_and_trained_ones_do(make_data):
    built = build("nce-energy", "nce", SMALL, Task.of_sizes(6, 4))
    modes = []

    def watch(method, batch, original):
        modes.append((method.noise_net.training, method.energy.training))
        yield from original(batch)

    for name in ("pretraining", "updates"):
        original = getattr(built, name)
        setattr(built, name, lambda batch, original=original: watch(built, batch, original))
    trainer(built, batch_size=40).fit(make_data(40), make_data(20, seed=1))
    assert modes == [(True, False), (False, True)]


def test_seal_learns(make_data):
    """Not a smoke test: far better than the same network untrained."""
    train, valid = make_data(200), make_data(60, seed=1)
    torch.manual_seed(0)
    settings = Settings(task_hidden=16, energy_hidden=16, global_hidden=8, task_dropout=0.0)
    built = build("seal", "nce", settings, Task.of_sizes(6, 4))
    history = trainer(built, max_epochs=12, lr=1e-2).fit(train, valid)
    assert max(entry["f1"] for entry in history) > 0.9


def two_modes(rows):
    """Inputs that say nothing, and 101010 or 010101, as likely as each other."""
    return Batch(torch.randn(rows, 4), (torch.arange(6) % 2 == torch.randint(2, (rows, 1))).float())


@pytest.mark.parametrize(("energy_weight", "exact", "f1"), [(3.0, 0.5, 0.5), (0.0, 0.0, 2 / 3)])
def test_an_energy_chooses_one_of_two_modes(energy_weight, exact, f1):
    """No term for single labels can tell them apart: without the energy soft-F1 predicts all labels."""
    torch.manual_seed(0)
    task_net, space = MLP(4, 16, 1, 6), MultiLabel(6)
    energy = Sum(MLP(4, 16, 1), Local(16, 6), LabelInteraction(6, 16))
    method = SEAL(task_net, energy, space, NCE(20), TaskLoss(energy_weight, 1.0, score_weight=10.0))
    optimizers = {name: torch.optim.Adam(net.parameters(), lr=1e-2) for name, net in method.named_children()}
    for _ in range(300):
        for update in method.updates(two_modes(64)):
            optimizers[update.network].zero_grad()
            update.loss.backward()
            optimizers[update.network].step()
    batch = two_modes(1000)
    with torch.no_grad():
        found = metrics(space, method.predict(batch.x), batch.y)
    assert found["exact_match"] == pytest.approx(exact, abs=0.05)
    assert found["f1"] == pytest.approx(f1, abs=0.05)


# ---------------------------------------------------------------- other spaces


class ToyEnergy(Energy):
    """Units alone given the input, and neighbours along the first axis of the event together."""

    def __init__(self, unit: nn.Module, last: int) -> None:
        super().__init__()
        self.unit = unit
        self.together = nn.Parameter(torch.full((last,), 0.1))

    def encode(self, x: Tensor) -> Tensor:
        return self.unit(x)

    def evaluate(self, encoded: Tensor, y: Tensor) -> Tensor:
        alone = -(y * encoded.unsqueeze(1)).flatten(2).sum(-1)
        return alone - (y[:, :, 1:] * y[:, :, :-1] * self.together).flatten(2).sum(-1)

    def unary_logits(self, x: Tensor) -> Tensor:
        return self.unit(x)


class Pixelwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))
        self.shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.shift


class Rows(Sized):
    """A data set of ready-made tensors."""

    def __init__(self, x, y, mask=None):
        self.x, self.y, self.mask = x, y, mask

    def __len__(self):
        return len(self.x)

    def batch(self, indices):
        mask = None if self.mask is None else self.mask[indices]
        return Batch(self.x[indices], self.y[indices], mask)


def tagging(rows, seed):
    """The tag of a token is its largest input; sequences of 2 to 5 tokens."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 5, 3, generator=generator)
    lengths = torch.randint(2, 6, (rows, 1), generator=generator)
    mask = (torch.arange(5) < lengths).float()
    y = nn.functional.one_hot(x.argmax(-1), 3).float() * mask.unsqueeze(-1)
    return Rows(x, y, mask)


def segmentation(rows, seed):
    """A pixel belongs to the object where the image is bright."""
    x = torch.randn(rows, 4, 3, generator=torch.Generator().manual_seed(seed))
    return Rows(x, (x > 0.2).float())


def problem(kind):
    torch.manual_seed(4)
    if kind == "tags":
        space, score, make = Tags(3), Accuracy(), tagging
        nets = [nn.Linear(3, 3), nn.Linear(3, 3)]
    else:
        space, score, make = Mask(), IoU(), segmentation
        nets = [Pixelwise(), Pixelwise()]
    return space, score, nets[0], ToyEnergy(nets[1], 3), make(64, 0), make(32, 1)


LOSSES = {
    "margin": lambda score: Margin(score),
    "regression": lambda score: Regression(score),
    "regression-s": lambda score: RegressionS(score, samples=3),
    "nce": lambda score: NCE(4),
    "ranking": lambda score: Ranking(4),
    "cd": lambda score: CD(4, score),
}


def assert_outputs(kind, method, data):
    batch = data.batch(torch.arange(len(data)))
    with torch.no_grad():
        relaxed = method.predict(batch.x, batch.mask)
    assert relaxed.shape == batch.y.shape
    assert relaxed.min() >= 0
    assert relaxed.max() <= 1
    if kind == "tags":
        torch.testing.assert_close(relaxed.sum(-1), batch.mask)  # a distribution, or padding


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["tags", "mask"])
def test_seal_works_in_every_space_with_every_loss(kind, loss):
    space, score, net, energy, train, valid = problem(kind)
    task_loss = TaskLoss(energy_weight=0.5, ce_weight=1.0, score_weight=0.5, score=score)
    method = SEAL(net, energy, space, LOSSES[loss](score), task_loss)
    before = copy.deepcopy(method.state_dict())
    fitted = trainer(method, lr=0.1, max_epochs=5)
    history = fitted.fit(train, valid)
    metric = "accuracy" if kind == "tags" else "iou"
    assert fitted.monitor == metric
    assert max(entry[metric] for entry in history) > 0.85
    for name, tensor in method.state_dict().items():
        assert not torch.equal(tensor, before[name]), f"{name} was never trained"
    assert_outputs(kind, method, valid)


@pytest.mark.parametrize("name", ["cross-entropy", "infnet", "dvn", "nce-energy"])
@pytest.mark.parametrize("kind", ["tags", "mask"])
def test_other_methods_work_in_every_space(kind, name):
    space, score, net, energy, train, valid = problem(kind)
    inference = GradientInference(steps=10, lr=1.0)
    made = {
        "cross-entropy": lambda: CrossEntropy(net, space, TaskLoss(score_weight=1.0, score=score)),
        "infnet": lambda: InfNet(net, energy, space, Margin(score)),
        "dvn": lambda: DVN(energy, space, Regression(score), inference),
        "nce-energy": lambda: NCEEnergy(energy, net, space, NCE(4), inference),
    }
    method = made[name]()
    history = trainer(method, lr=0.1, max_epochs=4).fit(train, valid)
    metric = "accuracy" if kind == "tags" else "iou"
    assert all(np.isfinite(entry[metric]) for entry in history)
    assert max(entry[metric] for entry in history) > 0.6
    assert_outputs(kind, method, valid)


@pytest.mark.parametrize("loss", ["margin", "nce", "regression"])
def test_padding_changes_no_gradient(loss):
    """The same sentences with three more padded tokens give the same updates."""
    space, score, net, energy, train, _ = problem("tags")
    batch = train.batch(torch.arange(8))
    wider = Batch(
        *(nn.functional.pad(part, (0, 0, 0, 3)) for part in batch[:2]),
        nn.functional.pad(batch.mask, (0, 3)),
    )
    made = LOSSES[loss](score)
    if loss == "nce":  # samples of two widths differ: give both the truth's neighbours

        class Fixed(NCE):
            def propose(self, prediction):
                length = prediction.logits.shape[1]
                shifted = batch.y.roll(1, -1)
                return nn.functional.pad(shifted, (0, 0, 0, length - 5)).unsqueeze(1)

        made = Fixed(1)
    method = SEAL(net, energy, space, made, TaskLoss(score_weight=1.0, score=score))
    for narrow, wide in zip(method.updates(batch), method.updates(wider), strict=True):
        network = list(method.get_submodule(narrow.network).parameters())
        torch.testing.assert_close(
            torch.autograd.grad(narrow.loss, network),
            torch.autograd.grad(wide.loss, network),
            rtol=1e-5,
            atol=1e-6,
        )
