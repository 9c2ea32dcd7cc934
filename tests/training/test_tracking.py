"""Trackers are told of every epoch, and none can stop a run."""

from __future__ import annotations

import json
import sys
from unittest.mock import MagicMock

import pytest

from lossnet.cli import main
from lossnet.run import Run, train
from lossnet.settings import Settings
from lossnet.training import NonFiniteLoss, Trainer
from lossnet.training.tracking import TRACKERS, tracker

QUICK = Settings(epochs=2, task_hidden=4, batch_size=256)


def run(tmp_path, track, **options):
    given = {"settings": QUICK, "output": tmp_path / "run", "device": "cpu", "progress": False, **options}
    return train(Run("digits-pairs", "cross-entropy", track=track, **given))


def test_tensorboard_has_what_the_history_has(tmp_path):
    result = run(tmp_path, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    for tag, values in {
        "valid/f1": [entry["valid"]["f1"] for entry in history],
        "losses/task_net": [entry["losses"]["task_net"] for entry in history],
        "lr/task_net": [entry["lr"]["task_net"] for entry in history],
    }.items():
        assert [event.step for event in found.Scalars(tag)] == [1, 2]
        assert [event.value for event in found.Scalars(tag)] == pytest.approx(values)
    (last,) = found.Scalars("result/test/f1")
    assert last.value == pytest.approx(result["metrics"]["test"]["f1"])
    assert "task_hidden: 4" in str(found.Tensors("settings/text_summary")[0])


@pytest.fixture
def library(monkeypatch, request):
    """A module that takes every call."""
    fake = MagicMock(name=request.param)
    monkeypatch.setitem(sys.modules, request.param, fake)
    return fake


@pytest.mark.parametrize("library", ["mlflow"], indirect=True)
def test_mlflow_is_told(library, tmp_path):
    result = run(tmp_path, "mlflow", output=None)
    library.start_run.assert_called_once_with(run_name="digits-pairs cross-entropy none seed 0")
    (settings,) = library.log_params.call_args.args
    assert settings["task_hidden"] == 4
    assert settings["method"] == "cross-entropy"
    first, second, last = library.log_metrics.call_args_list
    assert (first.kwargs["step"], second.kwargs["step"]) == (1, 2)
    assert set(first.args[0]) >= {"valid/f1", "losses/task_net", "gradient_norms/task_net", "seconds"}
    assert last.args[0]["result/test/f1"] == result["metrics"]["test"]["f1"]
    library.end_run.assert_called_once_with("FINISHED")


@pytest.mark.parametrize("library", ["wandb"], indirect=True)
def test_wandb_is_told(library, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    result = run(tmp_path, "wandb")
    given = library.init.call_args.kwargs
    assert (given["project"], given["config"]["seed"]) == ("mine", 0)
    logged = library.init.return_value
    assert [call.kwargs["step"] for call in logged.log.call_args_list] == [1, 2]
    (summary,) = logged.summary.update.call_args.args
    assert summary["result/valid/f1"] == result["metrics"]["valid"]["f1"]
    logged.finish.assert_called_once_with(exit_code=0)


@pytest.mark.parametrize("library", ["mlflow"], indirect=True)
def test_a_run_that_fails_is_told_of_too(library, tmp_path, monkeypatch):
    def fail(*arguments):
        raise NonFiniteLoss("task_net: loss nan")

    monkeypatch.setattr(Trainer, "fit", fail)
    with pytest.raises(NonFiniteLoss):
        run(tmp_path, "mlflow")
    library.log_metrics.assert_not_called()
    library.end_run.assert_called_once_with("FAILED")


@pytest.mark.parametrize("library", ["mlflow"], indirect=True)
@pytest.mark.parametrize("call", ["start_run", "log_params", "log_metrics", "end_run"])
def test_a_failing_tracker_stops_nothing(library, call, tmp_path, capsys):
    getattr(library, call).side_effect = ConnectionError("no route\nto host")
    result = run(tmp_path, "mlflow")
    assert result["epochs"] == 2
    assert (tmp_path / "run" / "result.json").exists()
    said = capsys.readouterr().err
    assert said == "lossnet: tracking failed, training goes on without it (no route to host)\n"
    assert getattr(library, call).call_count == 1


@pytest.mark.parametrize(("name", "install"), [("tensorboard", "lossnet[track]"), ("mlflow", "mlflow")])
def test_a_tracker_that_is_not_installed(name, install, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    arguments = ["train", "digits-pairs", "--track", name, "--output", str(tmp_path / "run")]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said == f"lossnet: tracking with {name} needs it installed: pip install {install}\n"
    assert not (tmp_path / "run").exists()


def test_trackers_are_found_by_name(tmp_path):
    assert list(TRACKERS) == ["tensorboard", "mlflow", "wandb"]
    with pytest.raises(ValueError, match="no tracker 'x'; there are tensorboard, mlflow, wandb"):
        tracker("x", tmp_path)
    with pytest.raises(ValueError, match="give --output"):
        tracker("tensorboard", None)


def test_no_tracking_library_is_imported_unasked():
    import subprocess

    code = "import sys, lossnet.cli; print({'tensorboard', 'mlflow', 'wandb', 'fastapi'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
