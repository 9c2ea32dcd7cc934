import contextlib
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

import lossnet
from lossnet.cli import commands, main
from lossnet.recipes import read_recipe
from lossnet.settings import Settings
from lossnet.task import Task
from lossnet.training import NonFiniteLoss
from lossnet.training.engines import Eager
from lossnet.tune import Choice, Found, Range, Search, default_space, search, study

optuna = pytest.importorskip("optuna", reason="needs lossnet[tune]")
psycopg = pytest.importorskip("psycopg", reason="needs lossnet[tune]")


def quietly(wanted):
    return search(wanted, tell=lambda line: None)


def outline(found):
    return [(trial["number"], trial["state"], trial["f1"], trial["settings"]) for trial in found.trials]


def test_a_search_leaves_a_recipe_that_trains_to_what_it_says(make_run, tmp_path):
    run = make_run()
    found = quietly(Search(run, trials=2, output=tmp_path / "out"))
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
    assert [trial["number"] for trial in found.trials] == [0, 1]


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
        quietly(Search(make_run(test_seed), trials=2, output=tmp_path / str(test_seed)))
        for test_seed in (0, 5)
    )
    assert Path(make_run(0).data).read_text() != Path(make_run(5).data).read_text()
    assert outline(one) == outline(other)
    assert set(sizes) == {(36, 12, 0)}
    assert all("test" not in trial for trial in one.trials)


def test_a_search_that_goes_on_is_the_search_that_was_not_interrupted(make_run, tmp_path):
    wanted = [Search(make_run(), trials=count, output=tmp_path / "parts") for count in (1, 3)]
    whole = quietly(Search(make_run(), trials=3, output=tmp_path / "whole"))
    assert len(quietly(wanted[0]).trials) == 1
    assert outline(quietly(wanted[1])) == outline(whole)
    assert outline(quietly(wanted[1])) == outline(whole)  # there is nothing left to do


def test_another_search_under_the_same_name_is_refused(make_run, tmp_path):
    quietly(Search(make_run(), trials=1, output=tmp_path))
    with pytest.raises(ValueError, match=r"other settings \(epochs\).*give the same command"):
        quietly(Search(make_run(epochs=4), trials=1, output=tmp_path))
    with pytest.raises(ValueError, match=r"other space \(task_lr\)"):
        quietly(Search(make_run(), trials=1, output=tmp_path, space={"task_lr": Choice((0.1, 0.2))}))


def test_a_search_does_not_go_on_with_a_file_that_has_changed(make_run, tmp_path):
    quietly(Search(make_run(), trials=1, output=tmp_path))
    path = Path(make_run().data)
    heading, row, *rows = path.read_text().splitlines()
    run = make_run()
    path.write_text("\n".join([heading, *rows, row]) + "\n")
    with pytest.raises(ValueError, match=r"other data_digest: .*another --study and --output"):
        quietly(Search(run, trials=2, output=tmp_path))


