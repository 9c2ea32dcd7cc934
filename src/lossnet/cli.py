"""The command line ``lossnet``."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import os
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, get_type_hints

import docstring_parser
import numpy as np
import torch
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace
from rich.console import Console
from rich.table import Table

import lossnet
from lossnet import bench, data, report, stream
from lossnet.build import METHODS, default_loss
from lossnet.decoding import Decoder, ExpectedF1, Threshold
from lossnet.files import write_json
from lossnet.model import load
from lossnet.prediction import Ensemble, Predictor
from lossnet.run import Run, find_device, train
from lossnet.runs import parse_sweep, summary, train_many, variants
from lossnet.settings import Settings, recipe_names_of, recipe_settings
from lossnet.tasks import LabelTask, MaskTask, TagTask
from lossnet.training import Dataset, Interrupted, NonFiniteLoss
from lossnet.training.engines import launched_rank
from lossnet.training.tracking import TRACKERS

if TYPE_CHECKING:
    from lossnet.tune import Found

__all__ = ["main"]

T = TypeVar("T")

TRAIN_EXAMPLES = """examples:
  lossnet train digits-completion
  lossnet train bibtex --method seal --loss nce --seed 0 --output runs/b0 --data-dir data
  lossnet train bibtex --method cross-entropy --loss soft-f1 --score-weight 30
  lossnet train mine.csv --labels 'label_*' --output runs/mine
  lossnet train conll2003 --method infnet-plus --features ner+ --output runs/names --data-dir data
  lossnet train bibtex --output runs/b0 --resume     # after Ctrl-C or a crash
  torchrun --nproc-per-node 2 -m lossnet train bibtex --output runs/b0     # in two processes
  lossnet train bibtex --seeds 10 --output runs/ten  # a folder for each, and a table
  lossnet train bibtex --seeds 3 --sweep task_lr=1e-3,3e-3 energy_weight=1,2 --output runs/rates
"""

TUNE_EXAMPLES = """examples:
  lossnet tune digits-pairs --method cross-entropy --trials 20 --epochs 20
  lossnet tune bibtex --search samples=10,20,40 task_lr=1e-4:1e-2:log --output runs/searched
  lossnet tune bibtex --output runs/tuned    # the same again: goes on, or helps; workers share the trials
  lossnet tune bibtex --storage postgresql://me:secret@host/tuning   # workers on many machines
  lossnet train bibtex --recipe runs/tuned/best.yaml
