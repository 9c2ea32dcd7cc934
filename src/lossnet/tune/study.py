"""A search by any number of workers that share one storage.

Trials are made in advance, as many as are asked for, and wait.  A worker takes one at a time, trains it on
the training part, reports the validation metric of each epoch and gives up where a trial is worse than the
median of the others.  While it trains it leaves a sign of life in the storage every few seconds; a trial
whose worker has left none for a while is failed by another worker and made to wait again with the same
settings.  So a worker that is killed loses no more than what it had done of one trial, and the same command
goes on with whatever is left.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml

from lossnet import scores
from lossnet.build import build
from lossnet.data import Loaded
from lossnet.files import write_text
from lossnet.run import Run, check_folder, completed, find_device, fit, identity_of, read
from lossnet.settings import Settings
from lossnet.tasks import task_of
from lossnet.training import NonFiniteLoss
from lossnet.training.tracking import Tracker
from lossnet.tune.space import Dimension, default_space

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, TrialState

__all__ = ["Found", "Search", "search"]

#: seconds between two signs of life, and without one until a trial is taken from its worker
HEARTBEAT, GRACE = 10, 60
#: A trial that has lost so many workers may be what kills them.
MOST_TRIES = 3
#: seconds that a worker gives the one who made the study to describe it
_MAKING = 60.0


@dataclass(frozen=True)
class Search:
    """What is searched.

    Args:
        run: what every trial trains; its settings, or the data set's recipe, are the first trial.
        trials: how many settings to try, by all workers together.
        space: settings to search, in the place of the method's own (`lossnet.tune.default_space`) or beside
            them.
        fixed: settings that are not searched, whatever the method's own space says.
        study: its name in the storage; by default that of data, method and loss.
        storage: a database's address such as ``postgresql://user:password@host/name``; by default a file in
            ``output``.
        output: folder for ``best.yaml``, a recipe, and ``trials.jsonl``; by default ``runs/tune/`` and the
            study's name.
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
    """What a search has come to: its trials, as ``trials.jsonl`` has them, and the folder where that lies.

    ``metric`` is the key of what was searched for, highest is best.
    """

    trials: list[dict[str, Any]]
    metric: str
    output: Path

    @property
    def complete(self) -> list[dict[str, Any]]:
        """The trials that were trained to their end, the best first."""
        done = (trial for trial in self.trials if trial["state"] == "complete")
        return sorted(done, key=lambda trial: (-trial[self.metric], trial["number"]))


def search(wanted: Search, tell: Callable[[str], None] = print) -> Found:
    """Takes part in a search until all trials are done.

    Needs the ``[tune]`` extra.  Test data are never looked at: trials get none.  ``tell`` is called with a
    line about each trial.

    >>> from tempfile import TemporaryDirectory
    >>> settings = Settings(epochs=2, task_hidden=8)
    >>> tiny = Run("digits-pairs", "cross-entropy", settings=settings, progress=False)
    >>> with TemporaryDirectory() as folder:
    ...     found = search(Search(tiny, trials=2, output=Path(folder)), tell=lambda line: None)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['best.yaml', 'study.db', 'trials.jsonl']
    >>> [trial["state"] for trial in found.trials], found.metric
    (['complete', 'complete'], 'f1')
    """
    _optuna()  # before data are read: it may not be there
    if wanted.trials < 1:
        raise ValueError(f"trials must be at least 1, not {wanted.trials}")
    wanted = _complete(wanted)
    data = _without_test(read(wanted.run))
    space = _space(wanted, data)
    with _storage_errors(wanted), _storage(wanted) as storage:
        study = _open(wanted, storage, space, data)
        worker = _Worker(wanted, study, storage, space, data, tell)
        worker.work()
        return worker.write()


def _complete(wanted: Search) -> Search:
    """With all names and settings filled in."""
    run = dataclasses.replace(completed(wanted.run), output=None, resume=False, track=None)
    find_device(run.device)
    study = wanted.study or f"{Path(run.data).stem}-{run.method}-{run.loss}"
    output = wanted.output or Path("runs/tune", study)
    check_folder(output)
    return dataclasses.replace(wanted, run=run, study=study, output=output)


def _without_test(data: Loaded[Any]) -> Loaded[Any]:
    return dataclasses.replace(data, test=data.test.take(np.zeros(0, dtype=np.int64)))


def _space(wanted: Search, data: Loaded[Any]) -> dict[str, Dimension]:
    run = wanted.run
    assert run.settings is not None
    space = default_space(run.method, run.loss, run.settings, task_of(data))
    space = {name: where for name, where in space.items() if name not in wanted.fixed} | dict(wanted.space)
    if not space:
        raise ValueError("every setting is fixed: there is nothing to search")
    return space


# ---------------------------------------------------------------- the storage


