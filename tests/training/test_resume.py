"""Checkpoints: what a stopped or killed run continues to is what it would have come to anyway."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sized
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lossnet.build import build
from lossnet.cli import main
from lossnet.data import WithUnlabelled
from lossnet.energies import exactly, implies
from lossnet.own import OwnParts
from lossnet.settings import Settings
from lossnet.task import Task
from lossnet.training import Checkpoint, CheckpointError, Interrupted, Trainer
from lossnet.training.checkpoint import pack, restore, state_of, unpack
from lossnet.training.engines.descent import descend

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
CASES = [("cross-entropy", "none"), ("seal", "nce"), ("infnet", "margin"), ("nce-energy", "nce")]
every_case = pytest.mark.parametrize("names", CASES, ids="-".join)
BATCHES = 3  # an epoch of 40 rows


def made(names, seed=0):
    torch.manual_seed(seed)
    return build(*names, SMALL, Task.of_sizes(6, 4))


def trainer(method, **options):
    # The plateau cuts rates and the patience ends stages, so that both must survive.
    options = {
        "max_epochs": 5,
        "batch_size": 16,
        "lr": {"energy": 0.02, "task_net": 0.5, "noise_net": 0.5},
        "patience": 3,
        "patience_steps": 0,
        "plateau_patience": 0,
        "progress": False,
        "seed": 5,
        **options,
    }
    return Trainer(method, **options)


def timeless(history):
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in history]


def optimizers(fitted):
    return {
        f"{name}.{index}.{key}": torch.as_tensor(value)
        for name, optimizer in fitted.state.optimizers.items()
        for index, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
    } | {
        f"{name}.lr": torch.tensor(optimizer.param_groups[0]["lr"])
        for name, optimizer in fitted.state.optimizers.items()
    }


def assert_same_run(one, history, other, other_history):
    for name, tensor in one.method.state_dict().items():
        assert torch.equal(tensor, other.method.state_dict()[name]), name
    assert timeless(history) == timeless(other_history)
    assert one.steps_taken == other.steps_taken
    states, others = optimizers(one), optimizers(other)
    assert states.keys() == others.keys()
    assert states
    for name, tensor in states.items():
        assert torch.equal(tensor, others[name]), name


class Failing(Sized):
    """A data set whose ``batch`` does something when it is asked for the n-th time."""

    def __init__(self, data, at, action):
        self.data, self.left, self.action = data, at, action

    def __len__(self):
        return len(self.data)

    def batch(self, indices):
        self.left -= 1
        if self.left == 0:
            self.action()
        return self.data.batch(indices)


def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


class PowerCutError(Exception):
    pass


def cut_power():
    raise PowerCutError


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "run" / "checkpoint.safetensors"


def uninterrupted(names, train, valid):
    fitted = trainer(made(names))
    return fitted, fitted.fit(train, valid)


# ---------------------------------------------------------------- resuming


@pytest.mark.parametrize("method", ["mean-teacher", "rules"])
@pytest.mark.parametrize("at", [2, 5, 13])
def test_with_rows_that_have_no_labels(method, at, train, valid, checkpoint):
    """The teacher and its steps are saved, and batches mix the same rows."""

    def data():
        return WithUnlabelled(train.take(range(8)), train.take(range(8, 40)).without_target())

    def made_of_rules(seed=0):
        torch.manual_seed(seed)
        known = [exactly(2), implies(0, 1, weight=2.0)] if method == "rules" else []
        own = OwnParts(rules=known)
        settings = dataclasses.replace(SMALL, ramp_up=7)
        loss = "semantic" if method == "rules" else "none"
        return build(method, loss, settings, dataclasses.replace(Task.of_sizes(6, 4), own=own))

    expected = trainer(made_of_rules(), lr=0.5)
    history = expected.fit(data(), valid)
    stopped = trainer(made_of_rules(), lr=0.5, checkpoint=checkpoint, checkpoint_every=1e9)
    failing = Failing(data(), at, press_ctrl_c)
    failing.arranged = failing.data.arranged
    with pytest.raises(Interrupted):
        stopped.fit(failing, valid)
    resumed = trainer(made_of_rules(seed=99), lr=0.5, checkpoint=checkpoint)
    assert_same_run(expected, history, resumed, resumed.fit(data(), valid, resume=True))
    assert expected.method.steps > 10


@every_case
@pytest.mark.parametrize("at", [1, 2, BATCHES, BATCHES + 2, 4 * BATCHES])
def test_after_ctrl_c_within_an_epoch(names, at, train, valid, checkpoint):
    expected, history = uninterrupted(names, train, valid)
    stopped = trainer(made(names), checkpoint=checkpoint, checkpoint_every=1e9)
    with pytest.raises(Interrupted, match=r"progress is saved in .*checkpoint.safetensors"):
        stopped.fit(Failing(train, at, press_ctrl_c), valid)
    assert Checkpoint.load(checkpoint).state["position"]["step"] == (at - 1) % BATCHES + 1
    resumed = trainer(made(names, seed=99), checkpoint=checkpoint)  # its own weights do not count
    torch.manual_seed(1234)  # nor does the global generator
    assert_same_run(expected, history, resumed, resumed.fit(train, valid, resume=True))


@every_case
@pytest.mark.parametrize("epoch", [1, 3])
def test_after_a_crash_later_than_the_last_epochs_checkpoint(names, epoch, train, valid, checkpoint):
    expected, history = uninterrupted(names, train, valid)
    crashed = trainer(made(names), checkpoint=checkpoint, checkpoint_every=0)
    with pytest.raises(PowerCutError):
        crashed.fit(Failing(train, epoch * BATCHES + 2, cut_power), valid)
    saved = Checkpoint.load(checkpoint).state["position"]
    assert saved["step"] == 0
    assert len(saved["history"]) == epoch
    resumed = trainer(made(names, seed=99), checkpoint=checkpoint)
    assert_same_run(expected, history, resumed, resumed.fit(train, valid, resume=True))


@every_case
@pytest.mark.parametrize("place", [0, -1])
def test_after_ctrl_c_while_an_epoch_is_validated(names, place, train, valid, checkpoint):
    """Of the last epoch too: whoever trains many runs would go on with the next one."""
    expected, history = uninterrupted(names, train, valid)
    # They are first read for the best constant prediction.
    at, epoch = range(2, len(history) + 2)[place], history[place]["epoch"]
    stopped = trainer(made(names), checkpoint=checkpoint, checkpoint_every=1e9)
    with pytest.raises(Interrupted, match=rf"stopped after epoch {epoch}; progress is saved"):
        stopped.fit(train, Failing(valid, at, press_ctrl_c))
    assert Checkpoint.load(checkpoint).state["position"]["step"] == 0
    resumed = trainer(made(names, seed=99), checkpoint=checkpoint)
    assert_same_run(expected, history, resumed, resumed.fit(train, valid, resume=True))


def test_in_every_stage_and_more_than_once(train, valid, checkpoint):
    """A two-stage run stopped every fourth batch until it is done."""
    names = ("seal-static", "nce")
    expected, history = uninterrupted(names, train, valid)
    stops, resume = 0, False
    while True:
        fitted = trainer(made(names, seed=stops), checkpoint=checkpoint)
        if not resume:
            fitted = trainer(made(names), checkpoint=checkpoint)
        try:
            result = fitted.fit(Failing(train, 4, press_ctrl_c), valid, resume=resume)
            break
        except Interrupted:
            stops, resume = stops + 1, True
    assert stops >= 6
    assert {entry["stage"] for entry in result} == {"noise net", "energy", "task net"}
    assert_same_run(expected, history, fitted, result)


def test_the_schedule_was_really_cut_in_these_tests(train, valid):
    _, history = uninterrupted(("seal", "nce"), train, valid)
    assert len({entry["lr"]["energy"] for entry in history}) > 1


def test_a_finished_runs_last_checkpoint_gives_the_same_again(train, valid, checkpoint):
    fitted = trainer(made(CASES[1]), checkpoint=checkpoint, checkpoint_every=0)
    history = fitted.fit(train, valid)
    again = trainer(made(CASES[1], seed=5), checkpoint=checkpoint)
    assert_same_run(fitted, history, again, again.fit(train, valid, resume=True))


def test_a_resumed_run_may_go_on_for_longer(train, valid, checkpoint):
    short = trainer(made(CASES[0]), checkpoint=checkpoint, checkpoint_every=0, max_epochs=2)
    short.fit(train, valid)
    longer = trainer(made(CASES[0], seed=5), checkpoint=checkpoint, max_epochs=5)
    expected, history = uninterrupted(CASES[0], train, valid)
    assert_same_run(expected, history, longer, longer.fit(train, valid, resume=True))


def test_checkpoints_are_as_far_apart_as_asked(train, valid, checkpoint, monkeypatch):
    saves = []
    monkeypatch.setattr(Checkpoint, "save", lambda self, path: saves.append(path))
    trainer(made(CASES[0]), checkpoint=checkpoint, checkpoint_every=1e9).fit(train, valid)
    assert saves == []
    trainer(made(CASES[0]), checkpoint=checkpoint, checkpoint_every=0, patience=9).fit(train, valid)
    assert len(saves) == 5
    trainer(made(CASES[0]), checkpoint_every=0).fit(train, valid)
    assert len(saves) == 5


def test_ctrl_c_without_a_checkpoint_promises_nothing(train, valid):
    with pytest.raises(Interrupted) as caught:
        trainer(made(CASES[0])).fit(Failing(train, 5, press_ctrl_c), valid)
    assert "saved" not in str(caught.value)
    assert "epoch 2" in str(caught.value)


def test_a_second_ctrl_c_stops_at_once_and_the_handler_comes_back(train, valid, checkpoint):
    before = signal.getsignal(signal.SIGINT)

    def twice():
        press_ctrl_c()
        press_ctrl_c()

    with pytest.raises(KeyboardInterrupt) as caught:
        trainer(made(CASES[0]), checkpoint=checkpoint).fit(Failing(train, 2, twice), valid)
    assert not isinstance(caught.value, Interrupted)
    assert not checkpoint.exists()
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(Interrupted):
        trainer(made(CASES[0])).fit(Failing(train, 2, press_ctrl_c), valid)
    assert signal.getsignal(signal.SIGINT) is before


KILLED = """
    import os, signal, sys
    from pathlib import Path
    import lossnet.run
    from functools import partial
    from lossnet.cli import main
    from lossnet.data import Examples
    from lossnet.training import Trainer

    # Checkpoints at every epoch instead of every 30 seconds, to be killed within this lifetime.
    lossnet.run.Trainer = partial(Trainer, checkpoint_every=0)
    original, left = Examples.batch, int(sys.argv[1])

    def batch(self, rows):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, rows)

    Examples.batch = batch
    sys.exit(main(sys.argv[2:]))
