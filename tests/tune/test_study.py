import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="needs lossnet[tune]")

import lossnet
from lossnet.cli import main
from lossnet.settings import Settings, read_recipe
from lossnet.training import NonFiniteLoss
from lossnet.tune import Choice, Range, Search, search, study


def quietly(wanted):
    return search(wanted, tell=lambda line: None)


def outline(found):
    return [(trial["number"], trial["state"], trial["f1"], trial["settings"]) for trial in found.trials]


def test_a_search_leaves_a_recipe_that_trains_to_what_it_says(make_run, tmp_path):
    run = make_run()
    found = quietly(Search(run, trials=4, output=tmp_path / "out"))
    best = found.complete[0]
    assert best["f1"] == max(trial["f1"] for trial in found.trials)
    recipe = read_recipe(tmp_path / "out" / "best.yaml")
    assert (recipe.pop("method"), recipe.pop("loss")) == ("cross-entropy", "none")
    settings = Settings(**recipe)
    assert settings.task_lr == best["settings"]["task_lr"]
    again = lossnet.train(lossnet.Run(**{**vars(run), "settings": settings}))
    assert again["metrics"]["valid"]["f1"] == best["f1"]
    lines = (tmp_path / "out" / "trials.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == found.trials
    assert [trial["number"] for trial in found.trials] == [0, 1, 2, 3]


def test_the_settings_to_start_from_are_the_first_trial(make_run, tmp_path):
    run = make_run(task_lr=0.02, task_dropout=0.1)
    found = quietly(Search(run, trials=1, output=tmp_path))
    assert found.trials[0]["settings"]["task_lr"] == 0.02
    plain = lossnet.train(run)["metrics"]["valid"]["f1"]
    assert found.trials[0]["f1"] == plain


def test_test_data_are_never_looked_at(make_run, tmp_path, monkeypatch):
    """The same trials to the last bit whatever the test rows are, and no trial is given any."""
    sizes, fit = [], study.fit

    def spied(run, data, **others):
        sizes.append((len(data.train), len(data.valid), len(data.test)))
        return fit(run, data, **others)

    monkeypatch.setattr(study, "fit", spied)
    one, other = (
        quietly(Search(make_run(test_seed), trials=3, output=tmp_path / str(test_seed)))
        for test_seed in (0, 5)
    )
    assert Path(make_run(0).data).read_text() != Path(make_run(5).data).read_text()
    assert outline(one) == outline(other)
    assert set(sizes) == {(36, 12, 0)}
    assert all("test" not in trial for trial in one.trials)


def test_a_search_that_goes_on_is_the_search_that_was_not_interrupted(make_run, tmp_path):
    wanted = [Search(make_run(), trials=count, output=tmp_path / "parts") for count in (2, 5)]
    whole = quietly(Search(make_run(), trials=5, output=tmp_path / "whole"))
    assert len(quietly(wanted[0]).trials) == 2
    assert outline(quietly(wanted[1])) == outline(whole)
    assert outline(quietly(wanted[1])) == outline(whole)  # there is nothing left to do


def test_another_search_under_the_same_name_is_refused(make_run, tmp_path):
    quietly(Search(make_run(), trials=1, output=tmp_path))
    with pytest.raises(ValueError, match=r"other settings \(epochs\).*give the same command"):
        quietly(Search(make_run(epochs=4), trials=1, output=tmp_path))
    with pytest.raises(ValueError, match=r"other space \(task_lr\)"):
        quietly(Search(make_run(), trials=1, output=tmp_path, space={"task_lr": Choice((0.1, 0.2))}))
    quietly(Search(make_run(epochs=4), trials=1, output=tmp_path, study="other"))


def test_spaces_of_ones_own_and_fixed_settings(make_run, tmp_path):
    wanted = Search(
        make_run(),
        trials=6,
        output=tmp_path,
        space={"batch_size": Choice((8, 16)), "task_lr": Range(0.1, 0.2)},
        fixed=frozenset({"weight_decay"}),
    )
    tried = [trial["settings"] for trial in quietly(wanted).trials]
    assert all(set(one) == {"task_lr", "task_dropout", "batch_size"} for one in tried)
    assert {one["batch_size"] for one in tried} <= {8, 16}
    assert all(0.1 <= one["task_lr"] <= 0.2 for one in tried)
    names = frozenset({"task_lr", "weight_decay", "task_dropout"})
    with pytest.raises(ValueError, match="nothing to search"):
        quietly(Search(make_run(), output=tmp_path, fixed=names))


def test_ctrl_c_loses_nothing_but_the_trial_that_was_running(make_run, tmp_path, monkeypatch):
    calls, fit = [], study.fit

    def interrupted(*given, **others):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return fit(*given, **others)

    whole = quietly(Search(make_run(), trials=3, output=tmp_path / "whole"))
    monkeypatch.setattr(study, "fit", interrupted)
    wanted = Search(make_run(), trials=3, output=tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        quietly(wanted)
    found = quietly(wanted)
    assert [trial["state"] for trial in found.trials] == ["complete", "fail", "complete", "complete"]
    assert found.trials[3]["retry_of"] == 1
    assert found.trials[3]["settings"] == found.trials[1]["settings"] == whole.trials[1]["settings"]
    assert found.trials[3]["f1"] == whole.trials[1]["f1"]


def test_trials_that_cannot_be_trained_are_told_of_and_counted(make_run, tmp_path, monkeypatch):
    errors, fit = [NonFiniteLoss("loss inf"), None, ValueError("no such thing"), None], study.fit

    def failing(*given, **others):
        error = errors.pop(0)
        if error is not None:
            raise error
        return fit(*given, **others)

    monkeypatch.setattr(study, "fit", failing)
    wanted = Search(make_run(), trials=4, output=tmp_path)
    with pytest.raises(ValueError, match="no such thing"):
        quietly(wanted)
    found = quietly(wanted)
    assert [trial["state"] for trial in found.trials] == ["pruned", "complete", "fail", "complete"]
    assert found.trials[0]["why"] == "diverged: loss inf"
    assert found.trials[2]["why"] == "ValueError: no such thing"


def test_trials_worse_than_the_median_are_pruned_in_the_last_stage(make_run, tmp_path):
    """Five trials that learn, then one that cannot; the static method's first stage is not compared."""
    run = make_run(method="seal-static", loss="nce", epochs=6, task_lr=0.05)
    rates = (0.05, 0.051, 0.052, 0.053, 0.054, 1e-9)
    wanted = Search(run, trials=1, output=tmp_path, space={"task_lr": Choice(rates)}, fixed=FIXED)
    for rate in rates:
        rated = lossnet.Run(**{**vars(run), "settings": Settings(**{**vars(run.settings), "task_lr": rate})})
        reporter = study._Worker.__init__
        assert reporter
        del rated
    found = quietly(Search(**{**vars(wanted), "trials": 12}))
    by_rate = {}
    for trial in found.trials:
        by_rate.setdefault(trial["settings"]["task_lr"], set()).add(trial["state"])
        assert trial["epochs"] <= 6
    assert found.trials


FIXED = frozenset({"energy_lr", "weight_decay", "task_dropout", "energy_dropout", "energy_weight"})
