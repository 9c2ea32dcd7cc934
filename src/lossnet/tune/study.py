"""A search by any number of workers that share one study in a database.

Workers, heartbeats and retries are Optuna's: ``Study.optimize`` takes one trial at a time and leaves a
heartbeat in the database while it trains; another worker fails a trial whose heartbeat has stopped and queues
the same settings again.  A worker that is killed loses no more than one trial, and the same command goes on
with the others.  Heartbeats need a database, SQLite or PostgreSQL: Optuna's journal files have none.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from lossnet import scores
from lossnet.build import AUTO, build, names_title
from lossnet.files import write_text
from lossnet.loading import Loaded
from lossnet.run import Run, check_folder, find_device, fit, identity_of, read, resolve, settled
from lossnet.settings import Settings
from lossnet.training import NonFiniteLoss
from lossnet.training.tracking import Tracker
from lossnet.tune.space import Dimension, default_space

try:
    import optuna
    import sqlalchemy
    from optuna import Study, Trial, TrialPruned
    from optuna.exceptions import (
        DuplicatedStudyError,
        ExperimentalWarning,
        StorageInternalError,
        UpdateFinishedTrialError,
    )
    from optuna.pruners import MedianPruner
    from optuna.samplers import TPESampler
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
    from optuna.trial import FrozenTrial, TrialState
    from sqlalchemy import exc
except ImportError as error:
    raise ImportError(f"tuning needs Optuna ({error.name} is missing): pip install 'lossnet[tune]'") from None

#: seconds between two heartbeats, and without one until a trial is taken from its worker
HEARTBEAT, GRACE = 10, 60
#: A trial that has lost more workers may be what kills them.
RETRIES = 2
#: ends trials whose best epoch is below the median of the others at the same epoch
PRUNER = MedianPruner(n_startup_trials=5, n_warmup_steps=3)
#: seconds that a worker gives the one that made the study to describe it
_MAKING = 60.0


@dataclass(frozen=True)
class Search:
    """A search: a run to start from, a space, and a number of trials.

    Args:
        run: what every trial trains; its settings, or the data set's recipe, are the first trial.
        trials: how many settings to try, by all workers together.
        space: settings to search, beside or instead of those of `lossnet.tune.default_space`.
        fixed: settings that are not searched, whatever the method's own space says.
        study: its name in the storage; by default that of data, method and loss.
        storage: an address such as ``postgresql://user:password@host/name``; by default a file in ``output``.
        output: folder for ``best.yaml``, a recipe, and ``trials.jsonl``; by default ``runs/tune/STUDY``.
    """

    run: Run
    trials: int = 30
    space: Mapping[str, Dimension] = dataclasses.field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    study: str = ""
    storage: str = ""
    output: Path | None = None


@dataclass(frozen=True)
class Found:
    """The result of a search: its trials, as in ``trials.jsonl``, and its folder.

    ``metric`` is the key of what was searched for, by which the best trial is chosen.
    """

    trials: list[dict[str, Any]]
    metric: str
    output: Path

    @property
    def complete(self) -> list[dict[str, Any]]:
        """Trials that were trained to their end, the best first."""
        done = (trial for trial in self.trials if trial["state"] == "complete")
        sign = 1 if _is_lower_better(self.metric) else -1
        return sorted(done, key=lambda trial: (sign * trial[self.metric], trial["number"]))


def _is_lower_better(metric: str) -> bool:
    return scores.metric(metric).higher_is_better is False


def _metric(run: Run, data: Loaded) -> str:
    """Return the validation metric that trials are compared by: that of the run's goal, else the main one."""
    if run.goal is None:
        return scores.main_metric(data.task.space(settled(run)[2]))
    data.task.output.check_goal(run.goal)
    return data.task.output.goals[run.goal]