def _optuna() -> Any:
    try:
        import optuna
        import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"tuning needs Optuna ({error.name} is missing): pip install 'lossnet[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def _storage(wanted: Search) -> Iterator[RDBStorage]:
    """A SQLite file, which survives any kill and several workers of one machine, or a database server."""
    url = wanted.storage or f"sqlite:///{_file(wanted)}"
    if "://" not in url:
        raise ValueError(f"--storage {url}: give an address such as postgresql://user:password@host/name")
    # SQLAlchemy would look for another driver than the one that we install.
    scheme, rest = url.split("://", 1)
    if scheme in ("postgresql", "postgres"):
        url = f"postgresql+psycopg://{rest}"
    storage = _connected(url)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _connected(url: str, tries: int = 5) -> RDBStorage:
    """The storage, with its tables; workers that make these at the same time get in each other's way."""
    import sqlalchemy

    connect = {"timeout": 60} if url.startswith("sqlite") else {}
    for left in reversed(range(tries)):
        try:
            with _quiet():
                return _optuna().storages.RDBStorage(  # type: ignore[no-any-return]
                    url,
                    engine_kwargs={"connect_args": connect, "pool_pre_ping": True},
                    heartbeat_interval=HEARTBEAT,
                    grace_period=GRACE,
                    heartbeat_stale_trial_callback=_put_back,
                )
        except (sqlalchemy.exc.ProgrammingError, sqlalchemy.exc.IntegrityError, AssertionError):
            if not left:
                raise
            time.sleep(0.5)
        except sqlalchemy.exc.OperationalError as error:
            if not left or "already exists" not in str(error):
                raise
            time.sleep(0.5)
    raise AssertionError("the last try raises or returns")


def _file(wanted: Search) -> Path:
    assert wanted.output is not None
    wanted.output.mkdir(parents=True, exist_ok=True)
    return wanted.output / "study.db"


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna calls signs of life experimental whenever they are used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _storage_errors(wanted: Search) -> Iterator[None]:
    """A database that cannot be reached is told of by its address, without the password."""
    import sqlalchemy
    from optuna.exceptions import StorageInternalError

    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError, ImportError) as error:
        cause = error.__cause__ or error
        reason = " ".join(str(getattr(cause, "orig", None) or cause).split())
        address = wanted.storage or str(_file(wanted))
        with suppress(sqlalchemy.exc.ArgumentError):
            address = sqlalchemy.engine.make_url(address).render_as_string(hide_password=True)
        raise OSError(f"the storage {address} cannot be used ({reason})") from error


def _open(wanted: Search, storage: RDBStorage, space: Mapping[str, Dimension], data: Loaded[Any]) -> Study:
    """The study, made with its trials if it is not there, or found and compared with what is asked for."""
    optuna = _optuna()
    description = _description(wanted, space, data)
    others = [name for name in optuna.get_all_study_names(storage) if name != wanted.study]
    if others and not wanted.storage:  # whose recipe would be overwritten
        raise ValueError(f"{wanted.output} holds the study {others[0]!r}; choose another --output")
    with _quiet():
        try:
            study = optuna.create_study(storage=storage, study_name=wanted.study, direction="maximize")
        except optuna.exceptions.DuplicatedStudyError:
            study = optuna.load_study(storage=storage, study_name=wanted.study)
            found = _described(study)
            if found is None:  # whoever made it did not come so far
                study.set_user_attr("description", description)
            else:
                _compare(wanted, found, description)
    _fill(study, wanted, space)
    if "description" not in study.user_attrs:
        study.set_user_attr("description", description)
    return study  # type: ignore[no-any-return]


def _description(wanted: Search, space: Mapping[str, Dimension], data: Loaded[Any]) -> dict[str, Any]:
    """What must be the same for trials to be comparable, as JSON."""
    run = wanted.run
    assert run.settings is not None
    dimensions = {name: dataclasses.asdict(where) for name, where in space.items()}
    described = {
        **identity_of(data),
        "method": run.method,
        "loss": run.loss,
        "seed": run.seed,
        "settings": dataclasses.asdict(run.settings),
        "space": dimensions,
    }
    return json.loads(json.dumps(described))  # type: ignore[no-any-return]


def _described(study: Study) -> dict[str, Any] | None:
    """What a study is about, once whoever makes it has said so and made its trials."""
    for _ in range(int(_MAKING / 0.25)):
        found: dict[str, Any] | None = study.user_attrs.get("description")
        if found is not None:
            return found
        time.sleep(0.25)
    return None


