import math
import threading
from collections.abc import Sized
from itertools import chain
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from torch import nn

from lossnet.build import build
from lossnet.data import Examples, MultiLabelData
from lossnet.data.examples import Resident
from lossnet.methods import CrossEntropy, Method, Stage, Update
from lossnet.nets import MLP
from lossnet.scores import best_constant, metrics
from lossnet.settings import Settings
from lossnet.spaces import Batch, MultiLabel
from lossnet.task import Task
from lossnet.training import NonFiniteLoss, Trainer, predict
from lossnet.training.engines import Eager, descent
from lossnet.training.evaluation import are_sets

SMALL = Settings(
    task_hidden=8,
    energy_hidden=8,
    global_hidden=4,
    samples=4,
    inference_steps=3,
    energy_steps=2,
    task_dropout=0.3,
    energy_dropout=0.3,
)


def made(method="cross-entropy", loss="none", settings=SMALL):
    torch.manual_seed(0)
    return build(method, loss, settings, Task.of_sizes(6, 4))


def net():
    torch.manual_seed(0)
    return CrossEntropy(MLP(6, 8, 1, 4), MultiLabel(4))


def fit(method, train, valid, **options):
    options = {"max_epochs": 3, "batch_size": 16, "progress": False, **options}
    trainer = Trainer(method, **options)
    return trainer, trainer.fit(train, valid)


def timeless(history):
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in history]


def same_weights(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# ---------------------------------------------------------------- the loop is the plain loop


class Recording(Sized):
    """A data set that remembers which rows were asked for."""

    def __init__(self, data):
        self.data, self.asked = data, []

    def __len__(self):
        return len(self.data)

    def batch(self, indices):
        self.asked.append(indices.tolist())
        return self.data.batch(indices)


@pytest.mark.parametrize("clip", [10.0, 0.05])
def test_training_is_what_a_plain_pytorch_loop_does(train, valid, clip):
    recording = Recording(train)
    method = net()
    plain = MLP(6, 8, 1, 4)
    plain.load_state_dict(method.task_net.state_dict())
    # monitor never improves after the first epoch, so keep it at one: best weights are the last
    fit(method, recording, valid, max_epochs=1, lr=0.02, weight_decay=0.1, clip=clip)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.02, weight_decay=0.1)
    for rows in recording.asked:
        batch = train.batch(np.array(rows))
        loss = nn.functional.binary_cross_entropy_with_logits(plain(batch.x), batch.y, reduction="sum") / len(
            rows
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), clip)
        optimizer.step()
    for found, expected in zip(method.task_net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_each_epoch_visits_every_row_once_in_a_new_order(train, valid):
    recording = Recording(train)
    fit(net(), recording, valid, max_epochs=2)
    assert [len(rows) for rows in recording.asked] == [16, 16, 8] * 2
    first, second = (list(chain(*part)) for part in (recording.asked[:3], recording.asked[3:]))
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second
    assert first != sorted(first)


def test_stages_have_orders_of_their_own(train, valid):
    recording = Recording(train)
    fit(made("seal-static", "nce"), recording, valid, max_epochs=1)
    orders = [tuple(chain(*recording.asked[i : i + 3])) for i in (0, 3, 6)]
    assert len(set(orders)) == 3


# ---------------------------------------------------------------- repeatability

REPEATED = [
    ("cross-entropy", "soft-f1"),
    ("seal", "nce"),
    ("seal", "regression-s"),
    ("dvn", "regression"),
    ("seal-static", "nce"),
]


@pytest.mark.parametrize(("method", "loss"), REPEATED)
def test_a_seed_repeats_bit_for_bit_whatever_the_global_generator(train, valid, method, loss):
    first, second, other = (made(method, loss) for _ in range(3))
    torch.manual_seed(123)
    _, one = fit(first, train, valid, seed=5)
    torch.manual_seed(321)
    _, two = fit(second, train, valid, seed=5)
    _, three = fit(other, train, valid, seed=6)
    assert same_weights(first, second)
    assert timeless(one) == timeless(two)
    assert not same_weights(first, other)
    assert timeless(one) != timeless(three)


def test_fit_leaves_the_global_generators_alone(train, valid):
    torch.manual_seed(11)
    np.random.seed(11)
    expected = (torch.rand(3), np.random.rand())
    torch.manual_seed(11)
    np.random.seed(11)
    method = build("seal", "nce", SMALL, Task.of_sizes(6, 4))
    torch.manual_seed(11)
    fit(method, train, valid)
    assert torch.equal(torch.rand(3), expected[0])
    assert np.random.rand() == expected[1]


# ---------------------------------------------------------------- stopping and best weights


class Scripted(Method):
    """A method whose validation F1 follows a script, one entry per epoch."""

    predictors = ("task_net",)

    def __init__(self, script):
        super().__init__()
        self.space = MultiLabel(2)
        self.task_net = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.task_net.weight)
        self.script, self.calls, self.states = script, 0, []

    def stages(self):
        return (Stage("scripted", ("task_net",), self.updates, self.predict),)

    def updates(self, batch):
        yield Update("task_net", self.task_net.weight.sum())

    def predict(self, x, mask=None):
        """As many of the rows right as the script says."""
        value = self.script[min(self.calls, len(self.script) - 1)]
        self.calls += 1
        self.states.append(self.task_net.weight.item())
        right = torch.arange(len(x)) < round(value * len(x))
        return torch.stack([right.float(), 1 - right.float()], 1)