def search(wanted: Search, tell: Callable[[str], None] = print) -> Found:
    """Take part in a search until all trials are done.

    Needs the ``[tune]`` extra.  Test data are never looked at: trials get none.  ``tell`` is called with a
    line about each trial.

    >>> from tempfile import TemporaryDirectory
    >>> settings = Settings(epochs=2, task_hidden=8)
    >>> tiny = Run("digits-pairs", "cross-entropy", settings=settings, progress=False)
    >>> with TemporaryDirectory() as folder:
    ...     result = search(Search(tiny, trials=2, output=Path(folder)), tell=lambda line: None)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['best.yaml', 'study.db', 'trials.jsonl']
    >>> [trial["state"] for trial in result.trials], result.metric
    (['complete', 'complete'], 'f1')
    """
    if wanted.trials < 1:
        raise ValueError(f"trials must be at least 1, not {wanted.trials}")
    run = dataclasses.replace(resolve(wanted.run), output=None, resume=False, track=None)
    if run.method == AUTO:
        raise ValueError(
            "a search is for the settings of one method; name it, as cross-entropy (method=, --method)"
        )
    find_device(run.device)
    study = wanted.study or f"{Path(run.data).stem}-{run.method}-{run.loss}"
    output = wanted.output or Path("runs/tune", study)
    check_folder(output)
    wanted = dataclasses.replace(wanted, run=run, study=study, output=output)
    data = read(run)
    data = dataclasses.replace(data, test=data.test.take(np.zeros(0, dtype=np.int64)))
    space = default_space(*settled(run), data.task)
    space = {name: where for name, where in space.items() if name not in wanted.fixed} | dict(wanted.space)
    if not space:
        raise ValueError("every setting is fixed: there is nothing to search")
    output.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    calm = warnings.catch_warnings(action="ignore", category=ExperimentalWarning)  # which heartbeats are
    with calm, _storage(wanted.storage or f"sqlite:///{output / 'study.db'}") as storage:
        worker = _Worker(wanted, _open(wanted, storage, space, data), space, data, output, tell)
        worker.work()
        return worker.write()


# ---------------------------------------------------------------- the storage


class _Storage(RDBStorage):
    """A database that may be away for a moment, and knows the workers that have left a heartbeat."""

    def record_heartbeat(self, trial_id: int) -> None:
        # If it does not come back, the trial's own reports say so.
        with suppress(StorageInternalError, exc.SQLAlchemyError, UpdateFinishedTrialError):
            super().record_heartbeat(trial_id)
            self.set_trial_user_attr(trial_id, "worker", f"{socket.gethostname()}:{os.getpid()}")


@contextmanager
def _storage(address: str) -> Iterator[RDBStorage]:
    """Connect to a database; its errors have its address in them, without the password."""
    if "://" not in address:
        raise ValueError(f"--storage {address}: give an address such as postgresql://user:password@host/name")
    scheme, rest = address.split("://", 1)
    # SQLAlchemy would look for another driver than the one that we install.
    url = f"postgresql+psycopg://{rest}" if scheme in ("postgresql", "postgres") else address
    try:
        storage = _connected(url)
        try:
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()
    except (exc.SQLAlchemyError, StorageInternalError, ImportError) as error:
        cause = error.__cause__ or error
        reason = " ".join(str(getattr(cause, "orig", None) or cause).split())
        with suppress(exc.ArgumentError):
            address = sqlalchemy.engine.make_url(address).render_as_string(hide_password=True)
        raise OSError(f"the storage {address} cannot be used ({reason})") from error


def _connected(url: str, tries: int = 5) -> RDBStorage:
    """Open a storage, with several tries: workers that make its tables at once disturb each other."""
    connect = {"timeout": 60} if url.startswith("sqlite") else {}
    while True:
        tries -= 1
        try:
            return _Storage(
                url,
                engine_kwargs={"connect_args": connect, "pool_pre_ping": True},
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=_retry,
            )
        except (exc.ProgrammingError, exc.IntegrityError, exc.OperationalError, AssertionError) as error:
            unreachable = isinstance(error, exc.OperationalError) and "already exists" not in str(error)
            if unreachable or not tries:
                raise
            time.sleep(0.5)


def _open(wanted: Search, storage: RDBStorage, space: Mapping[str, Dimension], data: Loaded) -> Study:
    """Make the study with its first trial, or load it and check that it is the one asked for."""
    others = [name for name in optuna.get_all_study_names(storage) if name != wanted.study]
    if others and not wanted.storage:  # whose recipe would be overwritten
        raise ValueError(f"{wanted.output} holds the study {others[0]!r}; choose another --output")
    description = _description(wanted, space, data)
    try:
        study = optuna.create_study(
            study_name=wanted.study,
            storage=storage,
            pruner=PRUNER,
            direction="minimize" if _is_lower_better(_metric(wanted.run, data)) else "maximize",
        )
    except DuplicatedStudyError:
        study = optuna.load_study(study_name=wanted.study, storage=storage, pruner=PRUNER)
        patience = time.monotonic() + _MAKING
        while "description" not in study.user_attrs and time.monotonic() < patience:
            time.sleep(0.25)
    known = study.user_attrs.get("description")
    if known is None:  # it is new, or its worker was killed before this
        settings = description["settings"]
        start = {name: settings[name] for name, where in space.items() if settings[name] in where}
        study.enqueue_trial(start, skip_if_exists=True)
        study.set_user_attr("description", description)
    else:
        _compare(wanted, known, description)
    return study


def _description(wanted: Search, space: Mapping[str, Dimension], data: Loaded) -> dict[str, Any]:
    """Return what must be the same for trials to be comparable, as JSON."""
    method, loss, settings = settled(wanted.run)
    described = {
        **identity_of(data),
        "method": method,
        "loss": loss,
        "goal": wanted.run.goal,
        "seed": wanted.run.seed,
        "settings": dataclasses.asdict(settings),
        "space": {name: dataclasses.asdict(where) for name, where in space.items()},
    }
    return json.loads(json.dumps(described))  # type: ignore[no-any-return]