"""

#: how labels are chosen, given a model's tuned threshold
DECODERS: dict[str, Callable[[float], Decoder]] = {
    "tuned": Threshold,
    "0.5": lambda tuned: Threshold(),
    "expected-f1": lambda tuned: ExpectedF1(),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status (0 fine, 2 bad input, 3 diverged, 130 interrupted)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser, with_recipes = _parsers()
        options = parser.parse_args(given)
        command = options.subcommand
        if command in with_recipes:
            _set_recipe(with_recipes[command], options[command])
            options = parser.parse_args(given)
            options[command].given = given
        with _plain_warnings():
            _COMMANDS[command](options[command])
            sys.stdout.flush()
        return 0
    except Interrupted as stop:
        advice = "continue with the same command and --resume"
        if stop.checkpoint is None:
            advice = "nothing is saved without --output"
        return _fail(f"{stop}\n{advice}", 130)
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "stopped", 130)
    except NonFiniteLoss as error:
        return _fail(str(error), 3)
    except BrokenPipeError:  # such as '| head', which has seen enough
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 0
    except OverflowError as error:
        return _fail(f"a number is too large: {error}", 2)
    except (ValueError, OSError, ImportError) as error:
        # Our own errors (bad data, recipe, checkpoint, model) are ValueErrors that say what to do.
        return _fail(str(error), 2)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings as a line of text, without the line of code that they come from."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *where: print(f"lossnet: {message}", file=sys.stderr)
        yield


def _fail(message: str, status: int) -> int:
    rank = launched_rank() or 0
    if not rank or status == 2:  # what stops all processes is said once, but one may lack a file
        print(f"lossnet{f' (process {rank})' * bool(rank)}: {message}", file=sys.stderr)
    return status


# ---------------------------------------------------------------- commands


def _train(options: Namespace) -> None:
    output: Path | None = options.output
    if output is not None and options.resume and (output / "result.json").exists():
        raise ValueError(f"{output} is finished: there is nothing to resume")
    if output is not None and not options.resume:
        if (output / "result.json").exists():
            raise ValueError(f"{output} already holds a result; choose another --output or remove it")
        if (output / "checkpoint.safetensors").exists():
            raise ValueError(f"{output} holds an interrupted run; continue it with --resume, or remove it")
    run = _run(options, output=output, resume=options.resume, track=options.track)
    torch.set_num_threads(max(1, options.threads))
    if options.seeds is not None or options.sweep:
        if launched_rank() is not None:
            raise ValueError("--seeds and --sweep train in one process: leave torchrun out")
        with _going_on_from(output):
            _train_many(run, options)
        return
    with _going_on_from(output):
        result = train(run)
    if launched_rank():
        return
    title = f"{result['dataset']}, {result['method']} ({result['loss']}), seed {result['seed']}"
    _show_metrics(title, result["metrics"])
    _print(f"{result['steps']} steps in {result['seconds']} s; split: {result['split']}")
    if output is not None:
        _print(f"result, model and history are in {output}")
        _report_of(output, options)


@contextmanager
def _going_on_from(output: Path | None) -> Iterator[None]:
    """Ctrl-C where training does not hear it, as while a result is measured, says what is saved."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as stop:
        names = ("checkpoint.safetensors", "*/checkpoint.safetensors", "*/result.json")
        saved = [path for name in names if output is not None for path in output.glob(name)]
        if not saved:
            raise
        raise Interrupted(f"stopped; progress is saved in {output}", saved[0]) from stop