def test_a_search_that_does_not_say_what_its_data_held_is_refused(make_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(study, "identity_of", lambda data: {"data": data.name, "split": data.split_name})
        quietly(Search(make_run(), trials=1, output=tmp_path))
    with pytest.raises(ValueError, match="older version, which did not note its data_digest"):
        quietly(Search(make_run(), trials=2, output=tmp_path))


def test_spaces_of_ones_own_and_fixed_settings(make_run, tmp_path):
    wanted = Search(
        make_run(),
        trials=3,
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
    assert found.trials[1]["why"] == "interrupted"
    assert found.trials[2]["retry_of"] == 1
    assert found.trials[2]["settings"] == found.trials[1]["settings"] == whole.trials[1]["settings"]
    assert found.trials[2]["f1"] == whole.trials[1]["f1"]


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


def test_a_trial_that_runs_out_of_memory_counts_and_the_search_goes_on(make_run, tmp_path, monkeypatch):
    fit, calls = study.fit, []

    def full(*given, **others):
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("no room")
        return fit(*given, **others)

    monkeypatch.setattr(study, "fit", full)
    told = []
    found = search(Search(make_run(), trials=2, output=tmp_path), tell=told.append)
    assert [trial["state"] for trial in found.trials] == ["fail", "complete"]
    assert found.trials[0]["why"] == "out of memory: no room"
    assert told[0] == "trial 0: out of memory: no room"


def test_hopeless_trials_end_early_by_their_last_stage():
    before = optuna.create_study(direction="maximize", pruner=study.PRUNER)
    for _ in range(5):
        good = optuna.create_trial(value=0.9, intermediate_values=dict.fromkeys(range(1, 9), 0.9))
        before.add_trial(good)
    report = study._Report(before.ask(), "f1", stages=2)
    for epoch in (1, 2, 3, 4, 5, 1, 2):  # a first stage, whose epochs are not compared, then the last
        report.epoch(0, {"epoch": epoch, "f1": 0.0})
    with pytest.raises(optuna.TrialPruned, match=r"after epoch 3 with f1 0\.0000"):
        report.epoch(0, {"epoch": 3, "f1": 0.0})


def test_what_is_wrong_is_said(make_run, tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match="at least 1"):
        quietly(Search(make_run(), trials=0, output=tmp_path))
    with pytest.raises(ValueError, match="is a file"):
        quietly(Search(make_run(), output=Path(make_run().data)))
    for url, complaint in {
        "nowhere": "give an address such as postgresql://",
        "postgresql://me:secret@127.0.0.1:1/none": r"postgresql://me:\*\*\*@127.0.0.1:1/none cannot be used",
        "nosql://me:secret@host/none": r"nosql://me:\*\*\*@host/none cannot be used",
    }.items():
        with pytest.raises((ValueError, OSError), match=complaint) as caught:
            quietly(Search(make_run(), output=tmp_path, storage=url))
        assert "secret" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "lossnet.tune")
    monkeypatch.delitem(sys.modules, "lossnet.tune.study")
    assert main(["tune", make_run().data, "--labels", "is_*", "--output", str(tmp_path)]) == 2
    assert "optuna is missing): pip install 'lossnet[tune]'" in capsys.readouterr().err


def test_the_command_leaves_out_what_is_given_and_prints_how_to_go_on(
    make_run, tmp_path, capsys, monkeypatch
):
    run = make_run()
    arguments = ["tune", run.data, "--split", str(run.split), "--labels", "is_*", "--quiet", "--epochs", "2"]
    arguments += ["--method", "cross-entropy", "--task-hidden", "4", "--device", "cpu", "--trials", "1"]
    arguments += ["--task-lr=0.01", "--search", "batch_size=8,16", "--output", str(tmp_path / "out")]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    (row,) = map(json.loads, (tmp_path / "out" / "trials.jsonl").read_text().splitlines())
    assert set(row["settings"]) == {"weight_decay", "task_dropout", "batch_size"}
    assert "1 trials: 1 complete" in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("to train with the best")]
    command = shlex.split(line.split(": ")[1])
    assert command[:2] == ["lossnet", "train"]
    assert main([*command[1:], "--quiet", "--device", "cpu", "--epochs", "1"]) == 0  # nothing is missing
    assert read_recipe(tmp_path / "out" / "best.yaml")["task_lr"] == 0.01

    def stopped(wanted, tell):
        raise KeyboardInterrupt

    monkeypatch.setattr("lossnet.tune.search", stopped)
    assert main(arguments) == 130
    assert "the same command goes on" in capsys.readouterr().err


def ctrl_c_in(start_epoch, epoch):
    epochs = []

    def press(self, *arguments):
        epochs.append(1)
        if len(epochs) == epoch:
            signal.raise_signal(signal.SIGINT)
        return start_epoch(self, *arguments)

    return press