class Rising(Method):
    """A method whose probabilities, the same for all rows, rise from 0.1 with every step."""

    predictors = ("task_net",)

    def __init__(self, labels):
        super().__init__()
        self.space = MultiLabel(labels)
        self.task_net = nn.Linear(1, labels, bias=False)
        nn.init.constant_(self.task_net.weight, -4.0)

    def stages(self):
        return (Stage("rising", ("task_net",), self.updates, self.predict),)

    def updates(self, batch):
        yield Update("task_net", -self.task_net.weight.sum())

    def predict(self, x, mask=None):
        return self.task_net(x).sigmoid()


@pytest.fixture
def ten_rows():
    y = np.zeros((10, 2))
    y[:, 0] = 1
    return MultiLabelData.from_arrays(np.ones((10, 1)), y)


def test_patience_counts_epochs_without_improvement(ten_rows):
    script = [0.3, 0.5, 0.5, 0.4, 0.6, 0.6, 0.5, 0.4, 0.9]
    method = Scripted(script)
    _, history = fit(method, ten_rows, ten_rows, max_epochs=50, patience=3, patience_steps=0)
    # 0.5 again is no improvement; 0.6 resets the count; three without improvement end it.
    assert [round(entry["f1"], 6) for entry in history] == script[:8]
    assert [entry["epoch"] for entry in history] == list(range(1, 9))


def test_max_epochs_ends_it_too(ten_rows):
    _, history = fit(Scripted([0.1]), ten_rows, ten_rows, max_epochs=4, patience=50)
    assert len(history) == 4


def test_the_first_best_epochs_weights_come_back(ten_rows):
    method = Scripted([0.3, 0.8, 0.5, 0.8, 0.1])
    fit(method, ten_rows, ten_rows, max_epochs=5, patience=50)
    assert len(set(method.states)) == 5
    assert method.task_net.weight.item() == method.states[1]


@pytest.mark.parametrize("names", [("cross-entropy", "none"), ("seal", "nce"), ("infnet", "margin")])
def test_the_returned_method_is_that_of_the_best_epoch(train, valid, names):
    method = made(*names)
    trainer, history = fit(method, train, valid, max_epochs=20, lr=1.0, patience=50)
    last = [entry for entry in history if entry["stage"] == history[-1]["stage"]]
    kept = last[trainer.stages[-1]["best_epoch"] - 1]
    assert kept is not last[-1], "a useful test needs a last epoch that is not the best"
    assert not method.training
    relaxed, truth = predict(method.predict, valid)
    assert metrics(method.space, relaxed, truth).items() <= kept["valid"].items()
    constant = best_constant(method.space, [truth], "f1")
    best = max(last, key=lambda entry: (max(entry["f1"], constant), -entry["valid"]["log_loss"]))
    assert kept is best


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ([0.1, 0.2, 0.3], "reached the limit of 3 epochs, still learning: more (epochs=, --epochs) may help"),
        ([0.3, 0.2, 0.1], "reached the limit of 3 epochs, 2 after the last improvement"),
        ([0.1, 0.2, 1.0], "reached the limit of 3 epochs, where F1 at 0.5 on valid cannot be better"),
    ],
)
def test_a_stage_that_reaches_its_limit_says_whether_more_may_help(ten_rows, script, said):
    trainer, _ = fit(Scripted(script), ten_rows, ten_rows, max_epochs=3, patience=50)
    assert trainer.stages[0]["ended"] == said