def _report_of(output: Path, options: Namespace) -> None:
    """Writes the page about a run that is finished, whatever becomes of its page."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reading the data has already said what there is to say
            path = report.write([output], data_dir=options.data_dir, progress=not options.quiet)
    except (Exception, KeyboardInterrupt) as error:
        why = "stopped" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
        where = [] if options.data_dir is None else ["--data-dir", str(options.data_dir)]
        again = shlex.join(["lossnet", "report", str(output), *where])
        print(
            f"lossnet: the run is complete, but not its page ({why}); to try again: {again}", file=sys.stderr
        )
    else:
        _print(f"the report is in {path}")


def _train_many(run: Run, options: Namespace) -> None:
    """Several seeds, and every combination of the settings that are swept."""
    swept = _each_once("--sweep", map(parse_sweep, options.sweep or ()))
    results = train_many(variants(run, 1 if options.seeds is None else options.seeds, swept))
    heading, rows = summary(results, list(swept))
    table = Table(*heading, title=f"{run.data}, {run.method}: mean ± standard deviation over seeds")
    for row in rows:
        table.add_row(*row)
    _print(table)
    if run.output is not None:
        _print(f"a folder for each run, results.jsonl and table.md are in {run.output}")


def _each_once(option: str, named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """What was given for each setting; for none of them twice."""
    found: dict[str, T] = {}
    for name, values in named:
        if name in found:
            raise ValueError(f"{option}: {name} is there twice; write all of its values after one {name}=")
        found[name] = values
    return found


def _run(options: Namespace, **others: Any) -> Run:
    """The run that options of `_add_run` ask for."""
    names = [field.name for field in dataclasses.fields(Settings)]
    return Run(
        data=options.data,
        method=options.method,
        loss=options.loss,
        settings=Settings(**{name: options[name] for name in names}),
        seed=options.seed,
        data_dir=options.data_dir,
        split=options.split,
        labels=options.labels,
        embeddings=options.embeddings,
        device=options.device,
        progress=not options.quiet,
        **others,
    )


def _tune(options: Namespace) -> None:
    from lossnet.tune import Search, parse, search  # an extra

    names = [field.name for field in dataclasses.fields(Settings)]
    flags = {argument.partition("=")[0] for argument in options.given}
    wanted = Search(
        _run(options),
        options.trials,
        _each_once("--search", map(parse, options.search or ())),
        frozenset(name for name in names if _flag(name) in flags),
        options.study,
        options.storage,
        options.output,
    )
    torch.set_num_threads(max(1, options.threads))
    try:
        found = search(wanted, tell=lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "stopped; trials that were done are kept, and the same command goes on with the others"
        ) from None
    _show_trials(found)
    _print(f"all trials are in {found.output / 'trials.jsonl'}")
    if found.complete:
        command = ["lossnet", "train", options.data, "--recipe", str(found.output / "best.yaml")]
        print(f"to train with the best settings: {shlex.join([*command, *_data_flags(options)])}")


def _data_flags(options: Namespace) -> list[str]:
    """The flags that say which data, as they were given."""
    given: dict[str, list[Any] | None] = {
        "--data-dir": options.data_dir and [options.data_dir],
        "--split": options.split and [options.split],
        "--labels": options.labels,
        "--embeddings": options.embeddings,
    }
    return [str(word) for flag, values in given.items() if values for word in (flag, *values)]


def _show_trials(found: Found, shown: int = 5) -> None:
    """The best trials, as many as fit beside each other, and how many ended how."""
    best = found.complete[:shown]
    if best:
        heads = (str(trial["number"]) for trial in best)
        table = Table("trial", *heads, title="best trials, on validation data")
        table.add_row(found.metric, *(f"{trial[found.metric]:.4f}" for trial in best))
        for name in best[0]["settings"]:
            values = (trial["settings"][name] for trial in best)
            table.add_row(name, *(f"{v:.3g}" if isinstance(v, float) else str(v) for v in values))
        table.add_row("epochs", *(str(trial["epochs"]) for trial in best))
        table.add_row("seconds", *(f"{trial['seconds']:.1f}" for trial in best))
        _print(table)
    counts = Counter(trial["state"] for trial in found.trials)
    again = sum("retry_of" in trial for trial in found.trials)
    line = f"{len(found.trials)} trials: {', '.join(f'{count} {state}' for state, count in counts.items())}"
    _print(line + f"; {again} of them for one that was lost" * (again > 0))


def _evaluate(options: Namespace) -> None:
    model, device = _loaded(options), find_device(options.device)
    if options.split is None and _streams(model, options.data):
        metrics = {"all rows": stream.evaluate(model, options.data, device)}
    else:
        metrics = {
            name: model.task.measure(*model.probabilities(part, device), model.threshold)
            for name, part in _parts(model, options).items()
        }
    several = f" and {len(options['with'])} more" if options["with"] else ""
    _show_metrics(f"{options.model}{several} on {options.data}", metrics)
    if options.output is not None:
        others = {"with": [str(path) for path in options["with"]]} if options["with"] else {}
        write_json(options.output, {"model": str(options.model), **others, "metrics": metrics})


def _loaded(options: Namespace) -> Predictor:
    """The model asked for, or the mean of several."""
    model = load(options.model)
    return Ensemble([model, *map(load, options["with"])]) if options["with"] else model


def _streams(model: Predictor, path: str) -> bool:
    """Whether a file counts whole and is read in parts."""
    columns = isinstance(model.task, TagTask) and bool(data.find_parts(path))
    return _is_file(path) and (columns or isinstance(model.task, LabelTask))


def _is_file(path: str) -> bool:
    """Whether there is a file or a pipe."""
    return Path(path).is_file() or Path(path).is_fifo()


def _parts(model: Predictor, options: Namespace) -> dict[str, Dataset]:
    """What to evaluate on: valid and test of a data set."""
    task = model.task
    if isinstance(task, LabelTask) and _is_file(options.data):
        whole = data.read_inputs(options.data, task.feature_names, task.label_names)
        if task.preprocessor is not None:
            whole = task.preprocessor.apply(whole)
        split = data.Split.read(options.split, len(whole))
        return {"valid": whole.take(split.valid), "test": whole.take(split.test)}
    loaded = data.load(
        options.data,
        options.data_dir,
        options.split,
        preprocessor=task.preprocessor if isinstance(task, LabelTask) else None,
        lexicon=task.lexicon if isinstance(task, TagTask) else None,
    )
    if not task.fits(loaded):
        what = f"{options.data} does not have the inputs and {task.kind} of the model in {options.model}"
        raise ValueError(f"{what}; give data like those it was trained on")
    return {"valid": loaded.valid, "test": loaded.test}


def _predict(options: Namespace) -> None:
    model = _loaded(options)
    if isinstance(model.task, TagTask):
        _predict_tags(model, options)
        return
    if options.text is not None:
        raise ValueError(f"--text is for models that tag sentences; this one predicts {model.task.kind}")
    if options.input is None:
        raise ValueError("give a file to predict for")
    if isinstance(model.task, MaskTask):
        _predict_masks(model, options)
        return
    _check_not_over(options.input, options.output)
    decode, parts = DECODERS[options.decode](model.threshold), stream.predict_labels(model, options.input)
    first, row = next(parts), 0  # before anything is written: the file may not be what it should be
    with _written(options.output) as file:
        writer = csv.writer(file)
        writer.writerow(["row", "labels", *model.label_names])
        for probabilities, _ in chain([first], parts):
            for values, picks in zip(probabilities, decode(probabilities), strict=True):
                named = [model.label_names[i] for i in np.flatnonzero(picks.numpy())]
                writer.writerow([row, ";".join(named), *(f"{value:.6g}" for value in values.tolist())])
                row += 1


def _predict_tags(model: Predictor, options: Namespace) -> None:
    """Lines of token, tab and tag, with an empty one between sentences."""
    assert isinstance(model.task, TagTask)
    if (options.text is None) == (options.input is None):
        raise ValueError("give sentences: as --text, or as a file with one on each line, or in columns")
    if options.text is None:
        sentences = stream.predict_tags(model, options.input)
    else:
        given = [line for line in options.text.splitlines() if line.strip()]
        if not given:
            raise ValueError("--text has no sentence; give some words")
        sentences = iter(model.tag(given))
    _check_not_over(options.input, options.output)
    first = list(islice(sentences, 1))  # before anything is written: the file may not be what it should be
    with _written(options.output) as file:
        for tokens in chain(first, sentences):
            file.writelines(f"{token}\t{tag}\n" for token, tag in tokens)
            file.write("\n")


def _check_not_over(source: Path | str | None, target: Path | None) -> None:
    """Refuses to write where the input lies: it is not read whole before."""
    there = source is not None and Path(source).exists() and target is not None and target.exists()
    if there and os.path.samefile(str(source), str(target)):
        raise ValueError(f"{target} would be written over what is read; give another place with -o")


@contextmanager
def _written(path: Path | None) -> Iterator[TextIO]:
    """A file to write to, or what is printed."""
    if path is None:
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        yield file


def _predict_masks(model: Predictor, options: Namespace) -> None:
    assert isinstance(model.task, MaskTask)
    if options.output is None:
        raise ValueError("masks are written as images: give a folder with -o")
    source = Path(options.input)
    _check_not_over(source, options.output if source.is_dir() else options.output / f"{source.stem}.png")
    count = 0
    for name, image in data.stream_pictures(options.input, model.task.channels):
        options.output.mkdir(parents=True, exist_ok=True)
        data.write_mask(options.output / f"{name}.png", model.predict(image[None])[0])
        count += 1
    _print(f"{count} mask{'s' * (count != 1)} in {options.output}")


def _export(options: Namespace) -> None:
    from lossnet.export import export  # an extra

    model = load(options.model)
    difference = export(model, options.file)
    _print(f"{options.file} predicts {model.task.kind}; largest difference from PyTorch: {difference:.2g}")


def _serve(options: Namespace) -> None:
    from lossnet.serve import Limits, serve  # an extra

    token = None
    if options.token_file is not None:
        token = options.token_file.read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError(f"{options.token_file}: the file is empty; write a token into it")
    limits = Limits(
        body=options.max_body * (1 << 20),
        instances=options.max_instances,
        waiting=options.queue,
        seconds=options.timeout,
    )
    model = load(options.model)

    def ready(address: str) -> None:
        # In one line, however long, for programs that wait for it.
        print(f"serving {options.model} ({model.task.kind}) on {address}, Ctrl-C stops", flush=True)

    serve(model, options.host, options.port, limits, token, options.threads, ready)


def _report(options: Namespace) -> None:
    path = report.write(options.runs, options.output, options.data_dir)
    _print(f"the report is in {path}")


def _data(options: Namespace) -> None:
    if options.action == "list":
        table = Table("name", "what", "at hand")
        for name in data.names():
            entry = data.entry(name)
            found = not entry.files or data.find(name, options.data_dir) is not None
            table.add_row(name, entry.description, "yes" if found else "no")
        _print(table)
        return
    if options.name is None:
        raise ValueError("name a data set or a file: lossnet data show digits-completion")
    shown = data.describe(options.name, options.data_dir, options.split, options.labels)
    table = Table("property", "value", title=shown.name)
    for key, value in dataclasses.asdict(shown).items():
        table.add_row(key.replace("_", " "), _readable(value))
    _print(table)


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(f"{name} ({count})" for name, count in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _methods(options: Namespace) -> None:
    table = Table("method", "losses (default first)", "what it does")
    for name, entry in METHODS.items():
        table.add_row(name, ", ".join(entry.losses), entry.summary)
    _print(table)


def _bench(options: Namespace) -> None:
    bench.run(
        options.name,
        output=options.output,
        seeds=options.seeds,
        data_dir=options.data_dir,
        device=options.device,
        jobs=options.jobs,
    )


_COMMANDS: dict[str, Callable[[Namespace], None]] = {
    "train": _train,
    "tune": _tune,
    "evaluate": _evaluate,
    "predict": _predict,
    "export": _export,
    "serve": _serve,
    "report": _report,
    "data": _data,
    "methods": _methods,
    "bench": _bench,
}


# ---------------------------------------------------------------- parsers


class _Help(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps line breaks in descriptions and examples."""


