"""Optimizers, schedulers, callbacks and inputs of one's own."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from lossnet.build import build
from lossnet.data import Weighted
from lossnet.methods import CrossEntropy
from lossnet.nets import MLP
from lossnet.settings import Settings
from lossnet.spaces import Batch, MultiLabel
from lossnet.task import Task
from lossnet.training import (
    Checkpoint,
    CheckpointError,
    Trainer,
    fit_together,
    predict,
    stacking_blocker,
)

SMALL = Settings(task_hidden=8, energy_hidden=8, global_hidden=4, samples=4, task_dropout=0.3)


def trainer(start=0, names=("seal", "nce"), **options):
    torch.manual_seed(start)
    method = build(*names, SMALL, Task.of_sizes(6, 4))
    return Trainer(method, **{"max_epochs": 4, "batch_size": 16, "progress": False, "lr": 0.02, **options})


def assert_same(one, other):
    for name, tensor in one.method.state_dict().items():
        assert torch.equal(tensor, other.method.state_dict()[name]), name


class PowerCutError(Exception):
    pass


class Failing:
    """Data whose n-th batch is the last."""

    def __init__(self, data, at):
        self.data, self.left = data, at

    def __len__(self):
        return len(self.data)

    def batch(self, indices):
        self.left -= 1
        if self.left == 0:
            raise PowerCutError
        return self.data.batch(indices)


# ---------------------------------------------------------------- optimizers


def grouped(parameters, lr):
    """Weights and biases apart, biases first."""
    biases = [one for one in parameters if one.dim() == 1]
    weights = [one for one in parameters if one.dim() > 1]
    groups = [{"params": biases, "weight_decay": 0.0}, {"params": weights, "weight_decay": 0.1}]
    return torch.optim.AdamW(groups, lr=lr)


OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
    "RMSprop": torch.optim.RMSprop,
    "Adagrad": torch.optim.Adagrad,
    "groups": grouped,
}
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


@every_optimizer
def test_another_optimizer_takes_the_steps_of_a_plain_loop(optimizer, train, valid):
    torch.manual_seed(0)
    net = MLP(6, 8, 1, 4)
    plain = MLP(6, 8, 1, 4)
    plain.load_state_dict(net.state_dict())
    options = {"lr": 0.01, "clip": 0.5, "batch_size": 16, "progress": False}
    trainer = Trainer(CrossEntropy(net, MultiLabel(4)), optimizer=optimizer, **options)
    theirs = optimizer(list(plain.parameters()), lr=0.01)
    for rows in trainer.state.order(len(train)).split(16):
        batch = train.batch(rows)
        loss = nn.functional.binary_cross_entropy_with_logits(plain(batch.x), batch.y, reduction="none")
        theirs.zero_grad()
        loss.sum(-1).mean().backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        theirs.step()
    trainer.pass_over(train)
    torch.testing.assert_close(list(net.parameters()), list(plain.parameters()), rtol=1e-4, atol=1e-5)


@every_optimizer
def test_another_optimizer_is_resumed_bit_for_bit(optimizer, train, valid, tmp_path):
    whole = trainer(optimizer=optimizer)
    history = whole.fit(train, valid)
    path = tmp_path / "checkpoint"
    with pytest.raises(PowerCutError):
        trainer(optimizer=optimizer, checkpoint=path, checkpoint_every=0).fit(Failing(train, 8), valid)
    resumed = trainer(7, optimizer=optimizer, checkpoint=path)
    again = resumed.fit(train, valid, resume=True)
    assert [entry["valid"] for entry in again] == [entry["valid"] for entry in history]
    assert_same(whole, resumed)


def test_resuming_with_another_optimizer_is_refused(train, valid, tmp_path):
    path = tmp_path / "checkpoint"
    trainer(checkpoint=path, checkpoint_every=0, max_epochs=1).fit(train, valid)
    with pytest.raises(CheckpointError, match="optimizer/energy was AdamW, is SGD"):
        trainer(checkpoint=path, optimizer=torch.optim.SGD).fit(train, valid, resume=True)


@every_optimizer
def test_replicas_may_have_another_optimizer(optimizer, train, valid):
    lone, together = ([trainer(seed, optimizer=optimizer, seed=seed) for seed in (0, 1)] for _ in range(2))
    assert stacking_blocker(together) is None
    histories = [one.fit(train, valid) for one in lone]
    outcomes = dict(fit_together(together, train, valid, progress=False))
    for index, history in enumerate(histories):
        assert [entry["losses"] for entry in outcomes[index]] == [
            pytest.approx(entry["losses"], rel=1e-3) for entry in history
        ]


def test_a_frozen_network_stays_and_the_others_learn(train, valid):
    frozen = trainer(max_epochs=1)
    frozen.method.energy.requires_grad_(False)
    before = {name: part.clone() for name, part in frozen.method.state_dict().items()}
    (entry,) = frozen.fit(train, valid)
    assert list(entry["losses"]) == ["task_net"]
    after = frozen.method.state_dict()
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"task_net"}
    frozen.method.requires_grad_(False)
    with pytest.raises(ValueError, match="stage 'joint': all parameters of its networks are frozen"):
        frozen.fit(train, valid)


# ---------------------------------------------------------------- schedulers

SCHEDULERS = {
    "step": partial(lr_scheduler.StepLR, step_size=1, gamma=0.5),
    "milestones": partial(lr_scheduler.MultiStepLR, milestones=[1, 3]),
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=4),
    "lambda": partial(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 0.9**epoch),
    "one cycle": partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=9),
    "plateau": partial(lr_scheduler.ReduceLROnPlateau, mode="max", patience=0, factor=0.1, threshold=9),
    "two": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ConstantLR(optimizer, 0.1), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        milestones=[2],
    ),
}
every_scheduler = pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)


def test_a_scheduler_steps_once_an_epoch(train, valid):
    history = trainer(scheduler=SCHEDULERS["step"]).fit(train, valid)
    assert [entry["lr"]["energy"] for entry in history] == [0.02, 0.01, 0.005, 0.0025]


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # SequentialLR's own, torch 2.6
@every_scheduler
def test_a_scheduler_is_resumed_bit_for_bit(scheduler, train, valid, tmp_path):
    whole = trainer(scheduler=scheduler)
    history = whole.fit(train, valid)
    assert len({entry["lr"]["energy"] for entry in history}) > 1, "a useful test changes the rate"
    path = tmp_path / "checkpoint"
    with pytest.raises(PowerCutError):
        trainer(scheduler=scheduler, checkpoint=path, checkpoint_every=0).fit(Failing(train, 8), valid)
    resumed = trainer(7, scheduler=scheduler, checkpoint=path)
    again = resumed.fit(train, valid, resume=True)
    assert [entry["lr"] for entry in again] == [entry["lr"] for entry in history]
    assert_same(whole, resumed)


# ---------------------------------------------------------------- callbacks


class Counting:
    """Stops after so many epochs, over all fits that are resumed."""

    def __init__(self, at):
        self.at, self.seen = at, torch.zeros(())

    def __call__(self, entry):
        self.seen += 1
        return np.bool_(self.seen == self.at)

    def state_dict(self):
        return {"seen": self.seen.clone()}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_callbacks_see_each_entry_and_may_stop(train, valid):
    seen = []
    history = trainer(callbacks=[Counting(2), seen.append, lambda entry: "words"]).fit(train, valid)
    assert len(history) == 2
    assert seen == history


def test_a_callback_ends_a_stage_and_not_those_after_it(train, valid):
    history = trainer(names=("seal-static", "nce"), callbacks=[lambda entry: True]).fit(train, valid)
    assert [entry["stage"] for entry in history] == ["noise net", "energy", "task net"]


def test_a_callback_goes_on_from_its_state(train, valid, tmp_path):
    path = tmp_path / "checkpoint"
    options = {"checkpoint": path, "checkpoint_every": 0}
    with pytest.raises(PowerCutError):
        trainer(callbacks=[Counting(3)], **options).fit(Failing(train, 8), valid)  # in the third epoch
    resumed = trainer(callbacks=[Counting(3)], **options)
    assert len(resumed.fit(train, valid, resume=True)) == 3
    whole = trainer(callbacks=[Counting(3)])
    whole.fit(train, valid)
    assert_same(whole, resumed)


def test_a_stop_that_was_asked_for_is_not_forgotten(train, valid, tmp_path):
    path = tmp_path / "checkpoint"
    trainer(callbacks=[Counting(1)], checkpoint=path, checkpoint_every=0).fit(train, valid)
    assert Checkpoint.load(path).state["position"]["asked_to_stop"]
    again = trainer(callbacks=[Counting(1)], checkpoint=path)
    assert len(again.fit(train, valid, resume=True)) == 1


def test_a_state_that_no_checkpoint_can_hold_is_named(train, valid, tmp_path):
    counting = Counting(9)
    counting.state_dict = lambda: {"seen": object()}
    with pytest.raises(CheckpointError, match="callback/0/seen: a checkpoint cannot hold a object"):
        trainer(callbacks=[counting], checkpoint=tmp_path / "c", checkpoint_every=0).fit(train, valid)


# ---------------------------------------------------------------- inputs and weights


class Trees:
    """Inputs in two parts, perhaps without labels."""

    def __init__(self, data, labelled=True):
        self.data, self.labelled = data, labelled

    def __len__(self):
        return len(self.data)

    def batch(self, indices):
        x, y, *_ = self.data.batch(indices)
        return Batch({"left": x[:, :2], "right": (x[:, 2:],)}, y if self.labelled else None)


class Joining(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = MLP(6, 8, 1, 4)

    def forward(self, x):
        return self.net(torch.cat([x["left"], x["right"][0]], 1))


def test_inputs_may_be_trees(train, valid):
    histories = []
    for net, wrap in ((Joining(), Trees), (MLP(6, 8, 1, 4), lambda data: data)):
        torch.manual_seed(0)
        for parameter in net.parameters():
            nn.init.normal_(parameter)
        method = CrossEntropy(net, MultiLabel(4))
        fitted = Trainer(method, max_epochs=2, batch_size=16, progress=False)
        histories.append(fitted.fit(wrap(train), wrap(valid)))
    for trees, plain in zip(*histories, strict=True):
        assert trees["losses"] == plain["losses"]
        assert trees["valid"] == plain["valid"]


def test_inputs_without_labels_are_predicted_and_not_measured(train, valid):
    method = CrossEntropy(Joining(), MultiLabel(4)).eval()
    relaxed, truth = predict(method.predict, Trees(valid, labelled=False), batch_size=7)
    assert truth is None
    assert torch.equal(relaxed, predict(method.predict, Trees(valid), batch_size=7)[0])
    with pytest.raises(ValueError, match="validation data have no labels"):
        Trainer(method, max_epochs=1, progress=False).fit(Trees(train), Trees(valid, labelled=False))


def test_terms_of_the_task_loss_have_weights_of_their_own(train, valid):
    weights = {"ce": torch.linspace(0, 2, len(train)), "energy": torch.linspace(2, 0, len(train))}
    found = []
    for given in (weights, weights["ce"], dict.fromkeys(("energy", "ce", "score"), weights["ce"])):
        found.append(trainer(max_epochs=2).fit(Weighted(train, given), valid)[-1]["losses"])
    assert found[1] == pytest.approx(found[2], rel=1e-5)
    assert found[0] != pytest.approx(found[1], rel=1e-3)


def test_replicas_know_weights_of_terms(train, valid):
    weighted = Weighted(train, {"ce": torch.linspace(0, 2, len(train))})
    alone = trainer(1, max_epochs=2).fit(weighted, valid)
    both = [trainer(seed, max_epochs=2) for seed in (1, 2)]
    together = dict(fit_together(both, weighted, valid, progress=False))
    assert together[0][-1]["losses"] == pytest.approx(alone[-1]["losses"], rel=1e-4)
