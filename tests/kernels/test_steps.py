"""Whole training steps in interpreted kernels; what a GPU does is in tests/training/test_gpu.py."""

import dataclasses

import numpy as np
import pytest
import torch

from lossnet import kernels
from lossnet.build import build
from lossnet.data import MultiLabelData
from lossnet.losses.contrastive import Ranking
from lossnet.settings import Settings
from lossnet.tasks import LabelTask
from lossnet.training import Trainer, fit_together, stacked
from lossnet.training.replicas import _Replicas
from lossnet.training.stacked import Stack

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU interprets nothing")


def data(zeros=0.0):
    random = np.random.default_rng(0)
    x = random.normal(size=(16, 10)).astype("float32") * (random.random((16, 10)) >= zeros)
    return MultiLabelData.from_arrays(x, (x @ random.normal(size=(10, 7)) > 1).astype("uint8"))


def trainer(method, loss, seed=0, **settings):
    small = {"task_hidden": 12, "energy_hidden": 12, "global_hidden": 6, "samples": 5, "inference_steps": 2}
    torch.manual_seed(seed)
    made = build(method, loss, Settings(**{**small, **settings}), LabelTask.of_size(10, 7))
    return Trainer(made, seed=seed, max_epochs=1, batch_size=8, progress=False)


@pytest.fixture
def used(device, monkeypatch):
    """How often each kernel was."""
    counts = {}

    def counted(name, kernel):
        def call(*arguments, **options):
            found = kernel(*arguments, **options)
            counts[name] = counts.get(name, 0) + (found is not None)
            return found

        return call

    for name in ("layer", "read_out", "interact", "contrast", "cross_entropy"):
        monkeypatch.setattr(kernels, name, counted(name, getattr(kernels, name)))
    return counts


@pytest.fixture
def one_by_one(monkeypatch):
    """Candidates of each round are torch's own draws, in 32 bits."""
    monkeypatch.setattr(Ranking, "_together", lambda *_: 0)


KINDS = {
    "cross-entropy": ("cross-entropy", "none", {"layer", "cross_entropy"}),
    "seal": ("seal", "nce", {"layer", "read_out", "contrast", "cross_entropy"}),
    "dvn": ("dvn", "regression", {"layer", "read_out"}),
    "spen": ("spen", "margin", {"layer", "read_out", "cross_entropy"}),
    "implicit": ("implicit", "nce", {"layer", "read_out", "cross_entropy"}),
}


@pytest.mark.parametrize(("method", "loss", "kinds"), KINDS.values(), ids=KINDS)
def test_steps_in_kernels_are_torchs_steps(used, one_by_one, monkeypatch, method, loss, kinds):
    plain = {"task_dropout": 0.0, "energy_dropout": 0.0}
    history = trainer(method, loss, **plain).fit(data(), data())
    assert {name for name, count in used.items() if count} == kinds
    monkeypatch.setattr(Trainer, "_has_words", False)
    for ours, theirs in zip(history, trainer(method, loss, **plain).fit(data(), data()), strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-5)
        assert ours["gradient_norms"] == pytest.approx(theirs["gradient_norms"], rel=1e-4)


def test_a_seed_draws_alone_what_it_draws_beside_another(used):
    dropping = {"task_dropout": 0.5, "energy_dropout": 0.5}
    alone = trainer("cross-entropy", "none", **dropping).fit(data(), data())
    both = [trainer("cross-entropy", "none", seed, **dropping) for seed in (0, 3)]
    together = dict(fit_together(both, data(), data(), progress=False))
    assert together[0][0]["losses"] == pytest.approx(alone[0]["losses"], rel=1e-5)
    assert used["layer"] > 0


@pytest.mark.parametrize("zeros", [0.0, 0.95], ids=["inputs in use", "inputs of which some wait"])
def test_replicas_whose_gradients_are_never_written_are_trained_as_alone(
    used, one_by_one, monkeypatch, zeros
):
    settings = {"energy_steps": 3, "task_steps": 2, "task_dropout": 0.5, "energy_dropout": 0.5}
    lone = [trainer("seal", "nce", seed, **settings) for seed in (0, 3)]
    together = [trainer("seal", "nce", seed, **settings) for seed in (0, 3)]
    histories = [one.fit(data(zeros), data()) for one in lone]
    monkeypatch.setattr(stacked, "has_kernel", lambda tensors: True)
    settled = []
    monkeypatch.setattr(Stack, "settle", lambda self: settled.append(len(self._waiting)) or settle(self))
    found = dict(fit_together(together, data(zeros), data(), progress=False))
    assert settled == [1 if zeros else 0] * 4, "of two networks, in two batches"
    for index, history in enumerate(histories):
        for ours, theirs in zip(found[index], history, strict=True):
            assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-5)
            assert ours["gradient_norms"] == pytest.approx(theirs["gradient_norms"], rel=1e-4)
        ours, theirs = together[index].method.state_dict(), lone[index].method.state_dict()
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


settle = Stack.settle


def test_replicas_that_draw_at_once_are_trained_as_alone(used, monkeypatch):
    lone, together = (
        [trainer("seal", "nce", seed, energy_steps=3, samples=20) for seed in (0, 3)] for _ in range(2)
    )
    histories = [one.fit(data(), data()) for one in lone]
    monkeypatch.setattr(stacked, "has_kernel", lambda tensors: True)
    found = dict(fit_together(together, data(), data(), progress=False))
    assert used["interact"] == 6, "three steps in each of two batches"
    for index, history in enumerate(histories):
        for ours, theirs in zip(found[index], history, strict=True):
            assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-4)
            assert ours["gradient_norms"] == pytest.approx(theirs["gradient_norms"], rel=1e-3)


def test_a_batch_that_is_given_up_leaves_no_steps_behind(used, monkeypatch):
    monkeypatch.setattr(stacked, "has_kernel", lambda tensors: True)
    take, given_up = _Replicas._take_steps, []

    def twice(self, batch, words):
        """As where a graph cannot be captured: half of the steps, all undone, then the whole."""
        if given_up:
            return take(self, batch, words)
        tensors = [one for stack in self.stacks.values() for one in _tensors(stack)]
        kept = [one.clone() for one in [*tensors, *(one.get_state() for one in self.streams.generators)]]
        stage, self.stage = (
            self.stage,
            dataclasses.replace(self.stage, updates=_first_half(self.stage.updates)),
        )
        with pytest.raises(ArithmeticError):
            take(self, batch, words)
        self.stage = stage
        given_up.append(sum(len(stack._waiting) for stack in self.stacks.values()))
        for one, before in zip(tensors, kept, strict=False):
            one.copy_(before)
        for one, before in zip(self.streams.generators, kept[len(tensors) :], strict=True):
            one.set_state(before)
        return take(self, batch, words)

    ends = []
    for method in (take, twice):
        monkeypatch.setattr(_Replicas, "_take_steps", method)
        made = [trainer("seal", "nce", seed, energy_steps=3, task_steps=2) for seed in (0, 3)]
        list(fit_together(made, data(0.95), data(), progress=False))
        ends.append([one.method.state_dict() for one in made])
    assert given_up == [1]
    torch.testing.assert_close(*ends, rtol=0, atol=0)


def _tensors(stack):
    return [*(one.data for one in stack.parameters), *(one for part in stack._state.values() for one in part)]


def _first_half(updates):
    def half(batch):
        for update in updates(batch):
            if update.network == "task_net":
                raise ArithmeticError
            yield update

    return half