def _parser(description: str, examples: str = "", usage: str | None = None) -> ArgumentParser:
    return ArgumentParser(description=description, epilog=examples, formatter_class=_Help, usage=usage)


def _parsers() -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    """The whole command line, and those commands of it whose defaults a recipe may change."""
    parser = ArgumentParser(
        prog="lossnet",
        description="Train networks with a loss that is itself a network.",
        version=lossnet.__version__,
        formatter_class=_Help,
        allow_abbrev=False,  # '_tune' looks for flags by their names
    )
    commands = parser.add_subcommands(required=True)

    training = _parser(
        "Train on a data set and leave result, model, history and a report.",
        TRAIN_EXAMPLES,
        usage="lossnet train DATA [--method METHOD] [--loss LOSS] [--output DIR] [options]",
    )
    _add_run(training)
    training.add_argument(
        "--seeds", type=int | None, help="so many runs, from --seed on, at once where possible"
    )
    training.add_argument(
        "--sweep",
        type=str | None,
        nargs="+",
        metavar="NAME=VALUES",
        help="a run for each of a setting's values a,b,c, and for all combinations",
    )
    training.add_argument("--output", type=Path | None, help="folder for what the run leaves")
    training.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    training.add_argument("--track", type=str | None, help=f"follow epochs with {', '.join(TRACKERS)}")
    _add_settings(training, "settings (a recipe changes the defaults)")
    commands.add_subcommand("train", training, help="train a model")

    tuning = _parser(
        "Search for settings on validation data, and leave the best as a recipe.",
        TUNE_EXAMPLES,
        usage="lossnet tune DATA [--method METHOD] [--loss LOSS] [--trials N] [--output DIR] [options]",
    )
    _add_run(tuning)
    tuning.add_argument(
        "--output", type=Path | None, help="folder for recipe and trials; else runs/tune/STUDY"
    )
    tuning.add_argument("--trials", type=int, default=30, help="settings to try, by all workers together")
    tuning.add_argument(
        "--search",
        type=str | None,
        nargs="+",
        metavar="NAME=VALUES",
        help="search a setting in low:high, low:high:log or a,b,c, beside the method's own",
    )
    tuning.add_argument(
        "--study", type=str, default="", help="name in the storage; by default of data and method"
    )
    tuning.add_argument("--storage", type=str, default="", help="database for workers on many machines")
    _add_settings(tuning, "settings (those given are not searched; a recipe changes the others' defaults)")
    commands.add_subcommand("tune", tuning, help="search for settings")

    evaluation = _parser(
        "Evaluate a model on a data set or a file with labels.",
        "examples:\n  lossnet evaluate runs/b0 bibtex --data-dir data\n"
        "  lossnet evaluate runs/b0 bibtex --with runs/b1 runs/b2   # probabilities of three, averaged",
    )
    evaluation.add_argument("model", type=Path, help="a run's folder or its model folder")
    evaluation.add_argument("data", type=str, help="a registered name, or a file, which counts whole")
    _add_others(evaluation)
    evaluation.add_argument("--data-dir", type=Path | None, help="where data sets are")
    evaluation.add_argument("--split", type=Path | None, help="JSON: rows of train, valid, test")
    evaluation.add_argument("--device", type=str, default="cpu", help="cpu or cuda")
    evaluation.add_argument("--output", type=Path | None, help="JSON file for the metrics")
    commands.add_subcommand("evaluate", evaluation, help="evaluate a model")

    prediction = _parser(
        "Predict labels (one CSV row per instance, with label names and probabilities), masks or tags.",
        "examples:\n  lossnet predict runs/b0 input.arff -o out.csv\n"
        "  lossnet predict runs/names --text 'Ann Lee went to Paris.'",
    )
    prediction.add_argument("model", type=Path, help="a run's folder or its model folder")
    prediction.add_argument("input", type=str | None, nargs="?", help="a file with the model's inputs")
    _add_others(prediction)
    prediction.add_argument("--text", type=str | None, help="sentences to tag, one on each line")
    prediction.add_argument("-o", "--output", type=Path | None, help="file, or folder of masks; else printed")
    prediction.add_argument("--decode", default="tuned", choices=list(DECODERS), help="how labels are chosen")
    commands.add_subcommand("predict", prediction, help="predict with a model")

    exporting = _parser(
        "Write a model as an ONNX file, checked against PyTorch on random inputs.",
        "example:\n  lossnet export runs/b0 b0.onnx",
    )
    exporting.add_argument("model", type=Path, help="a run's folder or its model folder")
    exporting.add_argument("file", type=Path, help="the ONNX file to write")
    commands.add_subcommand("export", exporting, help="write a model as ONNX")

    serving = _parser(
        "Answer predictions over HTTP (POST /predict, GET /health, /metrics, /openapi.json) until stopped.",
        "examples:\n  lossnet serve runs/b0\n"
        "  lossnet serve runs/b0 --host 0.0.0.0 --token-file token.txt    # for others, who know the token",
    )
    serving.add_argument("model", type=Path, help="a run's folder or its model folder")
    serving.add_argument("--host", type=str, default="127.0.0.1", help="address to listen on")
    serving.add_argument("--port", type=int, default=8000, help="0 takes any that is free")
    serving.add_argument("--token-file", type=Path | None, help="a file with what clients must know")
    serving.add_argument("--max-body", type=float, default=4, help="MiB of a request")
    serving.add_argument("--max-instances", type=int, default=256, help="in one request")
    serving.add_argument("--queue", type=int, default=128, help="requests that may wait")
    serving.add_argument("--timeout", type=float, default=30, help="seconds for a request and its answer")
    serving.add_argument("--threads", type=int, default=1, help="CPU threads; small networks want 1")
    commands.add_subcommand("serve", serving, help="answer predictions over HTTP")

    reporting = _parser(
        "Write one HTML page about runs on the same data: figures, curves, what was learned, examples.",
        "examples:\n  lossnet report runs/b0\n"
        "  lossnet report runs/seal-* runs/ce-* --data-dir data --output page.html   # seeds are grouped",
    )
    reporting.add_argument("runs", type=Path, nargs="+", help="folders that 'lossnet train' left")
    reporting.add_argument(
        "--output", type=Path | None, help="HTML file; by default report.html in the first"
    )
    reporting.add_argument("--data-dir", type=Path | None, help="where data sets are")
    commands.add_subcommand("report", reporting, help="write a page about runs")

    datasets = _parser(
        "List data sets, or show one.",
        "examples:\n  lossnet data list\n  lossnet data show bibtex --data-dir data",
    )
    datasets.add_argument("action", choices=["list", "show"], help="what to do")
    datasets.add_argument("name", type=str | None, nargs="?", help="the data set to show")
    _add_data_options(datasets)
    commands.add_subcommand("data", datasets, help="list or show data sets")

    commands.add_subcommand(
        "methods", _parser("List methods and losses.", "example:\n  lossnet methods"), help="list methods"
    )

    benchmark = _parser("Run a benchmark.", "example:\n  lossnet bench digits --output runs/digits")
    benchmark.add_argument("name", choices=list(bench.NAMES), help="which")
    benchmark.add_argument("--output", type=Path, default=Path("runs/bench"), help="folder")
    benchmark.add_argument("--seeds", type=int, default=3, help="how many")
    benchmark.add_argument("--data-dir", type=Path | None, help="where data sets are")
    benchmark.add_argument("--device", type=str, default="auto", help="cpu, cuda or auto")
    benchmark.add_argument("--jobs", type=int, default=1, help="runs at a time")
    commands.add_subcommand("bench", benchmark, help="run a benchmark")
    return parser, {"train": training, "tune": tuning}