def test_where_the_log_loss_is_watched_the_main_metric_says_whether_more_may_help(ten_rows):
    for script, said in (([0.1, 0.2, 0.3], "still learning"), ([0.1, 0.2, 1.0], "F1 at 0.5 on valid cannot")):
        trainer, _ = fit(Scripted(script), ten_rows, ten_rows, max_epochs=3, patience=50, monitor="log_loss")
        assert said in trainer.stages[0]["ended"]


STOPPED_EARLY = "stopped early: on valid, F1 at 0.5 and log loss did not improve for 3 epochs"


def test_a_metric_that_does_not_move_yet_does_not_end_training():
    """Probabilities that rise towards 0.5 improve the log loss, and F1 at 0.5 only later."""
    rows = MultiLabelData.from_arrays(np.ones((10, 1)), np.tril(np.ones((10, 8))))
    method = Rising(8)
    trainer, history = fit(method, rows, rows, max_epochs=400, patience=3, patience_steps=0, lr=0.05)
    assert history[10]["f1"] == 0
    assert max(entry["f1"] for entry in history) > 0
    ended = {"epochs": len(history), "ended": STOPPED_EARLY}
    assert trainer.stages == [{"stage": "rising", "best_epoch": ANY, "networks": ANY, "valid": ANY, **ended}]
    assert trainer.stages[0]["valid"] == history[trainer.stages[0]["best_epoch"] - 1]["f1"]


def test_steps_without_improvement_count_too(ten_rows):
    script = [0.5] * 50
    trainer, history = fit(
        Scripted(script), ten_rows, ten_rows, max_epochs=50, patience=3, patience_steps=10, batch_size=5
    )
    assert len(history) == 1 + 5  # the first, then ten steps, two in an epoch
    assert trainer.stages[-1]["best_epoch"] == 1