def _compare(wanted: Search, found: Mapping[str, Any], description: Mapping[str, Any]) -> None:
    for name, value in description.items():
        if name not in found:
            what = f"the study {wanted.study!r} is of an older version, which did not note its {name}"
            raise ValueError(f"{what}; give another --study and --output")
        if found[name] != value:
            before, now = found.get(name), value
            if isinstance(before, dict) and isinstance(now, dict):
                changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
                name = f"{name} ({', '.join(changed)})"
                before, now = ({key: side.get(key) for key in changed} for side in (before, now))
            what = f"the study {wanted.study!r} has other {name}: {before}, and this command {now}"
            raise ValueError(f"{what}; give the same command, or another --study and --output")


def _fill(study: Study, wanted: Search, space: Mapping[str, Dimension]) -> None:
    """Makes trials that wait, as many as are missing; the very first has the settings to start from."""
    trials = study.get_trials(deepcopy=False)
    settings = dataclasses.asdict(wanted.run.settings or Settings())
    start = {name: settings[name] for name, where in space.items() if settings[name] in where}
    for number in range(sum(_counts(trial) for trial in trials), wanted.trials):
        study.enqueue_trial(start if not trials and number == 0 else {})


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial is one of those asked for: one that was put back is another trial by now."""
    return trial.state.name != "FAIL" or "why" in trial.user_attrs or _tries(trial) >= MOST_TRIES


def _tries(trial: FrozenTrial) -> int:
    return int(trial.user_attrs.get("tries", 1))


def _put_back(study: Study, trial: FrozenTrial, tries: int = 1) -> None:
    """Lets the settings of a failed trial wait for another worker; ``tries`` are what that one counts for."""
    from optuna.trial import TrialState, create_trial

    tries += _tries(trial)
    if tries <= MOST_TRIES:
        again = create_trial(
            state=TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={"retry_of": trial.number, "tries": tries},
            system_attrs={k: v for k, v in trial.system_attrs.items() if k == "fixed_params"},
        )
        study.add_trial(again)


# ---------------------------------------------------------------- a worker


class _Worker:
    """Takes trials until none waits and none is under way."""

    def __init__(
        self,
        wanted: Search,
        study: Study,
        storage: RDBStorage,
        space: Mapping[str, Dimension],
        data: Loaded[Any],
        tell: Callable[[str], None],
    ) -> None:
        self.wanted, self.study, self.storage = wanted, study, storage
        self.space, self.data, self.tell = space, data, tell
        self.settings, task = wanted.run.settings or Settings(), task_of(data)
        self.metric = scores.main_metric(task.space(self.settings))
        with torch.device("meta"):
            self.stages = len(build(wanted.run.method, wanted.run.loss, self.settings, task).stages())

    def work(self) -> None:
        optuna = _optuna()
        waiting = False
        while True:
            with _quiet():
                optuna.storages.fail_stale_trials(self.study)
            trial = self._take()
            if trial is not None:
                self._run(trial)
                self.write()
                waiting = False
                continue
            running = [t for t in self.study.get_trials(deepcopy=False) if t.state.name == "RUNNING"]
            if not running:
                return
            if not waiting:
                waiting = True
                self.tell(
                    f"waiting for {len(running)} trial(s) of other workers, in case one of them is lost"
                )
            time.sleep(min(1.0, HEARTBEAT / 2))

    def _take(self) -> FrozenTrial | None:
        """A waiting trial that is now ours, if there is one: the storage lets one worker have it."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            # Signs of life come first: a trial that runs without one would never be missed.
            self.storage.record_heartbeat(trial._trial_id)
            try:
                if self.storage.set_trial_state_values(trial._trial_id, state=TrialState.RUNNING):
                    return trial
            except UpdateFinishedTrialError:
                continue
        return None

    def _run(self, taken: FrozenTrial) -> None:
        from optuna import Trial, load_study
        from optuna.exceptions import UpdateFinishedTrialError

        optuna, started = _optuna(), time.monotonic()
        # What is sampled follows from the seed, the trial's number and the trials before, resumed or not.
        seed = int(np.random.SeedSequence([self.wanted.run.seed, taken.number]).generate_state(1)[0])
        with _quiet():
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            study = load_study(
                study_name=self.wanted.study, storage=self.storage, sampler=sampler, pruner=pruner()
            )
        study.get_trials(deepcopy=False)  # its cache must know the trial
        trial = Trial(study, taken._trial_id)
        try:
            with self._alive(taken._trial_id):
                trial.set_user_attr("worker", f"{socket.gethostname()}:{os.getpid()}")
                state, value, why = self._outcome(trial)
                trial.set_user_attr("seconds", round(time.monotonic() - started, 2))
                if why:
                    trial.set_user_attr("why", why)
                study.tell(trial, value, state=state)
        except UpdateFinishedTrialError:
            self.tell(f"trial {taken.number}: after too long without a sign of life, another worker has it")
            return
        except KeyboardInterrupt:
            self._give_back(study, trial)
            raise
        self.tell(self._line(taken.number, value, why))

    def _outcome(self, trial: Trial) -> tuple[TrialState, float | None, str]:
        """How a trial ended, its value if it has one, and why it has none."""
        from optuna import TrialPruned
        from optuna.exceptions import OptunaError
        from optuna.trial import TrialState

        try:
            return TrialState.COMPLETE, self._train(trial), ""
        except TrialPruned as error:
            return TrialState.PRUNED, None, str(error)
        except NonFiniteLoss as error:
            # Pruned, for the sampler to stay away: from failed trials it learns nothing.
            return TrialState.PRUNED, None, f"diverged: {error}"
        except torch.OutOfMemoryError as error:
            return TrialState.FAIL, None, f"out of memory: {error}"
        except OptunaError:
            raise
        except Exception as error:
            trial.set_user_attr("why", f"{type(error).__name__}: {error}")
            trial.study.tell(trial, state=TrialState.FAIL)
            raise

    def _train(self, trial: Trial) -> float:
        from optuna import TrialPruned

        run = self.wanted.run
        values = dataclasses.asdict(self.settings)
        values |= {name: where.suggest(trial, name) for name, where in self.space.items()}
        try:
            run = dataclasses.replace(run, settings=Settings(**values))
        except ValueError as error:  # each of them may be had, but not together
            raise TrialPruned(str(error)) from None
        fitted = fit(run, self.data, follow=_Report(trial, self.metric, self.stages))
        trial.set_user_attr("valid", fitted.metrics["valid"])
        return fitted.metrics["valid"][self.metric]

    def _give_back(self, study: Study, trial: Trial) -> None:
        """Lets a trial that was stopped by Ctrl-C wait again, unless it has just ended."""
        from optuna.trial import TrialState

        if self.storage.get_trial(trial._trial_id).state == TrialState.RUNNING:
            study.tell(trial, state=TrialState.FAIL)
            _put_back(study, self.storage.get_trial(trial._trial_id), tries=0)

    @contextmanager
    def _alive(self, trial_id: int) -> Iterator[None]:
        """Leaves signs of life in the storage, from a thread of its own."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(HEARTBEAT):
                try:
                    self.storage.record_heartbeat(trial_id)
                except Exception:
                    continue  # the storage may come back; if not, the trial itself will say so

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _line(self, number: int, value: float | None, why: str) -> str:
        best = [t for t in self.study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
        so_far = f"; best {max(t.value or 0.0 for t in best):.4f}" if best else ""
        result = why or f"{self.metric} {value:.4f}"
        return f"trial {number}: {result}{so_far}"

    # ------------------------------------------------------------ what is left of it

    def write(self) -> Found:
        """Writes all trials so far, and the best as a recipe."""
        output = self.wanted.output
        assert output is not None
        rows = [self._row(trial) for trial in self.study.get_trials(deepcopy=False)]
        write_text(output / "trials.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        found = Found(rows, self.metric, output)
        if found.complete:
            write_text(output / "best.yaml", self._recipe(found))
        return found

    def _row(self, trial: FrozenTrial) -> dict[str, Any]:
        started, ended = trial.datetime_start, trial.datetime_complete
        return {
            "number": trial.number,
            "state": trial.state.name.lower(),
            self.metric: trial.value,
            "settings": trial.params,
            "epochs": len(trial.intermediate_values),
            "started": started and started.isoformat(" ", "seconds"),
            "ended": ended and ended.isoformat(" ", "seconds"),
            **trial.user_attrs,
        }

    def _recipe(self, found: Found) -> str:
        run, best, done = self.wanted.run, found.complete[0], len(found.complete)
        result = f"validation {self.metric} {best[self.metric]:.4f}, trial {best['number']}"
        head = (
            f"# {self.data.name}, {run.method} ({run.loss}), seed {run.seed}: {result}, the best of {done}.\n"
        )
        settings = dataclasses.asdict(self.settings) | best["settings"]
        content = {"method": run.method, "loss": run.loss, **settings}
        return head + str(yaml.safe_dump(content, sort_keys=False))


def pruner() -> BasePruner:
    """Gives up where the best epoch so far is below the median of the other trials' at the same epoch."""
    return _optuna().pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=3)  # type: ignore[no-any-return]


class _Report(Tracker):
    """Tells a trial of the metric after each epoch of the last stage, and ends it where that is hopeless."""

    def __init__(self, trial: Trial, metric: str, stages: int) -> None:
        self._trial, self._metric, self._stages = trial, metric, stages

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        pass

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        from optuna import TrialPruned

        epoch, value = int(values["epoch"]), values[self._metric]
        self._stages -= epoch == 1  # now the number of those that follow
        if self._stages:
            return
        self._trial.report(value, epoch)
        if self._trial.should_prune():
            raise TrialPruned(f"pruned after epoch {epoch} with {self._metric} {value:.4f}")

    def finish(self, values: Mapping[str, float], completed: bool) -> None:
        pass