"""


def test_after_kill_9_within_an_epoch_of_the_real_command(tmp_path, make_data, capsys):
    """`lossnet train`, killed by the system in the middle of its third epoch, then ``--resume``."""
    data = make_data(120)
    rows = data.x.round(6).astype(str).tolist()
    labels = data.y.toarray().tolist()
    table = tmp_path / "mine.csv"
    header = ",".join([*data.feature_names, *data.label_names])
    lines = [",".join([*x, *map(str, y)]) for x, y in zip(rows, labels, strict=True)]
    table.write_text("\n".join([header, *lines]) + "\n")
    small = ["--task-hidden", "8", "--energy-hidden", "8", "--global-hidden", "4", "--samples", "4"]
    command = ["train", str(table), "--labels", "label_*", "--method", "seal", "--loss", "nce"]
    command += [*small, "--batch-size", "8", "--epochs", "5", "--quiet", "--device", "cpu"]
    assert main([*command, "--output", str(tmp_path / "whole")]) == 0
    history = (tmp_path / "whole" / "history.jsonl").read_text().splitlines()
    assert len(history) == 5

    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    killed = tmp_path / "killed"
    batches = -(-json.loads((tmp_path / "whole" / "result.json").read_text())["steps"] // 10)
    at = str(2 * (batches + 1) + batches // 2)  # the +1 is the validation's
    run = subprocess.run(
        [sys.executable, str(script), at, *command, "--output", str(killed)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    assert sorted(path.name for path in killed.iterdir()) == ["checkpoint.safetensors"]
    saved = Checkpoint.load(killed / "checkpoint.safetensors").state["position"]
    assert (saved["epoch"], saved["step"]) == (2, 0)

    assert main([*command, "--output", str(killed), "--resume"]) == 0
    whole = tmp_path / "whole"
    name = Path("model", "model.safetensors")
    assert (killed / name).read_bytes() == (whole / name).read_bytes()
    one, other = (json.loads((f / "result.json").read_text()) for f in (whole, killed))
    for key in ("metrics", "steps", "epochs", "settings", "seed"):
        assert one[key] == other[key], key
    histories = (
        timeless(map(json.loads, (f / "history.jsonl").read_text().splitlines())) for f in (whole, killed)
    )
    assert next(histories) == next(histories)
    assert not (killed / "checkpoint.safetensors").exists()
    capsys.readouterr()


# ---------------------------------------------------------------- the file


def test_a_checkpoint_comes_back_bit_for_bit(checkpoint):
    tensors = {
        "a/w": torch.randn(3, 2, dtype=torch.float64),
        "a/step": torch.tensor(7.0),
        "rng": torch.get_rng_state(),
    }
    state = {"epoch": 3, "best": 0.1 + 0.2, "low": float("-inf"), "names": ["ä", "β"]}
    Checkpoint(tensors, state).save(checkpoint)
    loaded = Checkpoint.load(checkpoint)
    assert loaded.state == state
    assert loaded.tensors.keys() == tensors.keys()
    assert all(torch.equal(loaded.tensors[name], tensors[name]) for name in tensors)
    assert loaded.part("a").keys() == {"w", "step"}


def test_moments_lie_in_memory_as_their_parameters_do(checkpoint):
    torch.manual_seed(0)
    net = torch.nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
    optimizer, other = (torch.optim.AdamW(net.parameters(), fused=True) for _ in range(2))
    descend(optimizer, [torch.randn_like(part) for part in net.parameters()], 1.0)
    tensors = {}
    packed = pack(state_of(optimizer), "optimizer", tensors)
    Checkpoint(tensors, {"optimizer": packed}).save(checkpoint)
    saved = Checkpoint.load(checkpoint)
    restore(other, unpack(saved.state["optimizer"], saved.tensors))
    for name in ("exp_avg", "exp_avg_sq"):
        restored, kept = (one.state[net.weight][name] for one in (other, optimizer))
        assert restored.stride() == net.weight.stride()
        assert torch.equal(restored, kept)


def test_tensors_that_share_memory_are_saved(checkpoint):
    shared = torch.arange(6.0)
    Checkpoint({"one": shared, "two": shared, "view": shared[::2]}, {}).save(checkpoint)
    assert Checkpoint.load(checkpoint).tensors["view"].tolist() == [0, 2, 4]


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_an_interrupted_save_leaves_the_old_file(checkpoint, monkeypatch, call):
    Checkpoint({"w": torch.zeros(2)}, {"epoch": 1}).save(checkpoint)
    before = checkpoint.read_bytes()

    def fail(*arguments):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="disk is full"):
        Checkpoint({"w": torch.ones(2)}, {"epoch": 2}).save(checkpoint)
    assert checkpoint.read_bytes() == before
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]


def test_nothing_is_pickled(train, valid, checkpoint):
    trainer(made(CASES[1]), checkpoint=checkpoint, checkpoint_every=0).fit(train, valid)
    assert load_file(checkpoint), "safetensors can read it, so there is nothing else in it"


def damage(kind, path):
    content = path.read_bytes()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "truncated header":
        path.write_bytes(content[:20])
    elif kind == "garbage":
        path.write_bytes(os.urandom(500))
    elif kind == "text":
        path.write_text("not a checkpoint\n" * 20)
    elif kind == "foreign":
        save_file({"w": torch.ones(2)}, path)
    elif kind == "other format":
        save_file({"w": torch.ones(2)}, path, metadata={"format": "99", "state": "{}"})
    elif kind == "bad state":
        save_file({"w": torch.ones(2)}, path, metadata={"format": "3", "state": "{"})
    elif kind == "no state":
        save_file({"w": torch.ones(2)}, path, metadata={"format": "3"})
    elif kind == "empty state":
        save_file({"w": torch.ones(2)}, path, metadata={"format": "3", "state": "{}"})
    elif kind == "missing":
        path.unlink()


DAMAGES = ["empty", "truncated", "truncated header", "garbage", "text", "foreign"]
DAMAGES += ["other format", "bad state", "no state", "empty state", "missing"]


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_checkpoint_that_cannot_be_used_says_so(kind, train, valid, checkpoint):
    trainer(made(CASES[0]), checkpoint=checkpoint, checkpoint_every=0).fit(train, valid)
    damage(kind, checkpoint)
    method = made(CASES[0], seed=9)
    before = {name: part.clone() for name, part in method.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        trainer(method, checkpoint=checkpoint).fit(train, valid, resume=True)
    assert str(checkpoint) in str(caught.value)
    assert all(torch.equal(before[name], part) for name, part in method.state_dict().items())
    if kind == "other format":
        assert "99" in str(caught.value)


def test_resuming_needs_a_checkpoint_file(train, valid):
    with pytest.raises(CheckpointError, match="resuming needs a checkpoint"):
        trainer(made(CASES[0])).fit(train, valid, resume=True)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"batch_size": 8},
        {"lr": 0.01},
        {"weight_decay": 0.5},
        {"clip": 1.0},
        {"plateau_factor": 0.1},
        {"plateau_patience": 9},
        {"warm_up": 2},
        {"lr_decay": "linear"},
        {"monitor": "micro_f1"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_resuming_with_other_settings_is_refused(change, train, valid, checkpoint):
    trainer(made(CASES[0]), checkpoint=checkpoint, checkpoint_every=0).fit(train, valid)
    with pytest.raises(CheckpointError) as caught:
        trainer(made(CASES[0]), checkpoint=checkpoint, **change).fit(train, valid, resume=True)
    (name,) = change
    assert f"saved with {name}=" in str(caught.value)
    assert str(checkpoint) in str(caught.value)


def test_more_epochs_are_refused_where_rates_fall_to_the_last_one(train, valid, checkpoint):
    options = {"checkpoint": checkpoint, "lr_decay": "linear"}
    trainer(made(CASES[0]), checkpoint_every=0, **options).fit(train, valid)
    with pytest.raises(CheckpointError, match="saved with max_epochs=5, resumed with max_epochs=9"):
        trainer(made(CASES[0]), max_epochs=9, **options).fit(train, valid, resume=True)


def test_a_checkpoint_that_does_not_say_what_it_was_of_is_refused(train, valid, checkpoint):
    trainer(made(CASES[0]), checkpoint=checkpoint, checkpoint_every=0).fit(train, valid)
    resumed = trainer(made(CASES[0]), checkpoint=checkpoint, identity={"data_digest": "0f"})
    with pytest.raises(CheckpointError, match=r"did not note its data_digest; delete it and start again"):
        resumed.fit(train, valid, resume=True)


def test_resuming_other_networks_is_refused(train, valid, checkpoint):
    trainer(made(CASES[0]), checkpoint=checkpoint, checkpoint_every=0).fit(train, valid)
    wider = build(*CASES[0], dataclasses.replace(SMALL, task_hidden=9), Task.of_sizes(6, 4))
    for other in (made(CASES[1]), wider):
        with pytest.raises(CheckpointError, match="other networks"):
            trainer(other, checkpoint=checkpoint).fit(train, valid, resume=True)
