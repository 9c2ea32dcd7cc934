"""Whole training steps in interpreted kernels; what a GPU does is in tests/training/test_gpu.py."""

import numpy as np
import pytest
import torch
from lossnet.tasks import LabelTask

from lossnet import kernels
from lossnet.build import build
from lossnet.data import MultiLabelData
from lossnet.losses.contrastive import Ranking
from lossnet.settings import Settings
from lossnet.training import Trainer, fit_together
from lossnet.training.engines import Eager, stacked

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
    monkeypatch.setattr(Eager, "has_keys", False)
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


def test_replicas_that_draw_at_once_are_trained_as_alone(used, monkeypatch):
    lone, together = (
        [trainer("seal", "nce", seed, energy_steps=3, samples=20) for seed in (0, 3)] for _ in range(2)
    )
    histories = [one.fit(data(), data()) for one in lone]
    monkeypatch.setattr(stacked, "has_kernel", lambda optimizers, tensors: True)
    found = dict(fit_together(together, data(), data(), progress=False))
    assert used["interact"] == 6, "three steps in each of two batches"
    for index, history in enumerate(histories):
        for ours, theirs in zip(found[index], history, strict=True):
            assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-4)
            assert ours["gradient_norms"] == pytest.approx(theirs["gradient_norms"], rel=1e-3)
