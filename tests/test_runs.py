"""Many runs: seeds and settings, a folder for each, and a table."""

import json
import os
import signal

import pytest
import torch

from lossnet.cli import main
from lossnet.model import load
from lossnet.recipes import recipe_settings
from lossnet.run import Run, train
from lossnet.runs import parse_sweep, summary, train_many, variants
from lossnet.settings import Settings
from lossnet.training import Interrupted, NonFiniteLoss
from lossnet.training.engines import Eager
from lossnet.training.state import TrainingState

SMALL = Settings(
    task_hidden=8, energy_hidden=8, global_hidden=4, samples=2, energy_steps=1, epochs=2, batch_size=128
)


def run_of(tmp_path=None, method="seal", **changes):
    settings = Settings(**{**vars(SMALL), **changes})
    return Run("digits-pairs", method, settings=settings, output=tmp_path, device="cpu", progress=False)


def results_in(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_seeds_together_leave_what_lone_runs_leave(tmp_path):
    told = []
    results = train_many(variants(run_of(tmp_path / "many"), 2), say=told.append)
    assert told == []  # nothing was in the way
    assert results_in(tmp_path / "many") == results
    for seed in (0, 1):
        alone = train(Run(**{**vars(run_of(tmp_path / f"lone-{seed}")), "seed": seed}))
        folder = tmp_path / "many" / f"seed={seed}"
        assert {path.name for path in folder.iterdir()} == {"history.jsonl", "model", "result.json"}
        one, other = results[seed], json.loads((folder / "result.json").read_text())
        assert one == other
        for key in ("dataset", "split", "method", "loss", "seed", "settings", "steps", "epochs"):
            assert one[key] == alone[key], key
        assert one["metrics"]["test"] == pytest.approx(alone["metrics"]["test"], abs=5e-3)
        for mine, its in zip(
            load(folder).method.parameters(),
            load(tmp_path / f"lone-{seed}").method.parameters(),
            strict=True,
        ):
            torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-4)
    table = (tmp_path / "many" / "table.md").read_text()
    assert "±" in table
    assert "0, 1" in table


def test_a_method_without_stacked_form_trains_one_by_one(tmp_path):
    told = []
    run = run_of(tmp_path, "spen", epochs=1, inference_steps=1)
    results = train_many(variants(run, 2), say=told.append)
    assert [result["seed"] for result in results] == [0, 1]
    assert told == ["2 runs one after another: SPEN has no stacked form"]


def test_a_sweep_runs_every_combination(tmp_path, capsys):
    command = ["train", "digits-pairs", "--method", "cross-entropy", "--epochs", "1", "--batch-size", "128"]
    command += ["--task-hidden", "8", "--quiet", "--device", "cpu", "--seeds", "2", "--output", str(tmp_path)]
    command += ["--sweep", "task_lr=1e-3,0.1", "task_layers=1,2"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "results.jsonl and table.md" in shown.out
    results = results_in(tmp_path)
    chosen = {(r["settings"]["task_lr"], r["settings"]["task_layers"], r["seed"]) for r in results}
    assert chosen == {(lr, layers, seed) for lr in (1e-3, 0.1) for layers in (1, 2) for seed in (0, 1)}
    heading, rows = summary(results, ["task_lr", "task_layers"])
    assert len(rows) == 4
    assert heading[:3] == ["task_lr", "task_layers", "valid f1"]
    assert "| 0.1 | 2 |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "task_lr=0.001-task_layers=1-seed=0" / "model").is_dir()
    assert main(command) == 2
    assert "continue with --resume" in capsys.readouterr().err
    written = (tmp_path / "results.jsonl").read_bytes()
    assert main([*command, "--resume"]) == 0  # nothing is left to do
    assert "±" in capsys.readouterr().out
    assert (tmp_path / "results.jsonl").read_bytes() == written


def test_what_is_finished_is_kept_and_the_rest_continues(tmp_path, monkeypatch):
    made = variants(run_of(tmp_path, epochs=3), 3)
    expected = train_many(variants(run_of(None, epochs=3), 3))
    train_many(made[:1])
    kept = (tmp_path / "seed=0" / "result.json").read_bytes()
    before, validated = TrainingState.close_epoch, []

    def stopping(self, metrics):
        before(self, metrics)
        validated.append(self)
        if len(validated) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TrainingState, "close_epoch", stopping)
    with pytest.raises(ValueError, match="continue with --resume"):
        train_many(made)
    resumed = [Run(**{**vars(run), "resume": True}) for run in made]
    with pytest.raises(Interrupted, match="progress of 2 runs is saved"):
        train_many(resumed)
    monkeypatch.undo()
    results = train_many(resumed)
    assert (tmp_path / "seed=0" / "result.json").read_bytes() == kept
    for one, other in zip(results, expected, strict=True):
        assert one["steps"] == other["steps"]
        assert one["metrics"]["valid"] == pytest.approx(other["metrics"]["valid"], abs=5e-3)
    assert not list(tmp_path.glob("*/checkpoint.safetensors"))
    others = [
        Run(**{**vars(run), "settings": Settings(**{**vars(run.settings), "clip": 1})}) for run in resumed
    ]
    with pytest.raises(ValueError, match="other settings"):
        train_many(others)


