"""Method ``auto``: a portfolio of methods, of which validation data choose one for a goal.

Cross-entropy is trained first, with each of the networks that the kind of input suggests.  The best of these
is then trained by every other method and loss that has a place in the portfolio (`MethodSpec.portfolio`).
Each is calibrated and decoded for the goal, and the best on validation data is the model.

The average of the probabilities of the best three, a blend, takes part too, without training of its own.

Where validation instances are few, chance would choose: the best are then trained on other divisions of
training and validation instances too, and their means are compared.  The blend is then chosen unless one is
better by a standard error.  Models are always those that were trained on the division that was asked for.

Time is limited: when the budget is spent, training in progress ends with the best epoch so far, and the
members that are left are not tried.  The cheap ones come first.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save
from torch import Tensor

from lossnet.build import METHODS, suits
from lossnet.data.examples import concatenated
from lossnet.decoding import Decision, calibrate
from lossnet.files import write_bytes, write_json
from lossnet.loading import Loaded
from lossnet.model import BLEND, Model
from lossnet.remarks import TrainingWarning, data_remarks
from lossnet.scores import metric
from lossnet.settings import Settings
from lossnet.training import CheckpointError, NonFiniteLoss
from lossnet.warn import warn

if TYPE_CHECKING:
    from lossnet.run import Fitted, Run

__all__ = ["FEW", "Member", "choose", "portfolio", "sentence"]

#: the folder of members that have ended, in that of an unfinished run
CANDIDATES = "candidates"
#: a member's predictions for other divisions of the data, in its folder
HELD_OUT = "held_out.safetensors"
#: fewer validation instances than these choose by cross-validation
FEW = 200
#: divisions of the data that members are then compared on, the given one included
FOLDS = 5
#: the best members that are compared there, time permitting
RIVALS = 4
#: members that a blend averages
BLENDED = 3

#: trains a run on data, with weights of instances
Fit = Callable[["Run", Loaded, NDArray[Any] | None], "Fitted"]


@dataclass(frozen=True)
class Member:
    """A method, a loss and a network of the portfolio.

    Args:
        method: its name.
        loss: its name.
        variant: the network's name, empty where the input suggests just one.
        changes: the network's settings that differ from the defaults.

    >>> Member("cross-entropy", "soft-f1", "shallow").name
    'cross-entropy (soft-f1), shallow'
    """

    method: str
    loss: str
    variant: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        own = METHODS[self.method].default_loss if self.method in METHODS else self.loss
        loss = "" if self.loss == own else f" ({self.loss})"
        return f"{self.method}{loss}{', ' * bool(self.variant)}{self.variant}"

    def run(self, run: Run) -> Run:
        """Return the run that trains this member; settings that a user changed stay as they are."""
        assert run.settings is not None
        defaults = Settings()
        changes = {
            name: value
            for name, value in self.changes.items()
            if getattr(run.settings, name) == getattr(defaults, name)
        }
        settings = dataclasses.replace(run.settings, **changes)
        return dataclasses.replace(run, method=self.method, loss=self.loss, settings=settings)


@dataclass
class _Trial:
    """A member, what it reached on each division of the data, and the model of the first.

    ``held_out`` are its calibrated predictions for the validation instances of the other divisions.
    """

    member: Member
    scores: list[float]
    fitted: Fitted
    seconds: float
    cut: bool = False
    held_out: list[Tensor] = field(default_factory=list)
    blended: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """The mean of its scores."""
        return statistics.fmean(self.scores)

    def record(self, run: Run, metric_name: str) -> dict[str, Any]:
        """Return what ``result.json`` says of the trial."""
        settings = run.settings if self.blended else self.member.run(run).settings
        assert settings is not None
        changes = dataclasses.asdict(settings)
        defaults = dataclasses.asdict(Settings())
        return {
            "name": self.member.name,
            "members": list(self.blended),
            "method": self.member.method,
            "loss": self.member.loss,
            "settings": {name: value for name, value in changes.items() if value != defaults[name]},
            "metric": metric_name,
            "score": self.score,
            "scores": self.scores,
            "error": _error(self.scores),
            "metrics": self.fitted.metrics,
            "best_epoch": self.fitted.stages[-1]["best_epoch"],
            "steps": self.fitted.steps,
            "seconds": round(self.seconds, 2),
            "cut": self.cut,
        }


def portfolio(run: Run, data: Loaded) -> tuple[list[Member], list[Member]]:
    """Return the members that choose a network, and those that are then trained with it.

    >>> from lossnet.loading import load
    >>> from lossnet.run import Run
    >>> networks, others = portfolio(Run("digits-pairs", settings=Settings()), load("digits-pairs"))
    >>> [member.name for member in networks]
    ['cross-entropy', 'cross-entropy, shallow']
    >>> [member.name for member in others]
    ['cross-entropy (soft-f1)', 'stack', 'seal', 'implicit']
    """
    assert run.settings is not None
    space = data.task.space(run.settings)
    pairs = [(one.name, loss) for one in METHODS.values() for loss in one.portfolio]
    if run.own.task_net is not None:
        pairs = [
            (method, loss) for method, loss in pairs if {"task_net", "members"} & {*METHODS[method].rates}
        ]
    (first, *others) = [(method, loss) for method, loss in pairs if suits(method, loss, space)]
    variants = {"": {}} if run.own.task_net is not None else data.task.input.variants
    networks: dict[Settings | None, Member] = {}
    for variant, changes in variants.items():
        member = Member(*first, variant, changes)
        networks.setdefault(member.run(run).settings, member)  # equal ones once
    return list(networks.values()), [Member(*pair) for pair in others]


def choose(run: Run, data: Loaded, fit: Fit, weights: NDArray[Any] | None = None) -> Fitted:
    """Train the members of the portfolio by ``fit`` and return the best, with a record of all of them."""
    if run.own.energy is not None:
        raise ValueError("method auto has energies of its own; with energy=, use method seal")
    if run.own.rules:
        raise ValueError("method auto knows no rules; leave it out, or name method rules")
    goal = run.goal or next(iter(data.task.output.goals), None)
    if goal is None:
        what = f"{data.task.output.kind} have no goals, by which method auto chooses"
        raise ValueError(f"{what}; name a method, or define `goals` of the kind")
    if run.resume and not (run.output is not None and Path(run.output, CANDIDATES).is_dir()):
        raise CheckpointError(f"{run.output}: no checkpoint here; start without resuming")
    run = dataclasses.replace(run, goal=goal)
    contest = _Contest(run, data, fit, weights)
    networks, others = portfolio(run, data)
    contest.enter(networks)
    best = contest.best().member
    contest.enter([dataclasses.replace(one, variant=best.variant, changes=best.changes) for one in others])
    contest.compare()
    contest.blend()
    return contest.outcome()


class _Contest:
    """Members trained one after another within a budget."""

    def __init__(self, run: Run, data: Loaded, fit: Fit, weights: NDArray[Any] | None) -> None:
        self.run, self.data, self.fit, self.weights = run, data, fit, weights
        self.folds = [*_folds(data, weights, run.seed)]
        self.rivals: list[_Trial] = []
        self.blended: _Trial | None = None
        self.trials: list[_Trial] = []
        self.skipped: list[dict[str, str]] = []

    def enter(self, members: Sequence[Member]) -> None:
        """Train members, and say why if one could not be."""
        for member in members:
            why = "the budget was spent" if self._left() <= 0 else self._unbeatable()
            if self.trials and why:
                self.skipped.append({"name": member.name, "why": why})
                continue
            if self.run.progress:
                print(f"auto: {member.name}", file=sys.stderr)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", TrainingWarning)  # the chosen one's come at the end
                    self.trials.append(self._restored(member) or self._trial(member))
            except NonFiniteLoss as error:
                self.skipped.append({"name": member.name, "why": f"it diverged: {error}"})
        if not self.trials:
            raise NonFiniteLoss("; ".join(f"{one['name']}: {one['why']}" for one in self.skipped))

    def _unbeatable(self) -> str | None:
        """Return why no further member can be better than one that was trained, or None if it can."""
        best = 1.0 if not self.trials or self._sign > 0 else 0.0
        name = next((trial.member.name for trial in self.trials if trial.scores[0] == best), None)
        return name and f"{name} predicts validation data without a mistake"

    def compare(self) -> None:
        """Train the best members on the other divisions of the data."""
        self.rivals = self._ranked(self.trials)[: RIVALS if self.folds else None]
        if self._unbeatable():
            self.rivals = self.rivals[:1]
            return
        while len(self.rivals) > BLENDED and len(self.folds) * self._cost(self.rivals) > self._left():
            self.rivals.pop()
        for place, (fold, weights) in enumerate(self.folds, start=2):
            if self.run.progress and self._left() > 0:
                print(f"auto: the best {len(self.rivals)}, part {place} of {FOLDS}", file=sys.stderr)
            for trial in self.rivals:
                # A division counts for all rivals or for none.
                if len(trial.scores) < place and self._left() > 0:
                    self._score_on(trial, fold, weights)
        least = min(len(trial.scores) for trial in self.rivals)
        for trial in self.rivals:
            del trial.scores[least:], trial.held_out[least - 1 :]

    def _cost(self, trials: Sequence[_Trial]) -> float:
        """Return how many seconds trials take on one division."""
        return sum(trial.seconds / len(trial.scores) for trial in trials)

    def blend(self) -> None:
        """Enter the average of the best members' probabilities."""
        members = self._ranked(self.rivals)[:BLENDED]
        if len(members) < 2:
            return
        from lossnet.run import decided, find_device

        started, settings = time.monotonic(), self.run.settings
        assert settings is not None
        model = Model.blend([trial.fitted.model for trial in members], settings)
        metrics, remarks = decided(model, self.data, find_device(self.run.device))
        fitted = _joined(members, model, metrics, [*data_remarks(self.data), *remarks])
        scores = [self._score(fitted)]
        for (fold, _), *held_out in zip(self.folds, *(one.held_out for one in members), strict=False):
            scores.append(self._score_of(model, fold, torch.stack(held_out).mean(0)))
        names = tuple(trial.member.name for trial in members)
        self.blended = _Trial(Member(*BLEND), scores, fitted, time.monotonic() - started, blended=names)

    def best(self) -> _Trial:
        """Return the best trial; of equal ones, the first.

        On several divisions, the blend is the best unless another trial is better by at least the standard
        error of the difference.
        """
        best, blend = self._ranked(self.rivals or self.trials)[0], self.blended
        if blend is None:
            return best
        gaps = [self._sign * (one - own) for one, own in zip(best.scores, blend.scores, strict=True)]
        return best if statistics.fmean(gaps) >= (_error(gaps) or 0) else blend

    def _ranked(self, trials: Sequence[_Trial]) -> list[_Trial]:
        return sorted(trials, key=lambda trial: -self._sign * trial.score)

    def outcome(self) -> Fitted:
        """Return the best member's model, with a record of all."""
        best = self.best()
        fitted, tried = best.fitted, [*self.trials, *([self.blended] if self.blended else [])]
        record = {
            "goal": self.run.goal,
            "metric": self._metric(fitted),
            "folds": len(best.scores),
            "chosen": best.member.name,
            "method": best.member.method,
            "loss": best.member.loss,
            "candidates": [trial.record(self.run, self._metric(trial.fitted)) for trial in tried],
            "skipped": self.skipped,
        }
        for remark in fitted.remarks:
            warn(remark, TrainingWarning)
        seconds = round(sum(trial.seconds for trial in self.trials), 2)
        return dataclasses.replace(fitted, choice=record, seconds=seconds)

    @property
    def _sign(self) -> int:
        """1 if a higher score is better, else −1."""
        return -1 if metric(self._metric(self.trials[0].fitted)).higher_is_better is False else 1

    def _metric(self, fitted: Fitted) -> str:
        return fitted.model.task.output.goal_metric(fitted.model.decision)

    def _score(self, fitted: Fitted) -> float:
        return fitted.metrics["valid"][self._metric(fitted)]

    def _score_of(self, model: Model, data: Loaded, relaxed: Tensor) -> float:
        """Return the score of validation predictions ``(instances, *event)`` that the model did not make."""
        space, output = model.method.space, model.task.output
        _, truth = model.probabilities(data.valid)
        assert truth is not None
        relaxed = calibrate(space, relaxed, truth)(space, relaxed)
        decision = output.decide(space, relaxed, truth, Decision(goal=self.run.goal))
        return output.meter(decision).measure(relaxed, truth)[output.goal_metric(decision)]

    def _left(self) -> float:
        """Return how many seconds of the budget are left."""
        return 60 * self.run.budget - sum(trial.seconds for trial in self.trials)

    def _trial(self, member: Member) -> _Trial:
        """Train a member on the data as they are divided."""
        started, left = time.monotonic(), self._left()
        cut = False

        def late(entry: Mapping[str, Any]) -> bool:
            nonlocal cut
            cut = cut or time.monotonic() - started > left
            return cut

        folder = self._folder(member)
        resume = self.run.resume and folder is not None and (folder / "checkpoint.safetensors").exists()
        callbacks = [*(self.run.callbacks or ()), late]
        run = dataclasses.replace(member.run(self.run), output=folder, resume=resume, callbacks=callbacks)
        fitted = self.fit(run, self.data, self.weights)
        trial = _Trial(member, [self._score(fitted)], fitted, time.monotonic() - started, cut)
        self._save(trial)
        return trial

    def _score_on(self, trial: _Trial, fold: Loaded, weights: NDArray[Any] | None) -> None:
        """Train a trial's member on another division of the data too, and add its score there."""
        started = time.monotonic()
        run = dataclasses.replace(trial.member.run(self.run), output=None, resume=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)
            fitted = self.fit(run, fold, weights)
        trial.scores.append(self._score(fitted))
        trial.held_out.append(fitted.model.probabilities(fold.valid)[0])
        trial.seconds += time.monotonic() - started
        self._save(trial)

    # ------------------------------------------------------------------ finished members, kept on disk

    def _folder(self, member: Member) -> Path | None:
        if self.run.output is None:
            return None
        name = "".join(letter if letter.isalnum() else "-" for letter in member.name)
        return Path(self.run.output) / CANDIDATES / name

    def _identity(self, member: Member) -> dict[str, Any]:
        settings = member.run(self.run).settings
        assert settings is not None
        about = {"data_digest": self.data.digest, "goal": self.run.goal, "seed": self.run.seed}
        return about | dataclasses.asdict(settings)

    def _save(self, trial: _Trial) -> None:
        """Keep a trial for a run that is resumed."""
        folder = self._folder(trial.member)
        if folder is None:
            return
        trial.fitted.model.save(folder / "model")
        kept = ("metrics", "history", "stages", "remarks", "steps", "seconds")
        content = {
            "identity": self._identity(trial.member),
            "scores": trial.scores,
            "seconds": trial.seconds,
            "cut": trial.cut,
            "fitted": {name: getattr(trial.fitted, name) for name in kept},
        }
        write_json(folder / "trial.json", content)
        held_out = {str(place): one.contiguous() for place, one in enumerate(trial.held_out)}
        write_bytes(folder / HELD_OUT, save(held_out))
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)

    def _restored(self, member: Member) -> _Trial | None:
        """Return a trial that an interrupted run has finished, if there is one."""
        folder = self._folder(member)
        path = None if folder is None else folder / "trial.json"
        if path is None or folder is None or not self.run.resume or not path.exists():
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["identity"] != self._identity(member):
            raise ValueError(f"{folder} was trained with other settings or data; choose another --output")
        files = {one.name: one.read_bytes() for one in (folder / "model").iterdir()}
        from lossnet.run import Fitted

        fitted = Fitted(Model.from_files(files, self.run.own), **content["fitted"])
        stored = load_file(folder / HELD_OUT)
        held_out = [stored[str(place)] for place in range(len(stored))]
        return _Trial(member, content["scores"], fitted, content["seconds"], content["cut"], held_out)


