"""A run from data to result: what ``lossnet train`` does, for the command line and the benchmarks."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from lossnet.build import build, check_names, default_loss
from lossnet.card import model_card
from lossnet.data import Loaded, MaskData, MultiLabelData, Sentences, Weighted
from lossnet.data import load as load_data
from lossnet.files import write_json
from lossnet.model import Model
from lossnet.settings import Settings, recipe_settings
from lossnet.tasks import task_of
from lossnet.training import Dataset, Trainer
from lossnet.training.engines import Processes, joined
from lossnet.training.tracking import Tracker, flat, tracker

__all__ = [
    "Fitted",
    "Run",
    "check_folder",
    "completed",
    "find_device",
    "finish",
    "fit",
    "identity_of",
    "new_model",
    "placed",
    "read",
    "source_of",
    "train",
    "trainer_of",
    "tune_and_measure",
    "versions",
]


@dataclass(frozen=True)
class Run:
    """What to train, on what, and where the result goes.

    Args:
        data: a registered name or a file.
        method: see ``lossnet methods``.
        loss: of that method; its first by default.
        settings: everything else that can be varied; by default the data set's recipe.
        seed: of initialisation, data order and dropout.
        output: folder for result, model and checkpoint.
        data_dir: where data sets are.
        split: a JSON file with row numbers under train, valid and test.
        labels: label columns, for files that do not say.
        embeddings: files with word vectors, for sentences; by default those that suit a named set.
        device: cpu, cuda, or auto.
        resume: continue from the checkpoint in ``output``.
        progress: show progress bars.
        track: ``tensorboard``, ``mlflow`` or ``wandb`` to be told of every epoch.
    """

    data: str
    method: str = "seal"
    loss: str = ""
    settings: Settings | None = None
    seed: int = 0
    output: Path | str | None = None
    data_dir: Path | str | None = None
    split: Path | str | None = None
    labels: Sequence[str] | None = None
    embeddings: Sequence[Path | str] | None = None
    device: str = "auto"
    resume: bool = False
    progress: bool = True
    track: str | None = None


def train(run: Run, data: Loaded | None = None) -> dict[str, Any]:
    """Trains, evaluates, writes ``run.output`` and returns the content of its ``result.json``.

    Under ``torchrun`` all processes train together, and the first one writes.

    >>> run = Run("digits-pairs", "cross-entropy", settings=Settings(epochs=1), progress=False)
    >>> result = train(run)
    >>> result["dataset"], result["method"], result["seed"]
    ('digits-pairs', 'cross-entropy', 0)
    >>> 0 < result["metrics"]["test"]["f1"] <= 1
    True
    """
    run = completed(run)
    device = find_device(run.device)  # before data are read: it may not be there
    output = None if run.output is None else Path(run.output)
    check_folder(output)
    if run.resume and output is None:
        raise ValueError("resuming needs the folder of the interrupted run: give its --output")
    with joined(device) as processes:
        run = dataclasses.replace(run, device=processes.device, progress=run.progress and processes.first)
        follow = None if run.track is None or not processes.first else tracker(run.track, output)
        if data is None:
            data = read(run)
        fitted = fit(run, data, follow=follow, processes=processes)
        return finish(run, data, fitted, processes)


def check_folder(output: Path | str | None) -> None:
    """Refuses a folder that cannot be written to, before something is trained for it.

    >>> check_folder("runs/not-made-yet")
    """
    if output is None:
        return
    place = next(path for path in (Path(output), *Path(output).absolute().parents) if path.exists())
    if not place.is_dir():
        raise ValueError(f"{place} is a file; give a folder for the results")
    if not os.access(place, os.W_OK):
        raise ValueError(f"{place} may not be written to; give another folder for the results")


def completed(run: Run) -> Run:
    """The run with its loss and settings filled in; a method or loss that does not exist is refused.

    >>> completed(Run("bibtex")).loss
    'nce'
    """
    loss = run.loss or default_loss(run.method)
    check_names(run.method, loss)
    settings = run.settings or Settings(**recipe_settings(run.data, run.method, loss))
    return dataclasses.replace(run, loss=loss, settings=settings)


def read(run: Run) -> Loaded:
    """The data that a run is to be made on."""
    return load_data(
        run.data,
        data_dir=run.data_dir,
        split=run.split,
        labels=run.labels,
        progress=run.progress,
        features=(run.settings or Settings()).features or None,
        embeddings=run.embeddings,
    )


def finish(run: Run, data: Loaded, fitted: Fitted, processes: Processes | None = None) -> dict[str, Any]:
    """Writes what a trained run leaves in ``run.output`` and returns the content of its ``result.json``."""
    output = None if run.output is None else Path(run.output)
    settings, processes = run.settings or Settings(), processes or Processes()
    result = {
        "dataset": data.name,
        "data_digest": data.digest,
        "split": data.split_name,
        "method": run.method,
        "loss": run.loss,
        "seed": run.seed,
        "settings": dataclasses.asdict(settings),
        "metrics": fitted.metrics,
        "measured": _mean_measured(fitted.history),
        "seconds": fitted.seconds,
        "steps": fitted.steps,
        "epochs": len(fitted.history),
        "device": find_device(run.device),
        "processes": processes.count,
        "versions": versions(),
        "commit": _commit(),
        "source": source_of(run),
    }
    if output is not None and processes.first:
        fitted.model.save(output / "model", model_card(result, fitted.model.task.kind, data.description))
        lines = [json.dumps(entry) for entry in fitted.history]
        (output / "history.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        write_json(output / "result.json", result)
        (output / "checkpoint.safetensors").unlink(missing_ok=True)
    return result


@dataclass(frozen=True)
class Fitted:
    """A trained model, its metrics on valid and test, an entry for each epoch, and what it took."""

    model: Model
    metrics: dict[str, dict[str, float]]
    history: list[dict[str, Any]]
    steps: int
    seconds: float


def fit(
    run: Run,
    data: Loaded,
    weights: NDArray[Any] | None = None,
    follow: Tracker | None = None,
    processes: Processes | None = None,
) -> Fitted:
    """Trains on loaded data and tunes the threshold; reads and writes nothing but the checkpoint.

    ``weights`` ``(n,)`` are those of the training instances in losses, and should average 1.  ``follow``
    is told of the run, and ``processes`` train together.
    """
    device = find_device(run.device)
    started = time.monotonic()
    model = new_model(run, data)
    trainer = trainer_of(model, run, identity_of(data), follow, processes)
    train = placed(data.train, device)
    if weights is not None:
        train = Weighted(train, torch.as_tensor(weights, dtype=torch.float32))
    title = " ".join([data.name, *model.names, f"seed {run.seed}"])
    method, loss = model.names
    names = {"data": data.name, "split": data.split_name}
    told = {**names, "method": method, "loss": loss, "seed": run.seed, **dataclasses.asdict(model.settings)}
    with _followed(follow, title, told) as results:
        history = trainer.fit(train, placed(data.valid, device), run.resume)
        metrics = tune_and_measure(model, data, device)
        results.update(flat(metrics))
    seconds = round(max(time.monotonic() - started, trainer.seconds), 2)
    return Fitted(model, metrics, history, trainer.steps_taken, seconds)


def identity_of(data: Loaded) -> dict[str, str]:
    """What tells data from others, by name and content.

    >>> list(identity_of(load_data("digits-pairs")))
    ['data', 'split', 'data_digest']
    """
    return {"data": data.name, "split": data.split_name, "data_digest": data.digest}


def new_model(run: Run, data: Loaded) -> Model:
    """The model for a run on loaded data, with networks as they start."""
    loss, settings, task = run.loss or default_loss(run.method), run.settings or Settings(), task_of(data)
    with torch.random.fork_rng([]):
        torch.manual_seed(run.seed)
        method = build(run.method, loss, settings, task)
    return Model(method, (run.method, loss), settings, task, threshold=0.5)


def trainer_of(
    model: Model,
    run: Run,
    identity: Mapping[str, Any] | None = None,
    follow: Tracker | None = None,
    processes: Processes | None = None,
) -> Trainer:
    """The trainer of a model by its own settings, and the run's seed, device and folder."""
    settings, names = model.settings, dict(zip(("method", "loss"), model.names, strict=True))
    rates = dict.fromkeys(("task_net", "cost_net", "noise_net"), settings.task_lr)
    rates["energy"] = settings.energy_lr
    rates["local energy"] = settings.task_lr  # SPEN first trains its local term as a classifier
    # More epochs or patience may be given to a run that is resumed; nothing else may change.
    fixed = {k: v for k, v in dataclasses.asdict(settings).items() if k not in ("epochs", "patience")}
    return Trainer(
        model.method,
        lr=rates,
        weight_decay=settings.weight_decay,
        batch_size=settings.batch_size,
        max_epochs=settings.epochs,
        patience=settings.patience,
        clip=settings.clip,
        plateau_patience=settings.plateau_patience,
        plateau_factor=settings.plateau_factor,
        seed=run.seed,
        device=find_device(run.device),
        checkpoint=None if run.output is None else Path(run.output) / "checkpoint.safetensors",
        identity={**(identity or {}), **names, **fixed},
        views=model.task.crops(settings),
        progress=run.progress,
        tracker=follow,
        processes=processes,
    )