def test_runs_that_diverge_are_named_at_the_end(tmp_path):
    made = variants(run_of(tmp_path, "cross-entropy"), 1, {"task_lr": [1e38, 0.001]})
    told = []
    with pytest.raises(NonFiniteLoss, match=r"1 of 2 runs diverged \(task_lr=1e\+38-seed=0"):
        train_many(made, say=told.append)
    assert len(results_in(tmp_path)) == 1
    assert "diverged" in told[0]


def test_runs_without_folders_are_told_apart_by_what_is_swept():
    run = Run(**{**vars(run_of(None, "cross-entropy", epochs=1)), "progress": True})
    told = []
    train_many(variants(run, 2, {"task_lr": [0.001, 0.1], "clip": [5.0]}), say=told.append)
    assert sorted(line.partition(" is finished")[0] for line in told) == [
        f"task_lr={rate}, seed {seed}" for rate in (0.001, 0.1) for seed in (0, 1)
    ]
    told.clear()
    train_many(variants(run, 2), say=told.append)
    assert [line.partition(" is finished")[0] for line in told] == ["seed 0", "seed 1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sweep", "task_lr"], "NAME=A,B,C"),
        (["--sweep", "task_lr=1,,2"], "NAME=A,B,C"),
        (["--sweep", "task_rate=1"], "unknown setting 'task_rate'"),
        (["--sweep", "task_lr=fast"], "task_lr cannot be 'fast'"),
        (["--sweep", "samples=1.5"], "samples cannot be '1.5'"),
        (["--sweep", "task_lr=-1"], "must be above 0"),
        (["--sweep", "clip=1,1.0"], "given twice"),
        (["--sweep", "clip=[1"], "--sweep clip=[1"),
        (["--sweep", "clip=1", "clip=2"], "--sweep: clip is there twice"),
        (
            ["--energy-steps", "1", "--sweep", "implicit_every=1,2"],
            "must be at most energy_steps=1",
        ),
        (["--seeds", "0"], "--seeds must be 1 or more"),
        (["--seeds", "2", "--resume"], "give its --output"),
    ],
)
def test_what_cannot_be_swept(options, message, capsys):
    assert main(["train", "digits-pairs", "--device", "cpu", *options]) == 2
    assert message in capsys.readouterr().err


def test_values_are_read_as_settings_have_them():
    assert parse_sweep("task-lr=1e-3,3") == ("task_lr", [1e-3, 3.0])
    assert parse_sweep("samples=1,2") == ("samples", [1, 2])
    assert parse_sweep("conditioned=true,false") == ("conditioned", [True, False])
    assert parse_sweep("solver=identity,neumann") == ("solver", ["identity", "neumann"])


