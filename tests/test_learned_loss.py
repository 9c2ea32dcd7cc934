import copy
import multiprocessing
from typing import NamedTuple

import pytest
import torch
from torch import distributed, nn

import lossnet
from lossnet.data.examples import Weighted
from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.losses import NCE, Margin, RegressionS, TaskLoss
from lossnet.methods import SEAL
from lossnet.nets import MLP
from lossnet.spaces import Batch, MultiLabel
from lossnet.training import Trainer
from lossnet.training.engines import Eager
from lossnet.training.engines.descent import descend

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


def test_the_lines_of_the_documentation_train_both_networks(energy, model, batch):
    criterion = lossnet.LearnedLoss(energy, space=SPACE, loss=lossnet.losses.NCE(samples=20), lr=1e-2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y, *_ = batch
    before = [parameter.clone() for parameter in energy.parameters()]

    def right():
        return ((model(x) > 0) == (y > 0)).float().mean().item()

    start = right()
    torch.manual_seed(0)
    for _ in range(60):
        loss = criterion(x, model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert right() > max(0.85, start + 0.2)
    for parameter, old in zip(energy.parameters(), before, strict=True):
        assert not torch.equal(parameter, old)


def test_the_energy_learns_on_a_fixed_prediction(energy, model, batch):
    x, y, *_ = batch
    criterion = lossnet.LearnedLoss(energy, SPACE, NCE(20), lr=1e-2, steps=3)
    assert criterion.energy_loss is None
    torch.manual_seed(0)
    values = []
    for _ in range(15):
        assert not criterion(x, model(x).detach(), y).requires_grad
        values.append(criterion.energy_loss)
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


@pytest.mark.parametrize("own", [NCE(5), RegressionS(samples=3)])
@pytest.mark.parametrize(
    "task_loss", [TaskLoss(), TaskLoss(energy_weight=3.0, ce_weight=0.2, score_weight=5.0)]
)
def test_its_gradient_is_that_of_seals_task_step(energy, model, batch, task_loss, own):
    criterion = lossnet.LearnedLoss(energy, SPACE, own, task_loss).eval()
    loss = criterion(batch.x, model(batch.x), batch.y)
    (update,) = SEAL(model, energy, SPACE, own, task_loss).task_updates(batch)
    parameters = list(model.parameters())
    torch.testing.assert_close(loss, update.loss)
    torch.testing.assert_close(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(update.loss, parameters)
    )


def test_a_call_warns_of_nothing(energy, model, batch):
    criterion = lossnet.LearnedLoss(energy, SPACE)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else only a process's first warning would be seen
    try:
        criterion(batch.x, model(batch.x), batch.y).backward()
    finally:
        torch.set_warn_always(before)


def test_a_call_does_not_touch_the_model(energy, model, batch):
    criterion = lossnet.LearnedLoss(energy, SPACE)
    criterion(batch.x, model(batch.x), batch.y)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_evaluation_leaves_the_criterion_as_it_is(energy, model, batch):
    before = copy.deepcopy(energy)
    criterion = lossnet.LearnedLoss(energy, SPACE)
    with torch.no_grad():
        value = criterion(batch.x, model(batch.x), batch.y)
    assert not value.requires_grad
    loss = criterion.eval()(batch.x, model(batch.x), batch.y)
    torch.testing.assert_close(loss, value.requires_grad_())
    loss.backward()
    assert_equal(energy, before)
    assert criterion.energy_loss is None
    assert criterion.optimizer.state_dict()["state"] == {}
    criterion.train()(batch.x, model(batch.x), batch.y)
    assert any(not torch.equal(*pair) for pair in zip(energy.parameters(), before.parameters(), strict=True))


# ---------------------------------------------------------------- the steps of SEAL


class Recorder(Eager):
    """Keeps the batches of a training, its random numbers before them, and both networks after each."""

    def step(self, batch, number):
        self.log = getattr(self, "log", [])
        random, method = torch.get_rng_state(), self.jobs[0].method
        readings = super().step(batch, number)
        self.log.append((batch, random, copy.deepcopy(method.energy), copy.deepcopy(method.task_net)))
        return readings


@pytest.mark.parametrize("loss", [NCE(5), Margin(), RegressionS(samples=3)])
@pytest.mark.parametrize("clip", [10.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_its_steps_are_those_of_seal_bit_for_bit(model, make_data, loss, clip, weighted):
    """Of a training by `Trainer`, with dropout in the energy."""
    torch.manual_seed(1)
    energy = Sum(MLP(6, 8, 1, dropout=0.3), Local(8, 4), LabelInteraction(4, 5))
    task_loss, rates = TaskLoss(energy_weight=2.0, score_weight=3.0), {"lr": 0.01, "weight_decay": 0.1}
    criterion = lossnet.LearnedLoss(
        copy.deepcopy(energy), SPACE, loss, task_loss, steps=2, clip=clip, **rates
    )
    own = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(own.parameters(), fused=True, **rates)

    recorder = Recorder(torch.device("cpu"))
    data = make_data(48)
    if weighted:
        data = Weighted(data, torch.linspace(0.5, 1.5, 48))
    options = {"max_epochs": 2, "batch_size": 16, "seed": 7, "progress": False, "engine": recorder}
    method = SEAL(model, energy, SPACE, loss, task_loss, energy_steps=2, schedule="grouped")
    Trainer(method, clip=clip, **rates, **options).fit(data, make_data(16, seed=1))

    assert len(recorder.log) == 6
    torch.set_rng_state(recorder.log[0][1])
    for (x, y, mask, weight, *_), random, energy_after, model_after in recorder.log:
        assert (weight is not None) == weighted
        assert torch.equal(torch.get_rng_state(), random)
        value = criterion(x, own(x), y, mask, weight)
        descend(optimizer, torch.autograd.grad(value, list(own.parameters())), clip)
        assert_equal(criterion.energy, energy_after)
        assert_equal(own, model_after)


def assert_equal(one, other):
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def assert_close(one, other):
    torch.testing.assert_close(dict(one.named_parameters()), dict(other.named_parameters()))


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_each_micro_batch_trains_the_energy_and_every_loss_keeps_its_gradient(
    energy, model, batch, steps, together
):
    """Whether ``backward()`` comes after each call or after all of them."""
    parts = [slice(0, 10), slice(10, 40), slice(40, 64)]
    criterion = lossnet.LearnedLoss(copy.deepcopy(energy), SPACE, Margin(), lr=0.01, steps=steps)
    losses = []
    for part in parts:
        loss = criterion(batch.x[part], model(batch.x[part]), batch.y[part]) / 3
        losses.append(loss)
        if not together:
            loss.backward()
    if together:
        sum(losses).backward()

    optimizer = torch.optim.AdamW(energy.parameters(), lr=0.01, weight_decay=1e-5)
    method = SEAL(copy.deepcopy(model), energy, SPACE, Margin(), energy_steps=steps)
    for part, loss in zip(parts, losses, strict=True):
        for update in method.updates(Batch(batch.x[part], batch.y[part])):
            if update.network == "energy":
                optimizer.zero_grad()
                update.loss.backward(inputs=list(energy.parameters()))
                nn.utils.clip_grad_norm_(energy.parameters(), 10.0)
                optimizer.step()
            else:
                torch.testing.assert_close(loss, update.loss / 3)
                (update.loss / 3).backward(inputs=list(method.task_net.parameters()))
    assert_close(criterion.energy, energy)
    for mine, theirs in zip(model.parameters(), method.task_net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("steps", [1, 3])
def test_deferred_micro_batches_are_one_batch_to_the_energy(energy, model, batch, steps):
    parts = [slice(0, 10), slice(10, 40), slice(40, 64)]
    weight = torch.linspace(0.5, 1.5, 64)
    options = {"lr": 0.01, "steps": steps, "clip": 0.1}
    whole = lossnet.LearnedLoss(copy.deepcopy(energy), SPACE, Margin(), **options)
    parted = lossnet.LearnedLoss(copy.deepcopy(energy), SPACE, Margin(), deferred=True, **options)
    for _ in range(2):
        whole(batch.x, model(batch.x), batch.y, weight=weight)
        for part in parts:
            parted(batch.x[part], model(batch.x[part]), batch.y[part], weight=weight[part])
        parted.step()
    torch.testing.assert_close(parted.energy_loss, whole.energy_loss)
    assert_close(parted.energy, whole.energy)
    before = copy.deepcopy(parted.energy)
    parted.step()  # nothing waits
    assert_equal(parted.energy, before)


def test_a_deferred_call_gives_the_loss_and_leaves_the_energy(energy, model, batch):
    before = copy.deepcopy(energy)
    criterion = lossnet.LearnedLoss(energy, SPACE, deferred=True)
    loss = criterion(batch.x, model(batch.x), batch.y)
    assert_equal(energy, before)
    assert torch.equal(loss, lossnet.LearnedLoss(before, SPACE).eval()(batch.x, model(batch.x), batch.y))
    criterion.forget()
    criterion.step()
    assert_equal(energy, before)
    with torch.no_grad():
        criterion(batch.x, model(batch.x), batch.y)
    criterion.step()
    assert_equal(energy, before)
    assert criterion.energy_loss is None


def test_weights_count_in_both_losses(energy, model, batch):
    """Instances of weight 2 count as two, those of weight 0 as none."""
    weight = torch.tensor([2.0, 0.0]).repeat(32)
    one, other = (copy.deepcopy(energy) for _ in range(2))
    weighted, chosen = lossnet.LearnedLoss(one, SPACE, Margin()), lossnet.LearnedLoss(other, SPACE, Margin())
    losses = (
        weighted(batch.x, model(batch.x), batch.y, weight=weight),
        chosen(batch.x[::2], model(batch.x[::2]), batch.y[::2]),
    )
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(weighted.energy_loss, chosen.energy_loss)
    assert_close(one, other)
    with pytest.raises(ValueError, match=r"shape \(64, 1\); give one of \(64,\)"):
        weighted(batch.x, model(batch.x), batch.y, weight=weight[:, None])


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor | None


class OfTrees(nn.Module):
    """Reads the two halves of an input from any tree of them."""

    def __init__(self, body, path):
        super().__init__()
        self.body, self.path = body, path

    def forward(self, tree):
        return self.body(torch.cat(self.path(tree), 1))


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda a, b: (a, b), lambda tree: tree),
        (lambda a, b: [a, [b]], lambda tree: (tree[0], tree[1][0])),
        (lambda a, b: {"a": a, "b": {"c": b}, "name": "x"}, lambda tree: (tree["a"], tree["b"]["c"])),
        (lambda a, b: (Pair(a, None), Pair(b, None)), lambda tree: (tree[0].first, tree[1].first)),
    ],
    ids=["tuple", "list", "dict", "named"],
)
def test_inputs_may_be_any_tree_of_tensors(energy, model, batch, make, path):
    plain, of_trees = energy, copy.deepcopy(energy)
    of_trees.encoder = OfTrees(of_trees.encoder, path)
    x = (batch.x[:, :2].clone().requires_grad_(), batch.x[:, 2:].clone().requires_grad_())
    values = []
    for one, inputs in ((plain, torch.cat(x, 1)), (of_trees, make(*x))):
        criterion = lossnet.LearnedLoss(one, SPACE, Margin())
        loss = criterion(inputs, model(batch.x), batch.y)
        loss.backward()
        values.append((loss.item(), criterion.energy_loss))
    assert values[0] == values[1]
    assert torch.equal(plain.terms[0].weights.weight, of_trees.terms[0].weights.weight)
    assert all(part.grad is None for part in x)


# ---------------------------------------------------------------- the optimizer


def test_the_optimizer_may_be_the_callers(energy, model, batch):
    one, other = (copy.deepcopy(energy) for _ in range(2))
    made = lossnet.LearnedLoss(one, SPACE, Margin(), optimizer=lambda given: torch.optim.SGD(given, lr=0.1))
    instance = torch.optim.SGD(other.parameters(), lr=0.1)
    given = lossnet.LearnedLoss(other, SPACE, Margin(), optimizer=instance)
    before = copy.deepcopy(energy)
    for criterion in (made, given):
        criterion(batch.x, model(batch.x), batch.y)
    assert given.optimizer is instance
    assert isinstance(made.optimizer, torch.optim.SGD)
    assert_equal(one, other)
    loss = next(SEAL(model, before, SPACE, Margin()).updates(batch)).loss
    for name, gradient in zip(
        dict(before.named_parameters()), torch.autograd.grad(loss, list(before.parameters())), strict=True
    ):
        expected = before.get_parameter(name) - 0.1 * gradient
        torch.testing.assert_close(one.get_parameter(name), expected)


def test_an_optimizer_of_something_else_is_refused(energy, model):
    with pytest.raises(ValueError, match="parameters that are not the energy's"):
        lossnet.LearnedLoss(energy, SPACE, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="give them to your own"):
        lossnet.LearnedLoss(energy, SPACE, lr=0.1, optimizer=torch.optim.SGD(energy.parameters(), lr=0.1))


def test_only_the_optimizers_parameters_are_trained_and_the_callers_gradients_stay(energy, model, batch):
    chosen = energy.terms[0].weights.weight
    before = copy.deepcopy(energy)
    criterion = lossnet.LearnedLoss(energy, SPACE, optimizer=torch.optim.SGD([chosen], lr=0.1))
    callers = torch.ones_like(chosen)
    chosen.grad = callers
    criterion(batch.x, model(batch.x), batch.y)
    changed = [
        name
        for name, value in energy.state_dict().items()
        if not torch.equal(value, before.state_dict()[name])
    ]
    assert changed == ["terms.0.weights.weight"]
    assert chosen.grad is callers
    assert all(parameter.grad is None for parameter in energy.parameters() if parameter is not chosen)
    assert torch.equal(callers, torch.ones_like(chosen))


def test_an_energy_that_cannot_be_trained_is_a_fixed_loss(energy, model, batch):
    energy.requires_grad_(False)
    criterion = lossnet.LearnedLoss(energy, SPACE)
    criterion(batch.x, model(batch.x), batch.y).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert criterion.energy_loss is None


def test_a_resumed_criterion_equals_one_that_went_on(energy, model, batch, tmp_path):
    def make():
        made = lossnet.LearnedLoss(copy.deepcopy(energy), SPACE, NCE(5), lr=0.01)
        return made, torch.optim.lr_scheduler.ExponentialLR(made.optimizer, 0.5)

    def train(criterion, schedule, seed):
        torch.manual_seed(seed)
        for _ in range(3):
            criterion(batch.x, model(batch.x), batch.y).backward()
        schedule.step()

    whole, schedule = make()
    train(whole, schedule, 0)
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    train(whole, schedule, 1)
    resumed, schedule = make()
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert resumed.optimizer.param_groups[0]["lr"] == 0.005
    train(resumed, schedule, 1)
    assert_equal(resumed.energy, whole.energy)
    for one, other in zip(
        resumed.optimizer.state_dict()["state"].values(),
        whole.optimizer.state_dict()["state"].values(),
        strict=True,
    ):
        assert all(torch.equal(one[key], other[key]) for key in other)


# ---------------------------------------------------------------- precision


def test_a_bfloat16_model_trains_against_a_float32_energy(energy, batch):
    model = nn.Linear(6, 4).to(torch.bfloat16)
    x = batch.x.to(torch.bfloat16)
    criterion = lossnet.LearnedLoss(energy, SPACE, NCE(5))
    loss = criterion(x, model(x), batch.y.to(torch.bfloat16))
    loss.backward()
    criterion.eval()
    assert loss.dtype == torch.float32
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.bfloat16}
    logits = model(x).detach().float()
    torch.testing.assert_close(loss.detach(), criterion(x.float(), logits, batch.y))
    assert criterion.energy_loss > 0
    assert {parameter.dtype for parameter in energy.parameters()} == {torch.float32}


@pytest.mark.parametrize("loss", [NCE(5), Margin(), RegressionS(samples=3)])
def test_autocast_does_not_reach_the_energy(energy, model, batch, loss):
    one, other = (copy.deepcopy(energy) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(batch.x)
    assert logits.dtype == torch.bfloat16
    values = []
    for each, enabled in ((one, True), (other, False)):
        criterion = lossnet.LearnedLoss(each, SPACE, loss)
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            value = criterion(batch.x, logits, batch.y)
            value.backward(retain_graph=True)
            values.append((value.item(), criterion.energy_loss))
    assert values[0] == values[1]
    assert_equal(one, other)


# ---------------------------------------------------------------- several processes


def in_two_processes(function, folder):
    """Call ``function(rank)`` in two processes of a group; what each leaves goes to ``folder``."""

    def work(rank):
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
        # The group ends with its process: right after a sum, torch 2.6 may wait for ever in destroying it.
        torch.save(function(rank), folder / f"{rank}.pt")

    processes = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


several = pytest.mark.skipif(torch.cuda.is_available(), reason="forks, which CUDA does not survive")


@several
@pytest.mark.parametrize("deferred", [False, True])
def test_two_processes_train_the_energy_as_one_does(energy, model, batch, tmp_path, deferred):
    """Each call is a step, or the three of them are one."""

    def train(parts):
        options = {"lr": 0.01, "steps": 2, "deferred": deferred}
        criterion = lossnet.LearnedLoss(copy.deepcopy(energy), SPACE, Margin(), **options)
        values = []
        for place, part in enumerate(parts):
            criterion(batch.x[part], model(batch.x[part]), batch.y[part]).backward()
            if deferred and place == 2:
                criterion.step()
            values.append(criterion.energy_loss)
        return values, criterion.energy.state_dict()

    shares = [[slice(0, 10), slice(0, 30), slice(0, 32)], [slice(10, 64), slice(30, 64), slice(32, 64)]]
    found = in_two_processes(lambda rank: train(shares[rank]), tmp_path)
    values, weights = train([slice(0, 64)] * 3)
    for own_values, own_weights in found:
        torch.testing.assert_close(own_values, values)
        torch.testing.assert_close(own_weights, weights)
    assert all(torch.equal(found[0][1][name], found[1][1][name]) for name in weights)


@several
def test_energies_that_differ_between_processes_are_refused(energy, model, batch, tmp_path):
    def train(rank):
        with torch.no_grad():
            energy.terms[0].weights.weight.add_(rank)
        with pytest.raises(RuntimeError, match="differ between processes; build it from the same seed"):
            lossnet.LearnedLoss(energy, SPACE)(batch.x, model(batch.x), batch.y)

    in_two_processes(train, tmp_path)


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
    assert criterion.energy_loss > 0