@pytest.mark.parametrize("goal", ["hamming", "micro-f1"])
def test_the_best_settings_are_trained_for_the_goal_of_the_search(
    make_run, tmp_path, capsys, monkeypatch, goal
):
    run, output = make_run(), tmp_path / "out"
    arguments = ["tune", run.data, "--split", str(run.split), "--labels", "is_*", "--quiet", "--epochs", "2"]
    arguments += ["--method", "cross-entropy", "--task-hidden", "4", "--device", "cpu", "--trials", "3"]
    arguments += ["--goal", goal, "--train-best", "--output", str(output)]
    with monkeypatch.context() as patch:
        patch.setattr(Eager, "start_epoch", ctrl_c_in(Eager.start_epoch, epoch=7))  # the first of the best
        assert main(arguments) == 130
        assert "the same command goes on with the best settings" in capsys.readouterr().err
    assert (output / "best" / "checkpoint.safetensors").exists()
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    rows = [json.loads(line) for line in (output / "trials.jsonl").read_text().splitlines()]
    metric, choose = {"hamming": ("hamming_loss", min), "micro-f1": ("micro_f1", max)}[goal]
    done = [row for row in rows if row["state"] == "complete"]
    best = choose(done, key=lambda row: row[metric])
    result = json.loads((output / "best" / "result.json").read_text())
    assert best["settings"].items() <= result["settings"].items()
    assert result["goal"] == goal
    assert f"{result['metrics']['test']['f1']:.4f}" in printed
    assert "to train with the best settings" not in printed
    assert main(arguments) == 2
    assert "out/best already holds a result" in capsys.readouterr().err


def test_the_best_trials_can_be_read_on_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = [*default_space("implicit", "nce", Settings(), Task.of_sizes(4, 2)), "inference_lr"]
    trials = [
        {"number": 100 + place, "state": "complete", "f1": 0.7654321, "epochs": 100, "seconds": 1234.56}
        | {"settings": dict.fromkeys(names, 1.234e-05)}
        for place in range(8)
    ]
    commands.show_trials(Found(trials, "f1", tmp_path))
    shown = capsys.readouterr().out
    assert shown.count("0.7654") == shown.count("1234.6") == 5
    assert all(f"{name} " in shown for name in names)
    assert shown.count("1.23e-05") == 5 * len(names)
    assert "…" not in shown


def test_a_flag_that_is_cut_short_is_refused(make_run, tmp_path, capsys):
    """It would be taken for the setting's value, and the setting be searched nevertheless."""
    run = make_run()
    with pytest.raises(SystemExit):
        main(["tune", run.data, "--labels", "is_*", "--task-drop", "0.1", "--output", str(tmp_path / "out")])
    assert "--task-drop" in capsys.readouterr().err


def test_a_folder_is_for_one_study(make_run, tmp_path):
    quietly(Search(make_run(), trials=1, output=tmp_path / "out"))
    best = (tmp_path / "out" / "best.yaml").read_bytes()
    with pytest.raises(ValueError, match="holds the study 'mine0-cross-entropy-none'"):
        quietly(Search(make_run(method="seal"), trials=1, output=tmp_path / "out"))
    assert (tmp_path / "out" / "best.yaml").read_bytes() == best


def test_settings_that_do_not_go_together_are_tried_no_further(make_run, tmp_path):
    space = {"implicit_every": Choice((4,)), "energy_steps": Choice((2, 4))}
    names = default_space("implicit", "nce", Settings(), Task.of_sizes(4, 2))
    run = make_run(method="implicit", epochs=1, energy_steps=4)
    found = quietly(Search(run, 6, space, fixed=frozenset(names), output=tmp_path / "out"))
    ends = {trial["settings"]["energy_steps"]: (trial["state"], trial.get("why")) for trial in found.trials}
    assert ends[4] == ("complete", None)
    assert ends[2] == ("pruned", "implicit_every must be at most energy_steps=2, not 4")


# ---------------------------------------------------------------- several workers