@contextmanager
def _followed(follow: Tracker | None, name: str, settings: Mapping[str, Any]) -> Iterator[dict[str, float]]:
    """Tells a tracker, if there is one, of the start and the end of a run, with the results put into this."""
    results: dict[str, float] = {}
    if follow is None:
        yield results
        return
    follow.start(name, settings)
    completed = False
    try:
        yield results
        completed = True
    finally:
        follow.finish(results, completed)


def tune_and_measure(model: Model, data: Loaded, device: str) -> dict[str, dict[str, float]]:
    """Metrics on valid and, where it has labels, test; tunes the model's threshold on valid."""
    valid = model.probabilities(data.valid, device)
    model.threshold = model.task.tune(*valid)
    metrics = {"valid": model.task.measure(*valid, model.threshold)}
    if isinstance(data.test, MultiLabelData) and len(data.test) and not data.test.y.nnz:
        warnings.warn("no test row has a label: the model is measured on valid only", stacklevel=2)
    elif len(data.test):
        metrics["test"] = model.task.measure(*model.probabilities(data.test, device), model.threshold)
    return metrics


def find_device(name: str) -> str:
    """The device to use: ``auto`` takes a GPU where there is one.

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
    """What was asked to be read, to read it again."""
    labels = None if run.labels is None else list(run.labels)
    return {"data": str(run.data), "split": None if run.split is None else str(run.split), "labels": labels}


def _mean_measured(history: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What updates measured, averaged over the epochs that have it."""
    values: dict[str, dict[str, list[float]]] = {}
    for entry in history:
        for network, readings in entry["measured"].items():
            for quantity, value in readings.items():
                values.setdefault(network, {}).setdefault(quantity, []).append(value)
    return {
        network: {quantity: sum(found) / len(found) for quantity, found in readings.items()}
        for network, readings in values.items()
    }


def placed(data: MultiLabelData | MaskData | Sentences, device: str) -> Dataset:
    """The data where and as training wants them: on a GPU, if they fit; sparse on a CPU."""
    if device != "cpu":
        return data.resident(device)
    return data.sparse() if isinstance(data, MultiLabelData) else data


def versions() -> dict[str, str]:
    """Those of Python, of Lossnet and of what computes for it."""
    packages = ("lossnet", "torch", "numpy", "scipy", "scikit-learn")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """The commit of Lossnet's own sources, when they are a checkout."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    tracked = Path(__file__).parents[2] / ".git"
    return answer.stdout.strip() if answer.returncode == 0 and tracked.exists() else None