def _add_run(parser: ArgumentParser) -> None:
    """What to train, and on what."""
    parser.add_argument("data", type=str, help="a name from 'lossnet data list', or a file")
    parser.add_argument("--method", default="seal", choices=list(METHODS), help="how to train")
    parser.add_argument("--loss", type=str, default="", help="see 'lossnet methods'")
    parser.add_argument("--seed", type=int, default=0, help="decides everything random")
    parser.add_argument("--recipe", type=str | None, help="a recipe's name or YAML file")
    _add_data_options(parser)
    parser.add_argument("--embeddings", type=Path | None, nargs="+", help="files with word vectors")
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda or auto")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; small networks want 1")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_others(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--with",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="DIR",
        help="models whose probabilities are averaged with this one's, as of other seeds",
    )


def _add_data_options(parser: ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path | None, help="where data sets are")
    parser.add_argument("--split", type=Path | None, help="JSON: rows of train, valid, test")
    parser.add_argument(
        "--labels", type=str | None, nargs="+", help="label columns or patterns, for CSV and such"
    )


def _add_settings(parser: ArgumentParser, title: str) -> None:
    """A flag for each setting, with its type, default and help from `Settings`."""
    parsed = docstring_parser.parse(Settings.__doc__ or "")
    texts = {entry.arg_name: entry.description for entry in parsed.params}
    types = get_type_hints(Settings)
    group = parser.add_argument_group(title)
    for field in dataclasses.fields(Settings):
        flag = _flag(field.name)
        group.add_argument(flag, type=types[field.name], default=field.default, help=texts[field.name])


def _flag(setting: str) -> str:
    return "--" + setting.replace("_", "-")


def _set_recipe(parser: ArgumentParser, options: Namespace) -> None:
    """Makes a recipe's settings the defaults: the one asked for, or the data set's own."""
    loss = options.loss or default_loss(options.method)
    recipe = recipe_settings(options.data, options.method, loss, options.recipe)
    if options.recipe:
        recipe = {**recipe, **recipe_names_of(options.recipe)}
    if recipe:
        parser.set_defaults(recipe)


def _print(what: Table | str) -> None:
    """Prints without reading markup: label names and paths may hold square brackets."""
    Console(markup=False, highlight=False).print(what)


def _show_metrics(title: str, metrics: dict[str, dict[str, float]]) -> None:
    table = Table("", *metrics, title=title)
    for name in next(iter(metrics.values())):
        table.add_row(name, *(f"{part[name]:.4f}" for part in metrics.values()))
    _print(table)


if __name__ == "__main__":
    sys.exit(main())