def test_few_steps_do_not_make_a_plateau(ten_rows):
    script = [0.5] * 12
    options = {"max_epochs": 12, "patience": 4, "plateau_patience": 0, "plateau_factor": 0.5, "batch_size": 5}
    _, history = fit(Scripted(script), ten_rows, ten_rows, patience_steps=16, lr=0.1, **options)
    rates = [entry["lr"]["task_net"] for entry in history]
    # After the first epoch, which improves, a plateau is looked for every four steps: every other epoch.
    assert rates[:7] == [0.1, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


def test_constant_predictions_come_from_training_data(ten_rows):
    """One label of all validation rows, none of training: the constant that training suggests is wrong."""
    other = MultiLabelData.from_arrays(np.zeros((10, 1)), 1 - ten_rows.target.matrix.toarray())
    trainer, _ = fit(Scripted([0.5]), other, ten_rows, max_epochs=1)
    assert trainer.state.constant < 1
    trainer, _ = fit(Scripted([0.5]), ten_rows, ten_rows, max_epochs=1)
    assert trainer.state.constant == 1


def test_a_monitored_loss_is_lowered(ten_rows):
    method = Scripted([0.3, 0.8, 0.5])
    trainer, _ = fit(method, ten_rows, ten_rows, max_epochs=3, monitor="hamming_loss")
    assert trainer.stages[-1]["best_epoch"] == 2


def test_another_metric_can_be_monitored(train, valid):
    _, history = fit(net(), train, valid, monitor="micro_f1")
    assert [entry["micro_f1"] for entry in history] == [e["valid"]["micro_f1"] for e in history]


def test_an_unknown_metric_names_the_known_ones(train, valid):
    with pytest.raises(ValueError, match=r"monitor='auc'.*exact_match.*micro_f1"):
        fit(net(), train, valid, monitor="auc")


@pytest.mark.parametrize("empty", ["train", "valid"])
def test_empty_data_is_refused(train, empty):
    nothing = train.take([])
    pair = (nothing, train) if empty == "train" else (train, nothing)
    with pytest.raises(ValueError, match="at least one training and one validation instance"):
        fit(net(), *pair)


# ---------------------------------------------------------------- optimizers


def test_a_plateau_cuts_every_learning_rate(train, ten_rows):
    script = [0.5] * 8
    _, history = fit(
        Scripted(script),
        ten_rows,
        ten_rows,
        max_epochs=8,
        patience=50,
        patience_steps=0,
        lr=0.1,
        plateau_patience=2,
        plateau_factor=0.25,
    )
    rates = [entry["lr"]["task_net"] for entry in history]
    # Three epochs without improvement (more than the patience of 2) after the first, then again.
    assert rates == [0.1] * 4 + [0.025] * 3 + [0.00625]


def test_a_rate_that_is_cut_is_a_rate_that_is_used(ten_rows):
    """With AdamW and a constant gradient each step moves by the learning rate."""
    method = Scripted([0.5] * 6)
    fit(
        method,
        ten_rows,
        ten_rows,
        max_epochs=6,
        patience=50,
        patience_steps=0,
        lr=0.1,
        batch_size=10,
        plateau_patience=1,
        plateau_factor=0.1,
        weight_decay=0.0,
    )
    steps = -np.diff([0.0, *method.states])
    np.testing.assert_allclose(steps, [0.1, 0.1, 0.1, 0.01, 0.01, 0.001], rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({"warm_up": 4, "plateau_patience": 9}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ({"lr_decay": "linear"}, [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ({"warm_up": 3, "lr_decay": "linear"}, [1 / 3, 2 / 3, 1, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5]),
        ({"warm_up": 2, "plateau_patience": 2}, [0.5, 1, 1, 1, 0.25, 0.25, 0.25, 0.0625]),
        ({"warm_up": 6, "plateau_patience": 2}, [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 24, 0.25, 0.25, 0.0625]),
    ],
)
def test_rates_grow_and_fall_with_batches(ten_rows, options, factors):
    """With AdamW and a constant gradient each step moves by the learning rate."""
    shared = {"max_epochs": 8, "patience": 50, "lr": 0.1, "weight_decay": 0.0, "plateau_factor": 0.25}
    method = Scripted([0.5] * 8)
    _, history = fit(method, ten_rows, ten_rows, batch_size=10, patience_steps=0, **shared, **options)
    expected = 0.1 * np.array(factors)
    np.testing.assert_allclose(-np.diff([0.0, *method.states]), expected, rtol=1e-3)
    np.testing.assert_allclose([entry["lr"]["task_net"] for entry in history], expected)


def test_several_batches_of_an_epoch_have_rates_of_their_own(ten_rows):
    method = Scripted([0.5] * 2)
    options = {"max_epochs": 2, "batch_size": 2, "lr": 0.1, "weight_decay": 0.0}
    fit(method, ten_rows, ten_rows, warm_up=8, **options)
    np.testing.assert_allclose(
        -np.diff([0.0, *method.states]) / 0.1, [15 / 8, (6 + 7 + 8 + 8 + 8) / 8], rtol=1e-3
    )


def test_a_warm_up_goes_on_over_parts_of_any_size(train):
    method = net()
    trainer = Trainer(method, warm_up=8, lr=0.1, batch_size=2, progress=False)
    trainer.pass_over(train.take(range(10)))
    trainer.pass_over(train.take(range(2)))
    assert trainer.state.position.batches == 6
    factors = [trainer.state.rate_factor(batch, 1) for batch in (0, 5, 6, 8)]
    assert factors == [1 / 8, 6 / 8, 7 / 8, 1]
    with trainer.state.rates_now(1):
        assert trainer.state.optimizers["task_net"].param_groups[0]["lr"] == pytest.approx(0.1 * 7 / 8)


def test_unlimited_networks_have_their_own_rate_throughout(train, valid):
    options = {"unlimited": ("energy",), "lr": 0.01, "max_epochs": 2, "batch_size": 40}
    _, history = fit(made("seal", "nce"), train, valid, warm_up=4, **options)
    assert [entry["lr"] for entry in history] == [
        {"energy": 0.01, "task_net": 0.0025},
        {"energy": 0.01, "task_net": 0.005},
    ]


def test_a_linear_decay_needs_an_end_and_no_other_schedule(train):
    with pytest.raises(ValueError, match="needs a last epoch: partial_fit is not supported"):
        Trainer(net(), lr_decay="linear").pass_over(train)
    with pytest.raises(ValueError, match="'linear' is a scheduler already"):
        Trainer(net(), lr_decay="linear", scheduler=torch.optim.lr_scheduler.ConstantLR)


def test_each_network_has_its_own_learning_rate(train, valid):
    method = made("seal", "nce")
    before = {name: part.clone() for name, part in method.state_dict().items()}
    rates = {"energy": 1e-4, "task_net": 1e-2}
    _, history = fit(method, train, valid, lr=rates, max_epochs=1, batch_size=40, weight_decay=0.0)
    assert history[0]["lr"] == rates
    moved = {"energy": 0.0, "task_net": 0.0}
    for name, part in method.state_dict().items():
        network = name.split(".")[0]
        moved[network] = max(moved[network], (part - before[name]).abs().max().item())
    # One task step and two energy steps, each of at most the learning rate.
    assert moved["task_net"] == pytest.approx(1e-2, rel=0.01)
    assert 1e-4 < moved["energy"] < 2.1e-4


@pytest.fixture
def applied(monkeypatch):
    """The norm of every gradient that an optimizer really applies, in turn, with the optimizer."""
    noted, step = [], descent.step

    def note(optimizer, gradients):
        noted.append((optimizer, math.sqrt(sum(float(part.pow(2).sum()) for part in gradients))))
        step(optimizer, gradients)

    monkeypatch.setattr(descent, "step", note)
    return noted


def norms_of(trainer, applied):
    names = {optimizer: name for name, optimizer in trainer.state.optimizers.items()}
    return [(names[optimizer], norm) for optimizer, norm in applied if optimizer in names]


def test_clipping_bounds_the_gradient_that_is_applied(train, valid, applied):
    wild, tame = (
        Trainer(made("seal", "nce"), max_epochs=1, batch_size=16, clip=clip, progress=False)
        for clip in (1e9, 0.1)
    )
    wild.fit(train, valid)
    history = tame.fit(train, valid)
    assert max(norm for _, norm in norms_of(wild, applied)) > 0.5
    norms = norms_of(tame, applied)
    assert [name for name, _ in norms] == ["energy", "energy", "task_net"] * 3
    assert max(norm for _, norm in norms) <= 0.1 * (1 + 1e-5)
    assert norms[0][1] == pytest.approx(0.1, rel=1e-4)
    # The history tells the norm before clipping: what a person needs to choose the clip.
    assert min(history[0]["gradient_norms"].values()) > 0.1


def test_history_averages_losses_and_norms_over_the_epochs_steps(train, valid, applied):
    watched = Trainer(made("seal", "nce"), max_epochs=1, batch_size=16, clip=1e9, progress=False)
    (entry,) = watched.fit(train, valid)
    for name in ("energy", "task_net"):
        norms = [norm for network, norm in norms_of(watched, applied) if network == name]
        assert entry["gradient_norms"][name] == pytest.approx(np.mean(norms), rel=1e-5)
    assert set(entry["losses"]) == {"energy", "task_net"}


class Measuring(Scripted):
    """Two networks; of the energy's three steps on a batch the second and third measure something."""

    def __init__(self, bad=None):
        super().__init__([0.5])
        self.energy = nn.Linear(1, 1)
        self.batches, self.bad = 0, bad

    def stages(self):
        return (Stage("joint", ("energy", "task_net"), self.updates, self.predict),)

    def updates(self, batch):
        self.batches += 1
        value = torch.tensor(float(self.batches), dtype=torch.float64)
        yield Update("energy", self.energy.weight.sum())
        yield Update("energy", self.energy.weight.sum(), measured={"length": value, "angle": -value})
        yield Update("energy", self.energy.weight.sum(), measured={"length": 10 * value})
        yield self.task_update(value)

    def task_update(self, value):
        factor = math.nan if self.batches == self.bad else 1.0
        return Update("task_net", self.task_net.weight.sum() * factor)


def test_what_updates_measure_is_averaged_in_the_history(ten_rows):
    trainer, history = fit(Measuring(), ten_rows, ten_rows, max_epochs=2, batch_size=4)
    first, second = (entry["measured"] for entry in history)
    # Batches 1, 2 and 3, then 4, 5 and 6: means over the updates that have the quantity.
    assert first == {"energy": {"length": pytest.approx(11 * 2 / 2), "angle": pytest.approx(-2)}}
    assert second == {"energy": {"length": pytest.approx(11 * 5 / 2), "angle": pytest.approx(-5)}}
    assert trainer.steps_taken == 2 * 3 * 4, "a measurement is no step"


def test_measuring_changes_neither_losses_nor_norms(ten_rows):
    class Quiet(Measuring):
        def updates(self, batch):
            for update in super().updates(batch):
                yield Update(update.network, update.loss)

    histories = []
    for kind in (Measuring, Quiet):
        torch.manual_seed(0)
        histories.append(timeless(fit(kind(), ten_rows, ten_rows, batch_size=4)[1]))
    for loud, quiet in zip(*histories, strict=True):
        assert quiet.pop("measured") == {}
        assert loud.pop("measured")
        assert loud == quiet
        assert set(loud["losses"]) == set(loud["gradient_norms"]) == {"energy", "task_net"}


def test_readings_are_named_in_the_order_of_the_steps(ten_rows):
    class Noting(Eager):
        def step(self, batch, number):
            self.seen = super().step(batch, number)
            return self.seen

    engine = Noting(torch.device("cpu"))
    Trainer(Measuring(), max_epochs=1, batch_size=10, progress=False, clip=1e9, engine=engine).fit(
        ten_rows, ten_rows
    )
    names, values = engine.seen
    plain = [("energy", "loss"), ("energy", "gradient_norm")]
    expected = [*plain, *plain, ("energy", "length"), ("energy", "angle"), *plain, ("energy", "length")]
    assert names == [*expected, ("task_net", "loss"), ("task_net", "gradient_norm")]
    assert values.shape == (len(names), 1)
    found = [
        value for (_, name), value in zip(names, values.flatten().tolist(), strict=True) if name != "loss"
    ]
    assert found == [1.0, 1.0, 1.0, -1.0, 1.0, 10.0, 1.0]  # each gradient is 1, and this is batch 1


def test_networks_may_measure_quantities_of_the_same_name(ten_rows):
    class Both(Measuring):
        def task_update(self, value):
            return Update("task_net", self.task_net.weight.sum(), measured={"length": value / 2})

    _, history = fit(Both(), ten_rows, ten_rows, max_epochs=1, batch_size=5)
    assert history[0]["measured"] == {
        "energy": {"length": pytest.approx(11 * 1.5 / 2), "angle": pytest.approx(-1.5)},
        "task_net": {"length": pytest.approx(0.75)},
    }


def test_methods_that_measure_nothing_have_an_empty_entry(train, valid):
    _, history = fit(made("seal", "nce"), train, valid, max_epochs=1)
    assert history[0]["measured"] == {}


def test_a_measurement_may_be_infinite_and_a_loss_may_not(ten_rows):
    class Wild(Measuring):
        def task_update(self, value):
            update = super().task_update(value)
            return Update("task_net", update.loss, measured={"length": torch.tensor(math.inf)})

    _, history = fit(Wild(), ten_rows, ten_rows, max_epochs=1)
    assert history[0]["measured"]["task_net"]["length"] == math.inf
    with pytest.raises(NonFiniteLoss) as caught:
        fit(Wild(bad=5), ten_rows, ten_rows, batch_size=4)
    # Four steps a batch, whatever they measure: the last of the fifth batch.
    assert str(caught.value).startswith("task_net: loss nan at optimizer step 20 ")
    assert "(stage 'joint', epoch 2, batch 2)" in str(caught.value)


def test_given_gradients_replace_the_losss_own(ten_rows):
    class Given(Scripted):
        def updates(self, batch):
            yield Update("task_net", self.task_net.weight.sum() * 0, (torch.full((1, 1), -3.0),))

    method = Given([0.5])
    _, history = fit(method, ten_rows, ten_rows, max_epochs=1, batch_size=10, lr=0.1)
    assert history[0]["gradient_norms"]["task_net"] == pytest.approx(3.0)
    assert method.task_net.weight.item() == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize(("schedule", "steps"), [("nested", (3 + 1) * 2), ("grouped", 3 + 2)])
def test_steps_taken_counts_every_optimizer_step(train, valid, schedule, steps):
    settings = Settings(**{**SMALL.__dict__, "energy_steps": 3, "task_steps": 2, "schedule": schedule})
    trainer, _ = fit(made("seal", "nce", settings), train, valid, max_epochs=2)
    assert trainer.steps_taken == 2 * 3 * steps
    trainer, history = fit(made("seal-static", "nce", settings), train, valid, max_epochs=2)
    assert trainer.steps_taken == 2 * 3 * (1 + 1 + 2)
    assert [(entry["stage"], entry["epoch"]) for entry in history] == [
        (stage, epoch) for stage in ("noise net", "energy", "task net") for epoch in (1, 2)
    ]


def test_fitting_again_starts_the_count_and_the_history_again(train, valid):
    trainer = Trainer(net(), max_epochs=2, batch_size=16, progress=False)
    first = trainer.fit(train, valid)
    second = trainer.fit(train, valid)
    assert len(first) == len(second) == 2
    assert trainer.steps_taken == 6


# ---------------------------------------------------------------- which networks are clipped and scheduled


def distance(method, before):
    pairs = zip(method.parameters(), before, strict=True)
    return sum((now - then).square().sum().item() for now, then in pairs) ** 0.5


@pytest.mark.parametrize("unlimited", [(), ("energy",)])
def test_an_unlimited_energy_is_not_clipped_beside_a_task_net(train, valid, unlimited):
    settings = Settings(**{**SMALL.__dict__, "energy_steps": 1})
    method = made("seal", "nce", settings)
    before = {name: [p.clone() for p in net.parameters()] for name, net in method.named_children()}
    options = {"max_epochs": 1, "batch_size": 40, "lr": 0.5, "optimizer": torch.optim.SGD, "clip": 1e-3}
    _, ((entry), *_) = fit(method, train, valid, unlimited=unlimited, **options)
    norms = entry["gradient_norms"]
    assert min(norms.values()) > 0.1, "else nothing would be clipped"
    applied = dict.fromkeys(norms, 0.001) | {name: norms[name] for name in unlimited}
    for name, norm in applied.items():
        moved = distance(method.get_submodule(name), before[name])
        assert moved == pytest.approx(0.5 * norm, rel=1e-3)


@pytest.mark.parametrize(
    ("names", "kept"),
    [(("seal", "nce"), {"energy"}), (("infnet-plus", "margin"), {"energy"}), (("dvn", "regression"), set())],
)
def test_an_unlimited_energy_keeps_its_rate_beside_a_task_net_only(train, valid, names, kept):
    options = {"plateau_patience": 0, "patience_steps": 0, "max_epochs": 6, "patience": 10}
    frozen = {"energy": 1e-6, "task_net": 1e-6, "cost_net": 1e-6}  # nothing improves
    trainer, history = fit(made(*names), train, valid, lr=frozen, unlimited=("energy",), **options)
    rates = history[-1]["lr"]
    assert {name for name, rate in rates.items() if rate == 1e-6} == kept
    assert trainer.state.position.stage == 1


def test_seal_statics_energy_is_limited_while_it_is_alone(train, valid):
    trainer = Trainer(made("seal-static", "nce"), unlimited=("energy",), clip=0.5, progress=False)
    for stage in range(3):
        trainer.state.position.stage = stage
        trainer.state.prepare(trainer.engine)
        assert set(trainer.state.job.clips.values()) == {0.5}
        assert set(trainer.state.schedulers) == set(trainer.state.optimizers)


def test_a_network_without_a_clip_is_not_told_to_have_a_smaller_one(ten_rows):
    with pytest.raises(NonFiniteLoss) as caught:
        fit(NaNAt(5), ten_rows, ten_rows, batch_size=4, unlimited=("task_net",))
    assert "clip" not in str(caught.value)


# ---------------------------------------------------------------- when it diverges


@pytest.mark.parametrize("names", [("cross-entropy", "none"), ("seal", "nce"), ("seal", "margin")])
@pytest.mark.parametrize("lr", [1e6, {"energy": 1e-3, "task_net": 1e25}], ids=["both", "task net"])
def test_a_diverging_run_says_which_network_where_and_what_to_try(train, valid, names, lr):
    with pytest.raises(NonFiniteLoss) as caught:
        fit(made(*names), train, valid, lr=lr, max_epochs=20)
    message = str(caught.value)
    assert message.startswith(("task_net: ", "energy: "))
    for part in ("optimizer step", "(stage '", "epoch ", "learning rate", "clip"):
        assert part in message, message


class NaNAt(Scripted):
    """Two networks; the second's loss is NaN at one of its steps."""

    def __init__(self, bad):
        super().__init__([0.5])
        self.energy = nn.Linear(1, 1)
        self.bad, self.taken = bad, 0

    def stages(self):
        return (Stage("joint", ("energy", "task_net"), self.updates, self.predict),)

    def updates(self, batch):
        yield Update("energy", self.energy.weight.sum())
        self.taken += 1
        factor = math.nan if self.taken == self.bad else 1.0
        yield Update("task_net", self.task_net.weight.sum() * factor)


def test_the_step_that_is_not_finite_is_named_exactly(ten_rows):
    with pytest.raises(NonFiniteLoss) as caught:
        fit(NaNAt(5), ten_rows, ten_rows, batch_size=4, lr=0.25, clip=7.0)
    message = str(caught.value)
    # Three batches an epoch, two steps a batch: the fifth task step is step 10, batch 2 of epoch 2.
    assert message.startswith("task_net: loss nan at optimizer step 10 ")
    assert "(stage 'joint', epoch 2, batch 2)" in message
    assert "a smaller learning rate (now 0.25)" in message
    assert "a smaller gradient clip (now 7)" in message
    assert "a smaller energy weight" in message


def test_an_infinite_gradient_of_a_finite_loss_is_caught(ten_rows):
    class Steep(Scripted):
        def updates(self, batch):
            weight = self.task_net.weight.sum()
            yield Update("task_net", weight * 0 + 1.0, (torch.tensor([[math.inf]]),))

    with pytest.raises(NonFiniteLoss, match="task_net: gradient norm inf at"):
        fit(Steep([0.5]), ten_rows, ten_rows)


# ---------------------------------------------------------------- surroundings


def test_a_progress_bar_without_a_terminal_does_no_harm(train, valid, capsys):
    _, shown = fit(made("seal", "nce"), train, valid, progress=True)
    output = capsys.readouterr()
    assert output.out == "", "standard output belongs to results"
    _, silent = fit(made("seal", "nce"), train, valid)
    assert timeless(shown) == timeless(silent)
    assert capsys.readouterr().err == ""


def test_the_bar_shows_losses_norms_and_metric(train, valid, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("lossnet.training.progress.time.monotonic", iter(range(10**6)).__next__)
    fit(made("seal", "nce"), train, valid, progress=True)
    shown = capsys.readouterr().err
    for part in ("joint: epoch", "energy", "task_net", "|g|", "valid f1"):
        assert part in shown, part


def test_it_trains_in_a_thread(train, valid):
    results = []
    thread = threading.Thread(target=lambda: results.append(fit(net(), train, valid)[1]))
    thread.start()
    thread.join()
    assert timeless(results[0]) == timeless(fit(net(), train, valid)[1])


def test_predictions_of_all_rows_do_not_depend_on_the_batch_size(valid):
    method = net().eval()
    whole, truth = predict(method.predict, valid)
    pieces, _ = predict(method.predict, valid, batch_size=7)
    torch.testing.assert_close(whole, pieces)
    np.testing.assert_array_equal(truth.numpy(), valid.y.toarray())
    assert not whole.requires_grad


def test_predictions_of_different_widths_are_padded():
    class Ragged(Sized):
        def __len__(self):
            return 3

        def batch(self, indices):
            width = int(indices[0]) + 1
            return Batch(torch.ones(1, width), torch.ones(1, width, 2))

    relaxed, truth = predict(lambda x, mask: torch.ones(1, x.shape[1], 2), Ragged(), batch_size=1)
    assert relaxed.shape == truth.shape == (3, 3, 2)
    assert relaxed.sum((1, 2)).tolist() == [2.0, 4.0, 6.0]


def test_a_stages_rate_comes_before_its_networks(train, valid):
    rates = {"energy": 1e-4, "local energy": 0.02}
    _, history = fit(made("spen", "margin"), train, valid, lr=rates, max_epochs=1)
    assert [entry["lr"] for entry in history] == [{"energy": 0.02}, {"energy": 1e-4}]


def test_a_network_without_a_rate_is_an_error(train, valid):
    with pytest.raises(ValueError, match="lr has no rate for 'task_net', only for tasknet"):
        fit(made("cross-entropy", "none"), train, valid, lr={"tasknet": 0.1})


# ---------------------------------------------------------------- data bit by bit


def test_passes_go_on_where_the_last_stopped(train):
    """Two passes are the plain loop with one optimizer, in the trainer's order."""
    method = net()
    trainer = Trainer(method, batch_size=16, lr=0.01, weight_decay=0.0, clip=1e9, progress=False)
    plain = net()
    optimizer = torch.optim.AdamW(plain.task_net.parameters(), lr=0.01, weight_decay=0.0, fused=True)
    for _ in range(2):
        losses = []
        for rows in trainer.state.order(len(train)).split(16):
            batch = train.batch(rows)
            loss = next(plain.updates(batch)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        assert trainer.pass_over(train) == {"task_net": pytest.approx(np.mean(losses))}
    assert same_weights(method, plain)
    assert trainer.steps_taken == 6


def test_passes_leave_the_global_generator_alone_and_repeat(train):
    found = []
    for _ in range(2):
        method = made("seal", "nce")
        trainer = Trainer(method, progress=False)
        torch.manual_seed(5)
        trainer.pass_over(train)
        trainer.pass_over(train)
        found.append((torch.rand(3), method))
    assert torch.equal(found[0][0], found[1][0])
    assert same_weights(found[0][1], found[1][1])
    assert not found[0][1].training


def test_stages_cannot_be_passed_over(train):
    with pytest.raises(ValueError, match=r"trains in stages \(local energy, energy\)"):
        Trainer(made("spen", "margin"), progress=False).pass_over(train)


def test_a_truth_of_ones_and_zeros_is_told_from_others(ten_rows):
    assert are_sets(ten_rows, torch.device("cpu"))
    soft = Examples(Resident(torch.ones(9, 3)), Resident(torch.tensor([0.0, 1.0, 0.5]).expand(9, 3)))
    assert not are_sets(soft, torch.device("cpu"))