def _compare(wanted: Search, known: Mapping[str, Any], description: Mapping[str, Any]) -> None:
    """Raise a ValueError for a study of something else."""
    for name, now in description.items():
        if name not in known:
            what = f"the study {wanted.study!r} is of an older version, which did not note its {name}"
            raise ValueError(f"{what}; give another --study and --output")
        before = known[name]
        if before != now:
            if isinstance(before, dict) and isinstance(now, dict):
                changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
                name = f"{name} ({', '.join(changed)})"
                before, now = ({key: side.get(key) for key in changed} for side in (before, now))
            what = f"the study {wanted.study!r} has other {name}: {before}, and this command {now}"
            raise ValueError(f"{what}; give the same command, or another --study and --output")


# ---------------------------------------------------------------- a worker


def _retry(study: Study, trial: FrozenTrial) -> None:
    """Queue the settings of a lost trial again, `RETRIES` times at most."""
    trial.user_attrs = {}  # those of the lost worker
    RetryHeartbeatStaleTrialCallback(max_retry=RETRIES)(study, trial)


def _retry_of(trial: FrozenTrial) -> int | None:
    """Return the number of the lost or interrupted trial that a trial repeats."""
    lost = RetryHeartbeatStaleTrialCallback.retry_history(trial)
    return lost[-1] if lost else trial.user_attrs.get("retry_of")


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial is one of those asked for; repeated and surplus ones are not."""
    return "surplus" not in trial.user_attrs and _retry_of(trial) is None


def _why(error: Exception) -> str:
    """Return why a trial has no value."""
    kinds = {NonFiniteLoss: "diverged", torch.OutOfMemoryError: "out of memory"}
    kind = next((words for kind, words in kinds.items() if isinstance(error, kind)), type(error).__name__)
    return str(error) if isinstance(error, TrialPruned) else f"{kind}: {error}"


class _SurplusError(Exception):
    """There is one trial more than was asked for."""


@dataclass
class _Worker:
    """A worker, which takes trials until none is left and none is under way."""

    wanted: Search
    study: Study
    space: Mapping[str, Dimension]
    data: Loaded
    output: Path
    tell: Callable[[str], None]
    #: the number of a trial that another worker has taken over
    taken_away: int | None = None

    def __post_init__(self) -> None:
        method, loss, self.settings = settled(self.wanted.run)
        task = self.data.task
        self.metric = _metric(self.wanted.run, self.data)
        with torch.device("meta"):
            self.stages = len(build(method, loss, self.settings, task).stages())

    def work(self) -> None:
        """Train trials, and wait for those of other workers in case one is lost."""
        survived = (torch.OutOfMemoryError, _SurplusError)
        while self.some_left() or self.some_lost():
            try:
                self.study.optimize(self.objective, catch=survived, callbacks=[self.after])
            except ValueError:
                if self.taken_away is None:
                    raise
                # Optuna's own, about a trial that had already ended.
                self.tell(f"trial {self.taken_away}: too long without a heartbeat, another worker has it")
                self.taken_away = None

    def some_left(self) -> bool:
        """Whether a trial waits, or is yet to be made."""
        trials = self.study.get_trials(deepcopy=False)
        waiting = any(trial.state == TrialState.WAITING for trial in trials)
        return waiting or sum(map(_counts, trials)) < self.wanted.trials

    def some_lost(self) -> bool:
        """Wait until a trial under way has lost its worker, or none is under way."""
        told = False
        while running := self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            fail_stale_trials(self.study)
            for trial in running:
                # Its worker was killed before its first heartbeat, so that Optuna does not miss it.
                age = datetime.now() - (trial.datetime_start or datetime.now())
                if "worker" not in trial.user_attrs and age > timedelta(seconds=GRACE):
                    with suppress(ValueError, UpdateFinishedTrialError):  # another worker has seen it too
                        self.study.tell(trial.number, state=TrialState.FAIL)
                        self.try_again(trial)
            if self.some_left():
                return True
            if not told:
                self.tell(f"waiting for {len(running)} trial(s) of other workers, in case one is lost")
            told = True
            time.sleep(min(1.0, HEARTBEAT / 2))
        return False

    def after(self, study: Study, trial: FrozenTrial) -> None:
        """Report a trial, write all trials, and stop if none is left."""
        if "surplus" not in trial.user_attrs:
            complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            so_far = f"; best {study.best_value:.4f}" if complete else ""
            outcome = trial.user_attrs.get("why") or f"{self.metric} {trial.value:.4f}"
            self.tell(f"trial {trial.number}: {outcome}{so_far}")
            self.write()
        if not self.some_left():
            study.stop()

    def objective(self, trial: Trial) -> float:
        """Train a trial; if Ctrl-C stops it, queue its settings again."""
        try:
            self.refuse_surplus(trial)
            return self.train(trial)
        except UpdateFinishedTrialError:
            self.taken_away = trial.number
            raise
        except KeyboardInterrupt:
            self.try_again(trial)
            trial.set_user_attr("why", "interrupted")
            raise

    def try_again(self, trial: Trial | FrozenTrial) -> None:
        """Queue a trial's settings again."""
        self.study.enqueue_trial(trial.params, user_attrs={"retry_of": trial.number})

    def refuse_surplus(self, trial: Trial) -> None:
        """End a trial that two workers started at the same time where one was wanted."""
        trials = self.study.get_trials(deepcopy=False)
        earlier, retry_of = trials[: trial.number], _retry_of(trials[trial.number])
        if retry_of is None:  # both took the last one
            surplus = sum(map(_counts, earlier)) >= self.wanted.trials
        else:  # both put a lost one back
            surplus = retry_of in map(_retry_of, earlier)
        if surplus:
            trial.set_user_attr("surplus", True)
            raise _SurplusError

    def train(self, trial: Trial) -> float:
        """Train with a trial's settings and return the validation metric; note why there is none."""
        # Samples follow from the seed, the trial's number and the trials before, resumed or not.
        seed = int(np.random.SeedSequence([self.wanted.run.seed, trial.number]).generate_state(1)[0])
        self.study.sampler = TPESampler(seed=seed, constant_liar=True)
        values = dataclasses.asdict(self.settings)
        values |= {name: where.suggest(trial, name) for name, where in self.space.items()}
        try:
            try:
                run = dataclasses.replace(self.wanted.run, settings=Settings(**values))
            except ValueError as error:  # values that do not go together
                raise TrialPruned(str(error)) from None
            fitted = fit(run, self.data, follow=_Report(trial, self.metric, self.stages))
        except (UpdateFinishedTrialError, StorageInternalError):
            raise
        except Exception as error:
            trial.set_user_attr("why", _why(error))
            if isinstance(error, NonFiniteLoss):
                # Pruned, for the sampler to stay away: from failed trials it learns nothing.
                raise TrialPruned from error
            raise
        trial.set_user_attr("valid", fitted.metrics["valid"])
        return fitted.metrics["valid"][self.metric]

    def write(self) -> Found:
        """Write all trials so far, and the best as a recipe."""
        rows = [self.row(trial) for trial in self.study.get_trials(deepcopy=False)]
        write_text(self.output / "trials.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        result = Found(rows, self.metric, self.output)
        if result.complete:
            write_text(self.output / "best.yaml", self.recipe(result))
        return result

    def row(self, trial: FrozenTrial) -> dict[str, Any]:
        """Return a trial as a line of ``trials.jsonl``."""
        started, ended, retry_of = trial.datetime_start, trial.datetime_complete, _retry_of(trial)
        return {
            "number": trial.number,
            "state": trial.state.name.lower(),
            self.metric: trial.value,
            "settings": trial.params,
            "epochs": len(trial.intermediate_values),
            "started": started and started.isoformat(" ", "seconds"),
            "ended": ended and ended.isoformat(" ", "seconds"),
            "seconds": round((ended - started).total_seconds(), 2) if started and ended else None,
            **trial.user_attrs,
            **({} if retry_of is None else {"retry_of": retry_of}),
        }

    def recipe(self, result: Found) -> str:
        """Return all settings of the best trial as YAML."""
        run, best, done = self.wanted.run, result.complete[0], len(result.complete)
        method, loss, _ = settled(run)
        reached = f"validation {self.metric} {best[self.metric]:.4f}, trial {best['number']}"
        about = f"{self.data.name}, {names_title(method, loss)}, seed {run.seed}"
        settings = dataclasses.asdict(self.settings) | best["settings"]
        recipe = {"method": method, "loss": loss, **settings}
        return f"# {about}: {reached}, the best of {done}.\n{yaml.safe_dump(recipe, sort_keys=False)}"


class _Report(Tracker):
    """A tracker that reports each epoch of the last stage to a trial, and ends a hopeless one."""

    def __init__(self, trial: Trial, metric: str, stages: int) -> None:
        self._trial, self._metric, self._stages = trial, metric, stages

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        epoch, value = int(values["epoch"]), values[self._metric]
        self._stages -= epoch == 1  # now the number of those that follow
        if self._stages:
            return
        self._trial.report(value, epoch)
        if self._trial.should_prune():
            raise TrialPruned(f"pruned after epoch {epoch} with {self._metric} {value:.4f}")