def test_values_are_judged_beside_the_other_settings(tmp_path):
    name, values = parse_sweep("implicit_every=1,2")
    made = variants(run_of(method="implicit", energy_steps=2), 1, {name: values})
    assert [run.settings.implicit_every for run in made] == [1, 2]


def test_runs_without_settings_take_the_recipe_as_a_lone_run_does(monkeypatch):
    runs = [Run("digits-pairs", "cross-entropy", seed=seed, device="cpu", progress=False) for seed in (0, 1)]
    monkeypatch.setattr(TrainingState, "goes_on", property(lambda self: self.position.epoch < 1))
    recipe = recipe_settings("digits-pairs", "cross-entropy", "none")
    assert recipe
    for result in train_many(runs):
        assert result["loss"] == "none"
        assert {name: result["settings"][name] for name in recipe} == recipe


def test_no_runs_are_no_results():
    assert train_many([]) == []


def test_a_finished_run_on_other_data_is_not_taken_for_this_one(tmp_path):
    train_many(variants(run_of(tmp_path, "cross-entropy", epochs=1), 1))
    other = Run(**{**vars(run_of(tmp_path, "cross-entropy", epochs=1)), "data": "digits-completion"})
    with pytest.raises(ValueError, match="seed=0 holds a run on other data"):
        train_many(variants(Run(**{**vars(other), "resume": True}), 1))


def test_runs_on_a_file_that_has_changed_are_not_mixed(tmp_path):
    text = "a,b,l,m\n" + "".join(f"{i % 7},{i % 5},{i % 2},{i % 3 // 2}\n" for i in range(60))
    file, output = tmp_path / "mine.csv", tmp_path / "runs"
    file.write_text(text)
    changes = {"data": str(file), "labels": ["l", "m"], "resume": True}
    run = Run(**{**vars(run_of(output, "cross-entropy", epochs=1)), **changes})
    train_many(variants(run, 1))
    file.write_text(text.replace("\n3,", "\n4,", 1))
    with pytest.raises(ValueError, match="seed=0 holds a run on data of this name with another content"):
        train_many(variants(run, 2))
    file.write_text(text)
    path = output / "seed=0" / "result.json"
    kept = path.read_text()
    path.write_text(kept.replace("data_digest", "something"))
    with pytest.raises(ValueError, match="of an older version, which did not note its data_digest"):
        train_many(variants(run, 2))
    path.write_text(kept)
    results = train_many(variants(run, 2))
    assert len({result["data_digest"] for result in results}) == 1


def test_runs_are_on_the_same_data():
    runs = [run_of(method="cross-entropy"), run_of(method="cross-entropy")]
    runs[1] = Run(**{**vars(runs[1]), "data": "digits-completion"})
    with pytest.raises(ValueError, match="same data"):
        train_many(runs)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_folder_that_cannot_be_made_is_told_of_before_training(tmp_path, monkeypatch, seeds):
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setattr(Eager, "start_epoch", None)
    with pytest.raises(ValueError, match="taken is a file; give a folder"):
        train_many(variants(run_of(tmp_path / "taken"), seeds))
    with pytest.raises(ValueError, match="taken is a file; give a folder"):
        train(run_of(tmp_path / "taken" / "inner"))


def test_sparse_inputs_on_a_cpu_go_one_by_one(tmp_path):
    table = tmp_path / "mine.svm"
    table.write_text("".join(f"{i % 2} {1 + i % 5}:1 {6 + i % 3}:1\n" for i in range(60)))
    told = []
    run = Run(str(table), "cross-entropy", settings=Settings(**{**vars(SMALL), "epochs": 1}), device="cpu")
    train_many(variants(Run(**{**vars(run), "progress": False}), 2), say=told.append)
    assert told == ["2 runs one after another: a CPU is busy with a single run on sparse inputs"]
