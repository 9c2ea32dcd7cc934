"""Replicas trained together end as each of them does alone."""

import os
import signal

import pytest
import torch
from torch import nn

from lossnet.build import build
from lossnet.hypergradient import Diagonal, FiniteDifference, Identity, implicit_gradient
from lossnet.nets import MLP
from lossnet.settings import Settings
from lossnet.spaces import Batch
from lossnet.task import Task
from lossnet.training import Checkpoint, Interrupted, NonFiniteLoss, Trainer, fit_together, stacking_blocker
from lossnet.training.engines.stacked import Stack, Streams

SMALL = Settings(
    task_hidden=8,
    energy_hidden=8,
    global_hidden=4,
    samples=4,
    energy_steps=2,
    task_steps=2,
    task_dropout=0.3,
    energy_dropout=0.3,
)


class Data:
    """In float64, so that equal means equal to the last digits."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
        self.y = (self.x[:, :4] + self.x[:, 2:] > 0).double()

    def __len__(self):
        return len(self.x)

    def batch(self, indices):
        return Batch(self.x[indices], self.y[indices])


class WeightedData(Data):
    def batch(self, indices):
        return super().batch(indices)._replace(weight=0.5 + (indices % 2).double())


TRAIN, VALID = Data(40, 0), Data(24, 1)


def trainer(names, seed, options=None, **settings):
    torch.manual_seed(seed)
    method = build(*names, Settings(**{**vars(SMALL), **settings}), Task.of_sizes(6, 4))
    given = {
        "max_epochs": 5,
        "batch_size": 16,
        "lr": {"energy": 0.02, "task_net": 0.05},
        "weight_decay": 0.01,
        "clip": 0.5,
        "patience": 2,
        "patience_steps": 0,
        "plateau_patience": 0,
        "progress": False,
        "seed": seed,
        **(options or {}),
    }
    return Trainer(method.double(), **given)


def timeless(history):
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in history]


def assert_equal(lone, together):
    one, other = lone.method.state_dict(), together.method.state_dict()
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(other[name], one[name], rtol=1e-9, atol=1e-12)
    assert together.steps_taken == lone.steps_taken


def assert_same_history(one, other):
    assert len(one) == len(other)
    for mine, its in zip(timeless(one), timeless(other), strict=True):
        assert mine["lr"] == its["lr"]
        assert mine["valid"] == pytest.approx(its["valid"], rel=1e-9)
        assert mine["measured"].keys() == its["measured"].keys()
        for part in ("losses", "gradient_norms"):
            assert mine[part] == pytest.approx(its[part], rel=1e-5)
        for network, readings in mine["measured"].items():
            assert readings == pytest.approx(its["measured"][network], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (("cross-entropy", "none"), {}),
        (("cross-entropy", "soft-f1"), {}),
        (("cross-entropy", "direct-ranking"), {}),
        (("seal", "nce"), {}),
        (("seal", "margin"), {"conditioned": True}),
        (("seal", "regression-s"), {}),
        (("seal", "nce"), {"schedule": "grouped"}),
        (("seal", "nce"), {"output_bias": False, "last_layer_dropout": False, "global_bias": True}),
        (("seal", "cd"), {"score_weight": 2.0}),
        (("implicit", "nce"), {}),
        (("implicit", "margin"), {"solver": "neumann", "solver_terms": 2}),
        (("implicit", "cd"), {"solver": "conjugate-gradient", "solver_terms": 2}),
    ],
    ids=lambda value: "-".join(value),
)
def test_each_replica_equals_its_lone_run(names, settings):
    lone = [trainer(names, seed, **settings) for seed in (0, 1)]
    together = [trainer(names, seed, **settings) for seed in (0, 1)]
    histories = [one.fit(TRAIN, VALID) for one in lone]
    outcomes = dict(fit_together(together, TRAIN, VALID, progress=False))
    for index, history in enumerate(histories):
        assert_equal(lone[index], together[index])
        assert_same_history(history, outcomes[index])


def test_replicas_may_stop_at_different_epochs():
    together = [trainer(("seal", "nce"), seed, {"max_epochs": 40}) for seed in (0, 1, 2)]
    order = [(index, len(history)) for index, history in fit_together(together, TRAIN, VALID, progress=False)]
    assert len({epochs for _, epochs in order}) > 1
    assert [epochs for _, epochs in order] == sorted(epochs for _, epochs in order)


def test_numbers_may_differ_between_replicas():
    names = ("implicit", "nce")
    changes = [
        {"energy_weight": 0.0, "ce_weight": 1.5, "score_weight": 0.5},
        {"energy_weight": 2.0, "ce_weight": 0.5},
        {"implicit_weight": 0.01},
    ]
    options = [
        {"lr": {"energy": 0.01, "task_net": 0.1}, "patience": 1},
        {"weight_decay": 0.5, "max_epochs": 3, "warm_up": 4, "lr_decay": "linear"},
        {"clip": 0.1, "plateau_factor": 0.3, "plateau_patience": 1},
    ]
    pairs = list(zip(changes, options, strict=True))
    lone = [trainer(names, 4, given, **settings) for settings, given in pairs]
    together = [trainer(names, 4, given, **settings) for settings, given in pairs]
    for one in lone:
        one.fit(TRAIN, VALID)
    list(fit_together(together, TRAIN, VALID, progress=False))
    for one, other in zip(lone, together, strict=True):
        assert_equal(one, other)
    weights = [one.method.task_net[0].weight for one in lone]
    assert not torch.allclose(weights[0], weights[1], rtol=1e-3)


def test_an_unlimited_energy_is_so_in_every_replica():
    options = [{"unlimited": ("energy",), "clip": 0.1}, {"clip": 0.1}]
    lone = [trainer(("seal", "nce"), 4, given) for given in options]
    together = [trainer(("seal", "nce"), 4, given) for given in options]
    for one in lone:
        one.fit(TRAIN, VALID)
    list(fit_together(together, TRAIN, VALID, progress=False))
    for one, other in zip(lone, together, strict=True):
        assert_equal(one, other)
    first, second = (one.method.energy.terms[1].mixing.weight for one in lone)
    assert not torch.allclose(first, second, rtol=1e-3)


def test_weights_of_instances_count():
    train = WeightedData(40, 0)
    lone = [trainer(("seal", "nce"), seed) for seed in (0, 1)]
    together = [trainer(("seal", "nce"), seed) for seed in (0, 1)]
    for one in lone:
        one.fit(train, VALID)
    list(fit_together(together, train, VALID, progress=False))
    for one, other in zip(lone, together, strict=True):
        assert_equal(one, other)


def test_one_that_diverges_leaves_the_others_alone():
    wild = {"lr": {"energy": 1e200, "task_net": 1e200}, "clip": 1e300}
    lone = trainer(("seal", "nce"), 1)
    lone.fit(TRAIN, VALID)
    together = [trainer(("seal", "nce"), 0, wild), trainer(("seal", "nce"), 1)]
    outcomes = dict(fit_together(together, TRAIN, VALID, progress=False))
    assert isinstance(outcomes[0], NonFiniteLoss)
    assert_equal(lone, together[1])


def test_random_numbers_outside_are_left_alone():
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    together = [trainer(("seal", "nce"), seed, {"max_epochs": 1}) for seed in (0, 1)]
    torch.manual_seed(9)
    list(fit_together(together, TRAIN, VALID, progress=False))
    assert torch.equal(torch.rand(3), expected)


class Interrupting:
    """Ctrl-C while the given batch is made."""

    def __init__(self, batch, data=None):
        self.data, self.left = data or TRAIN, batch

    def __len__(self):
        return len(self.data)

    def batch(self, indices):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return self.data.batch(indices)


@pytest.mark.parametrize("batch", [2, 6])
def test_a_stopped_group_continues_to_the_same_end(tmp_path, batch):
    def made(seed, saved):
        given = {"checkpoint": tmp_path / f"{seed}.safetensors", "checkpoint_every": 1000} if saved else {}
        return trainer(("implicit", "nce"), seed, given)

    lone = [made(seed, False) for seed in (0, 1)]
    for one in lone:
        one.fit(TRAIN, VALID)
    with pytest.raises(Interrupted, match="2 runs is saved"):
        list(fit_together([made(seed, True) for seed in (0, 1)], Interrupting(batch), VALID, progress=False))
    # One goes on alone, the other as a group of one: their checkpoints are a lone run's.
    alone, grouped = made(0, True), made(1, True)
    alone.fit(TRAIN, VALID, resume=True)
    ended = dict(fit_together([grouped], TRAIN, VALID, resume=True, progress=False))
    assert ended[0][0]["epoch"] == 1
    assert_equal(lone[0], alone)
    assert_equal(lone[1], grouped)


class CrashError(Exception):
    """Nothing is saved on the way out."""


class Crashing(Interrupting):
    """Half a minute passes with every batch, and one of them is the last."""

    def __init__(self, batch, monkeypatch):
        super().__init__(batch)
        self.now = 0.0
        monkeypatch.setattr("lossnet.training.trainer.time.monotonic", lambda: self.now)

    def batch(self, indices):
        self.left, self.now = self.left - 1, self.now + 31
        if self.left == 0:
            raise CrashError
        return self.data.batch(indices)


@pytest.mark.parametrize(("pause", "step"), [(None, 2), (61.0, 2), (100.0, None)])
def test_a_group_is_saved_within_long_epochs_too(tmp_path, monkeypatch, pause, step):
    def made(seed, saved):
        given = {"checkpoint": tmp_path / f"{seed}.safetensors", "checkpoint_every": pause} if saved else {}
        return trainer(("implicit", "nce"), seed, given)

    lone = [made(seed, False) for seed in (0, 1)]
    for one in lone:
        one.fit(TRAIN, VALID)
    together = [made(seed, True) for seed in (0, 1)]
    with monkeypatch.context() as patch, pytest.raises(CrashError):
        list(fit_together(together, Crashing(3, patch), VALID, progress=False))
    if step is None:
        assert not list(tmp_path.iterdir())
        return
    assert Checkpoint.load(tmp_path / "0.safetensors").state["position"]["step"] == step
    again = [made(seed, True) for seed in (0, 1)]
    list(fit_together(again, TRAIN, VALID, resume=True, progress=False))
    for one, other in zip(lone, again, strict=True):
        assert_equal(one, other)


def test_checkpoints_of_a_group_are_as_far_apart_as_asked(tmp_path, monkeypatch):
    saves = []
    monkeypatch.setattr(Checkpoint, "save", lambda self, path: saves.append(path))
    for pause, expected in ((1e9, 0), (0.0, 10)):
        given = {"checkpoint_every": pause, "patience": 9}
        together = [
            trainer(("seal", "nce"), seed, {"checkpoint": tmp_path / str(seed), **given}) for seed in (0, 1)
        ]
        list(fit_together(together, TRAIN, VALID, progress=False))
        assert len(saves) == expected


@pytest.mark.parametrize("validation", [1, 4])
def test_a_group_stops_where_it_is_validated_too(tmp_path, validation):
    def made(seed, saved):
        given = {"checkpoint": tmp_path / f"{seed}.safetensors"} if saved else {}
        return trainer(("seal", "nce"), seed, {"max_epochs": 2, **given})

    lone = [made(seed, False) for seed in (0, 1)]
    for one in lone:
        one.fit(TRAIN, VALID)
    with pytest.raises(Interrupted, match="2 runs is saved"):
        list(fit_together([made(seed, True) for seed in (0, 1)], TRAIN, Interrupting(validation, VALID)))
    together = [made(seed, True) for seed in (0, 1)]
    assert len(list(fit_together(together, TRAIN, VALID, resume=True, progress=False))) == 2
    for one, other in zip(lone, together, strict=True):
        assert_equal(one, other)


def test_a_stop_between_runs_is_not_forgotten():
    """Whoever trains several groups would go on with the next one."""
    ended = fit_together([trainer(("seal", "nce"), 0, {"max_epochs": 1})], TRAIN, VALID, progress=False)
    next(ended)
    os.kill(os.getpid(), signal.SIGINT)  # as while a result is written
    with pytest.raises(Interrupted):
        next(ended)


def test_replicas_stopped_at_different_places_continue_together(tmp_path):
    def made(seed):
        return trainer(("seal", "nce"), seed, {"checkpoint": tmp_path / f"{seed}.safetensors"})

    lone = [trainer(("seal", "nce"), seed) for seed in (0, 1, 2)]
    for one in lone:
        one.fit(TRAIN, VALID)
    for seed, batch in ((0, 2), (1, 7)):  # in another place of another epoch; the third has not begun
        with pytest.raises(Interrupted):
            made(seed).fit(Interrupting(batch), VALID)
    together = [made(seed) for seed in (0, 1, 2)]
    list(fit_together(together, TRAIN, VALID, resume=True, progress=False))
    for one, other in zip(lone, together, strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize(
    ("names", "first", "second", "why"),
    [
        (("spen", "margin"), {}, {}, "SPEN has no stacked form"),
        (("implicit", "nce"), {"solver": "diagonal"}, {}, "solver Diagonal"),
        (("seal", "nce"), {}, {"samples": 5}, "differ in loss"),
        (("seal", "nce"), {}, {"energy_steps": 3}, "energy_steps"),
        (("seal", "nce"), {}, {"schedule": "grouped"}, "schedule"),
        (("seal", "nce"), {}, {"task_dropout": 0.1}, "layers of task_net"),
        (("implicit", "nce"), {}, {"implicit_weight": 0.0}, "differ in weight"),
        (("cross-entropy", "none"), {"task_hidden": 9}, {}, "layers of task_net"),
    ],
)
def test_what_cannot_be_together_says_why(names, first, second, why):
    pair = [trainer(names, 0, **first), trainer(names, 1, **second)]
    assert why in stacking_blocker(pair)
    with pytest.raises(ValueError, match="cannot be trained together"):
        next(fit_together(pair, TRAIN, VALID))


def test_replicas_of_one_method_object_share_parameters():
    one = trainer(("seal", "nce"), 0)
    one.method.energy.encoder = one.method.task_net
    assert stacking_blocker([one]) == "their networks share parameters"


def test_steps_of_a_stack_are_those_of_the_optimizers():
    torch.manual_seed(0)
    rates, clips = [0.1, 0.01], [0.3, 5.0]
    lone = [MLP(3, hidden=5, layers=1, outputs=2).double() for _ in rates]
    other = [MLP(3, hidden=5, layers=1, outputs=2).double() for _ in rates]
    for one, twin in zip(lone, other, strict=True):
        twin.load_state_dict(one.state_dict())
    optimizers = [
        [torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.1) for net, rate in pairs]
        for pairs in (zip(lone, rates, strict=True), zip(other, rates, strict=True))
    ]
    stack = Stack(other, optimizers[1], clips, Streams([0, 1], torch.device("cpu")))
    for _ in range(5):
        gradients = [torch.randn_like(parameter) for parameter in stack.parameters]
        norms = stack.step([gradient.clone() for gradient in gradients])
        for index, net in enumerate(lone):
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.grad = gradient[index].clone()
            norm = nn.utils.clip_grad_norm_(net.parameters(), clips[index])
            torch.testing.assert_close(norms[index], norm)
            optimizers[0][index].step()
    x = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(stack.network(torch.cat([x, x]))[4:], other[1](x))
    stack.release()
    for one, twin in zip(lone, other, strict=True):
        for mine, its in zip(one.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(its, mine, rtol=1e-12, atol=1e-14)


def test_hypergradients_of_problems_side_by_side():
    torch.manual_seed(0)
    theta = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    phi = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)

    def losses(theta, phi):
        inner = ((theta - phi.sum(-2)) ** 2).sum(-1) + (theta**4).sum(-1)
        return (theta**2).sum(-1) + phi.sum((-1, -2)), inner

    outer, inner = losses(theta, phi)
    found = implicit_gradient(outer, inner, [theta], [phi], max_norm_ratio=0.1, residual=True, problems=3)
    for index in range(3):
        one, other = (part[index].detach().requires_grad_() for part in (theta, phi))
        outer, inner = losses(one, other)
        lone = implicit_gradient(outer, inner, [one], [other], max_norm_ratio=0.1, residual=True)
        torch.testing.assert_close(found.explicit[0][index], lone.explicit[0])
        torch.testing.assert_close(found.implicit[0][index], lone.implicit[0])
        for name in ("curvature", "residual", "terms"):
            torch.testing.assert_close(getattr(found, name)[index, 0], getattr(lone, name))


def test_what_problems_side_by_side_refuse():
    theta, phi = torch.ones(3, 4, requires_grad=True), torch.ones(2, requires_grad=True)
    outer, inner = (theta**2).sum(1), (theta**4).sum(1)
    with pytest.raises(ValueError, match="first axis of that length"):
        implicit_gradient(outer, inner, [theta], [phi], problems=3)
    with pytest.raises(ValueError, match="Diagonal cannot"):
        implicit_gradient(outer, inner, [theta], [theta], Diagonal(), problems=3)
    with pytest.raises(ValueError, match="FiniteDifference cannot"):
        implicit_gradient(outer, inner, [theta], [theta], products=FiniteDifference(), problems=3)
    with pytest.raises(ValueError, match=r"shape \(3,\), not \(\)"):
        implicit_gradient(outer.sum(), inner, [theta], [theta], Identity(), problems=3)


def test_networks_with_hooks_are_trained_alone():
    hooked = trainer(("cross-entropy", "none"), 0)
    hooked.method.task_net[1].register_forward_hook(lambda *_: None)
    assert stacking_blocker([hooked]) == "hooks on their layers have no stacked form"