@pytest.fixture(scope="session")
def postgresql():
    """The address of a PostgreSQL server of our own, in a folder that goes with it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    tool = shutil.which("initdb") or (str(found[-1]) if found else None)
    if tool is None:
        pytest.skip("no PostgreSQL server here (Debian: apt-get install postgresql)")
    programs = Path(tool).resolve().parent
    folder = Path(tempfile.mkdtemp(prefix="lossnet-postgresql-"))
    user = []
    if os.geteuid() == 0:  # the server refuses to run as root
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL does not run as root, and there is no runuser")
        shutil.chown(folder, "postgres")
        user = ["runuser", "-u", "postgres", "--"]

    def start(program, *arguments):
        command = [*user, str(programs / program), "-D", str(folder / "data"), *arguments]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=120)

    start("initdb", "--auth=trust", "--username=postgres", "--no-sync")
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    start("pg_ctl", "--wait", "--log", str(folder / "log"), "--options", options, "start")
    try:
        yield f"postgresql://postgres@/postgres?host={folder}"
    finally:
        start("pg_ctl", "--wait", "--mode", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["file", "postgresql"])
def storage(request):
    return "" if request.param == "file" else request.getfixturevalue("postgresql")


def start_worker(arguments):
    """``lossnet tune`` in a process of its own, a fork: that spares it the imports."""
    worker = multiprocessing.get_context("fork").Process(target=_tune, args=(arguments,))
    worker.start()
    return worker


def _tune(arguments):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os._exit(main(arguments))


def test_of_three_workers_one_is_killed_and_all_trials_are_accounted_for(
    make_run, tmp_path, storage, monkeypatch
):
    monkeypatch.setattr(study, "HEARTBEAT", 1)
    monkeypatch.setattr(study, "GRACE", 8)
    run, trials = make_run(epochs=12), 4
    flags = {"split": run.split, "output": tmp_path / "out", "trials": trials, "epochs": 12, "patience": 12}
    flags |= {"method": run.method, "task-hidden": 4, "study": "shared", "device": "cpu"}
    arguments = ["tune", run.data, "--labels", "is_*", "--quiet"]
    arguments += [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    if storage:
        arguments += ["--storage", storage]
    workers = [start_worker(arguments) for _ in range(3)]
    killed = kill_one_at_work(tmp_path / "out", storage, workers)
    for worker in workers:
        worker.join(120)
    assert sorted(worker.exitcode for worker in workers) == [-signal.SIGKILL, 0, 0]

    rows = [json.loads(line) for line in (tmp_path / "out" / "trials.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "surplus" not in row]
    assert len(rows) == trials + 1
    lost = [row for row in rows if row["state"] == "fail"]
    assert [row["worker"].endswith(f":{killed}") for row in lost] == [True]
    (again,) = [row for row in rows if row.get("retry_of") == lost[0]["number"]]
    assert lost[0]["settings"].items() <= again["settings"].items()
    assert not again["worker"].endswith(f":{killed}")
    done = [row for row in rows if row["state"] in ("complete", "pruned")]
    assert len(done) == trials
    assert all(row["state"] == "pruned" or row["f1"] is not None for row in done)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(study, "HEARTBEAT", 1)
    monkeypatch.setattr(study, "GRACE", 1)


def opened(output):
    """The study that a search has left, as another worker has it."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{output / 'study.db'}")
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage)


def test_a_trial_is_dropped_where_another_worker_begins_the_last_one(make_run, tmp_path, monkeypatch):
    fit = study.fit

    def beside(run, data, follow):
        other = opened(tmp_path)
        if len(other.trials) == 1:  # a worker begins the second and last trial, and ends it
            other.tell(other.ask(), 0.5)
            monkeypatch.setattr(study._Worker, "some_left", lambda worker: len(other.trials) < 3)
        return fit(run, data, follow=follow)

    monkeypatch.setattr(study, "fit", beside)
    told = []
    found = search(Search(make_run(), trials=2, output=tmp_path), tell=told.append)
    assert [trial["state"] for trial in found.trials] == ["complete", "complete", "fail"]
    assert found.trials[2]["surplus"]
    assert len(told) == 1
    monkeypatch.undo()
    more = quietly(Search(make_run(), trials=3, output=tmp_path))
    assert [trial["state"] for trial in more.trials] == ["complete", "complete", "fail", "complete"]