def _folds(
    data: Loaded, weights: NDArray[Any] | None, seed: int
) -> Iterator[tuple[Loaded, NDArray[Any] | None]]:
    """Yield other divisions of the data where few instances validate: training rows are held out in turn."""
    count = FOLDS - 1
    if len(data.valid) >= FEW or len(data.train) < 2 * FOLDS:
        return
    order = np.random.default_rng(seed).permutation(len(data.train))
    for held in np.array_split(order, max(count, len(order) // max(len(data.valid), 1)))[:count]:
        rest = np.setdiff1d(order, held)
        train = concatenated([data.train.take(rest), data.valid])
        valid = data.train.take(held)
        assert valid.target is not None
        if not valid.target.is_empty:
            own = None if weights is None else np.concatenate([weights[rest], np.ones(len(data.valid))])
            yield dataclasses.replace(data, train=train, valid=valid, test=data.train.take([])), own


def _joined(
    trials: Sequence[_Trial], model: Model, metrics: dict[str, dict[str, float]], remarks: list[str]
) -> Fitted:
    """Return what is known of the training of several members as that of a model of all of them."""
    named = [(trial.member.name, trial.fitted) for trial in trials]

    def told(entries: str) -> list[dict[str, Any]]:
        return [
            {**entry, "stage": f"{name}: {entry['stage']}"}
            for name, fitted in named
            for entry in getattr(fitted, entries)
        ]

    steps = sum(fitted.steps for _, fitted in named)
    first = trials[0].fitted
    return dataclasses.replace(
        first,
        model=model,
        metrics=metrics,
        history=told("history"),
        stages=told("stages"),
        remarks=remarks,
        steps=steps,
    )


def _error(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean, None of a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def sentence(choice: Mapping[str, Any]) -> str:
    """Return one line about what was chosen, and by how much.

    >>> candidates = [{"name": "cross-entropy", "scores": [0.5]}, {"name": "stack", "scores": [0.52]}]
    >>> sentence({"chosen": "stack", "metric": "f1_expected", "folds": 1, "candidates": candidates})
    'auto chose stack: f1_expected 0.5200 on validation data; next is cross-entropy with 0.5000'
    >>> candidates = [{"name": "stack", "scores": [0.5, 0.6]}, {"name": "blend", "scores": [0.5, 0.58]}]
    >>> sentence({"chosen": "blend", "metric": "f1", "folds": 2, "candidates": candidates})
    'auto chose blend: f1 0.5400 on 2 held-out parts; stack, with 0.5500, is not ahead by a standard error'
    """
    folds, sign = choice["folds"], -1 if metric(choice["metric"]).higher_is_better is False else 1
    # Scores on fewer parts of the data are not comparable.
    means = {
        one["name"]: statistics.fmean(one["scores"])
        for one in choice["candidates"]
        if len(one["scores"]) == folds
    }
    others = sorted(
        (name for name in means if name != choice["chosen"]), key=lambda name: -sign * means[name]
    )
    (chosen,) = (one for one in choice["candidates"] if one["name"] == choice["chosen"])
    blended = f" ({'; '.join(chosen['members'])})" if chosen.get("members") else ""
    where = "validation data" if folds == 1 else f"{folds} held-out parts"
    line = f"auto chose {chosen['name']}{blended}: {choice['metric']} {means[chosen['name']]:.4f} on {where}"
    if not others:
        return line
    other, score = others[0], means[others[0]]
    if sign * score > sign * means[chosen["name"]]:
        return f"{line}; {other}, with {score:.4f}, is not ahead by a standard error"
    return f"{line}; next is {other} with {score:.4f}"