def test_a_lost_trial_that_was_put_back_twice_is_trained_once(make_run, tmp_path):
    quietly(Search(make_run(), trials=1, output=tmp_path))
    other = opened(tmp_path)
    other.tell(other.ask(), state=optuna.trial.TrialState.FAIL)
    for _ in range(2):
        other.enqueue_trial({}, user_attrs={"retry_of": 1})
    found = quietly(Search(make_run(), trials=2, output=tmp_path))
    assert [trial["state"] for trial in found.trials] == ["complete", "fail", "complete", "fail"]
    assert found.trials[3]["surplus"]


def test_a_trial_whose_worker_died_before_its_first_heartbeat_is_made_up_for(
    make_run, tmp_path, impatient, monkeypatch
):
    quietly(Search(make_run(), trials=1, output=tmp_path))
    opened(tmp_path).ask()
    found = quietly(Search(make_run(), trials=2, output=tmp_path))
    assert [trial["state"] for trial in found.trials] == ["complete", "fail", "complete"]
    assert found.trials[2]["retry_of"] == 1


def test_a_trial_that_was_taken_away_is_told_of_and_left_to_the_other_worker(make_run, tmp_path, monkeypatch):
    fit = study.fit

    def slow(run, data, follow):
        other = opened(tmp_path)
        if len(other.trials) == 1:
            other.tell(0, state=optuna.trial.TrialState.FAIL)
            other.enqueue_trial(other.trials[0].params, user_attrs={"retry_of": 0})
        return fit(run, data, follow=follow)

    monkeypatch.setattr(study, "fit", slow)
    told = []
    found = search(Search(make_run(), trials=1, output=tmp_path), tell=told.append)
    assert told[0] == "trial 0: too long without a heartbeat, another worker has it"
    assert [trial["state"] for trial in found.trials] == ["fail", "complete"]


def test_a_trial_that_kills_three_workers_is_given_up(make_run, tmp_path, impatient, monkeypatch):
    wanted = Search(make_run(), trials=1, output=tmp_path)

    def deadly(run, data, follow):
        while "worker" not in opened(tmp_path).trials[-1].user_attrs:  # until there is a heartbeat
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(study, "fit", deadly)
        for _ in range(3):
            worker = multiprocessing.get_context("fork").Process(target=quietly, args=(wanted,), daemon=True)
            worker.start()
            worker.join(60)
            assert worker.exitcode == -signal.SIGKILL
    found = quietly(wanted)
    assert [trial["state"] for trial in found.trials] == ["fail"] * 3
    assert [trial.get("retry_of") for trial in found.trials] == [None, 0, 1]


def kill_one_at_work(output, url, workers):
    """Kills the first worker that is seen in the middle of a trial; its process number."""
    ids = {worker.pid for worker in workers}
    query = """
        SELECT value_json FROM trials JOIN trial_user_attributes USING (trial_id)
        WHERE state = 'RUNNING' AND key = 'worker' AND 2 < (
            SELECT COUNT(*) FROM trial_intermediate_values AS value WHERE value.trial_id = trials.trial_id)
    """
    patience = time.monotonic() + 120
    while time.monotonic() < patience:
        time.sleep(0.02)
        with contextlib.suppress(sqlite3.OperationalError, psycopg.Error):  # no worker has made it yet
            connection = psycopg.connect(url) if url else sqlite3.connect(output / "study.db", timeout=9)
            with contextlib.closing(connection):
                found = [int(json.loads(row[0]).rpartition(":")[2]) for row in connection.execute(query)]
            for pid in ids.intersection(found):
                os.kill(pid, signal.SIGKILL)
                return pid
    raise AssertionError("no worker was seen at work")
