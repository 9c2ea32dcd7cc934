"""The command line ``lossnet``."""

from __future__ import annotations

import argparse
import difflib
import errno
import inspect
import os
import shlex
import sys
import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, get_args

import lossnet

# A command imports what it needs when it is run: help and version need neither torch nor anything else.
if TYPE_CHECKING:
    from lossnet.data import Examples
    from lossnet.prediction import Predictor
    from lossnet.report.evidence import Fresh
    from lossnet.run import Run
    from lossnet.tune import Found

__all__ = ["exit_status", "main"]

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status (0 fine, 2 bad input, 3 diverged, 130 interrupted)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in _COMMANDS:
        outline = _outline()
        _, unknown = outline.parse_known_args(given)  # prints help or the version and exits
        what = f"{unknown[0]} is no command; " if unknown else ""
        outline.error(f"{what}give a command first: {', '.join(_COMMANDS)}")
    return exit_status(lambda: _run_command(*given))


def _run_command(command: str, *given: str) -> None:
    options = _COMMANDS[command].parser(command).parse_args(given)
    try:
        with warnings.catch_warnings():  # a line of text for each, without the code that it comes from
            warnings.showwarning = lambda message, *where: print(f"lossnet: {message}", file=sys.stderr)
            _COMMANDS[command].run(options)
    except OSError as error:
        output = getattr(options, "output", None)
        if error.errno in _DISK_ERRORS and error.filename is None and output:
            error.filename = str(output)
        raise


def exit_status(command: Callable[[], None]) -> int:
    """Run a command; print an error that ends it as one line and return the exit status."""
    from lossnet.training import Interrupted, NonFiniteLoss

    try:
        command()
        sys.stdout.flush()
        return 0
    except Interrupted as stop:
        resume, lost = "continue with the same command and --resume", "nothing is saved without --output"
        return _fail(f"{stop}\n{lost if stop.checkpoint is None else resume}", 130)
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "stopped", 130)
    except NonFiniteLoss as error:
        return _fail(str(error), 3)
    except BrokenPipeError:  # such as '| head', which has seen enough
        _close_stdout()
        return 0
    except OverflowError as error:
        return _fail(f"a number is too large: {error}", 2)
    except OSError as error:
        return _fail(_explain(error), 2)
    except (ValueError, ImportError) as error:
        # Our own errors (bad data, recipe, checkpoint, model) are ValueErrors that say what to do.
        return _fail(str(error), 2)


#: errors of a disk, with what to do about each
_DISK_ERRORS = {
    errno.ENOSPC: "free some space or choose another --output",
    errno.EDQUOT: "free some space or choose another --output",
    errno.EFBIG: "choose another --output, on a file system that takes larger files",
    errno.EROFS: "choose another --output",
}


def _explain(error: OSError) -> str:
    """Return the message of an error; for one of a disk, with the file and with advice."""
    if error.errno not in _DISK_ERRORS:
        return str(error)
    if error.filename is None:  # what is left to write would fail again when Python ends
        _close_stdout()
    what = "the standard output" if error.filename is None else error.filename
    return f"cannot write {what}: {os.strerror(error.errno)}; {_DISK_ERRORS[error.errno]}"


def _close_stdout() -> None:
    """Discard what is still to be printed."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    from lossnet.training.engines import launched_rank

    rank = launched_rank() or 0
    if not rank or status == 2:  # what stops all processes is said once, but one may lack a file
        print(f"lossnet{f' (process {rank})' * bool(rank)}: {message}", file=sys.stderr)
    return status


# ---------------------------------------------------------------- commands


def _train(options: Namespace) -> None:
    """Train on a data set and leave result, model, history and a report.

    examples:
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
    import torch

    from lossnet import ops
    from lossnet.run import carry_out, check_unused
    from lossnet.training.engines import launched_rank

    output: Path | None = options.output
    check_unused(output, options.resume)
    run = _run(options, output=output, resume=options.resume, track=options.track)
    torch.set_num_threads(max(1, options.threads))
    if options.kernels:
        ops.use_kernels(True)
    with _resumable(output):
        if options.seeds is not None or options.sweep:
            if launched_rank() is not None:
                raise ValueError("--seeds and --sweep train in one process: leave torchrun out")
            return _train_many(run, options)
        result, model, data = carry_out(run)
    if launched_rank():
        return
    title = f"{result['dataset']}, {result['method']} ({result['loss']}), seed {result['seed']}"
    _show_metrics(title, result["metrics"])
    _print(f"{result['steps']} steps in {result['seconds']} s; split: {result['split']}")
    for stage in result["stages"]:
        _print(
            f"{stage['stage']}: epoch {stage['best_epoch']} of {stage['epochs']} is kept; {stage['ended']}"
        )
    if output is not None:
        _print(f"result, model and history are in {output}")
        if options.report:
            _report_of(output, options, {output: (model, data)})


@contextmanager
def _resumable(output: Path | None) -> Iterator[None]:
    """Raise `Interrupted` for Ctrl-C outside of training, as while measuring, if a run is saved."""
    from lossnet.training import Interrupted

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


def _report_of(output: Path, options: Namespace, fresh: Fresh) -> None:
    """Write the page about a finished run; failing to do so is no error of the run."""
    from lossnet import report

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reading the data has already said what there is to say
            progress = not options.quiet
            path = report.write([output], data_dir=options.data_dir, progress=progress, fresh=fresh)
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
    """Train several seeds, and every combination of the settings that are swept."""
    from lossnet.runs import parse_sweep, summary, train_many, variants

    swept = _unique("--sweep", map(parse_sweep, options.sweep or ()))
    results = train_many(variants(run, 1 if options.seeds is None else options.seeds, swept))
    heading, rows = summary(results, list(swept))
    _print_table(heading, rows, f"{run.data}, {run.method}: mean ± standard deviation over seeds")
    if run.output is not None:
        _print(f"a folder for each run, results.jsonl and table.md are in {run.output}")


def _unique(option: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return values by the names of their settings; raise a ValueError for a name that is repeated."""
    values: dict[str, T] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{option}: {name} is there twice; write all of its values after one {name}=")
        values[name] = value
    return values


def _run(options: Namespace, **others: Any) -> Run:
    """Return the run that options of `_add_run` ask for, with its settings."""
    from lossnet.run import Run, resolve

    names = ("data", "method", "loss", "recipe", "seed", "data_dir", "split", "labels", "words")
    given = {name: getattr(options, name) for name in (*names, "embeddings", "device")}
    return resolve(Run(**given, changes=_changes(options), progress=not options.quiet, **others))


def _changes(options: Namespace) -> dict[str, Any]:
    """Return the settings that were given as flags."""
    from lossnet.settings import all_settings

    return {name: getattr(options, name) for name in all_settings() if hasattr(options, name)}


def _tune(options: Namespace) -> None:
    """Search for settings on validation data, and leave the best as a recipe.

    examples:
      lossnet tune digits-pairs --method cross-entropy --trials 20 --epochs 20
      lossnet tune bibtex --search samples=10,20,40 task_lr=1e-4:1e-2:log --output runs/searched
      lossnet tune bibtex --output runs/tuned    # the same again: goes on, or helps; workers share the trials
      lossnet tune bibtex --storage postgresql://me:secret@host/tuning   # workers on many machines
      lossnet train bibtex --recipe runs/tuned/best.yaml
    """
    import torch

    from lossnet.tune import Search, parse, search  # an extra

    wanted = Search(
        _run(options),
        options.trials,
        _unique("--search", map(parse, options.search or ())),
        frozenset(_changes(options)),
        options.study,
        options.storage,
        options.output,
    )
    torch.set_num_threads(max(1, options.threads))
    try:
        result = search(wanted, tell=lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "stopped; trials that were done are kept, and the same command goes on with the others"
        ) from None
    _show_trials(result)
    _print(f"all trials are in {result.output / 'trials.jsonl'}")
    if result.complete:
        command = ["lossnet", "train", options.data, "--recipe", str(result.output / "best.yaml")]
        for name in ("data_dir", "split", "labels", "words", "embeddings"):
            value = getattr(options, name)
            values = value if isinstance(value, list) else [value]
            command += ["--" + name.replace("_", "-"), *map(str, values)] if value else []
        print(f"to train with the best settings: {shlex.join(command)}")


def _show_trials(result: Found, shown: int = 5) -> None:
    """Print the best trials, as many as fit beside each other, and how many ended how."""
    best = result.complete[:shown]
    if best:
        rows = [["trial", *(trial["number"] for trial in best)]]
        rows += [[result.metric, *(f"{trial[result.metric]:.4f}" for trial in best)]]
        for name in best[0]["settings"]:
            values = (trial["settings"][name] for trial in best)
            rows += [[name, *(f"{v:.3g}" if isinstance(v, float) else v for v in values)]]
        rows += [["epochs", *(trial["epochs"] for trial in best)]]
        rows += [["seconds", *(f"{trial['seconds']:.1f}" for trial in best)]]
        _print_table(rows[0], rows[1:], "best trials, on validation data")
    counts = Counter(trial["state"] for trial in result.trials)
    again = sum("retry_of" in trial for trial in result.trials)
    line = f"{len(result.trials)} trials: {', '.join(f'{count} {state}' for state, count in counts.items())}"
    _print(line + f"; {again} of them for one that was lost" * (again > 0))


def _evaluate(options: Namespace) -> None:
    """Evaluate a model on a data set or a file with labels.

    examples:
      lossnet evaluate runs/b0 bibtex --data-dir data
      lossnet evaluate runs/b0 bibtex --with runs/b1 runs/b2   # probabilities of three, averaged
    """
    from lossnet import stream
    from lossnet.files import write_json
    from lossnet.run import find_device

    model, device = _loaded(options), find_device(options.device)
    if options.split is None and model.task.input.streams(options.data):
        metrics = {"all rows": stream.evaluate(model, options.data, device)}
    else:
        metrics = {name: model.measure(part, device) for name, part in _parts(model, options).items()}
    several = f" and {len(options.others)} more" if options.others else ""
    _show_metrics(f"{options.model}{several} on {options.data}", metrics)
    if options.output is not None:
        others = {"with": [str(path) for path in options.others]} if options.others else {}
        write_json(options.output, {"model": str(options.model), **others, "metrics": metrics})


def _loaded(options: Namespace) -> Predictor:
    """Return the model asked for, or the mean of several."""
    from lossnet.model import load
    from lossnet.prediction import Ensemble

    model = load(options.model)
    return Ensemble([model, *map(load, options.others)]) if options.others else model


def _parts(model: Predictor, options: Namespace) -> dict[str, Examples]:
    """Read what to evaluate on: valid and test of a data set, or of a file by a given split."""
    from lossnet.data import Split
    from lossnet.data.examples import concatenated
    from lossnet.loading import load

    task = model.task
    if task.input.streams(options.data):
        read = [part.examples for part in task.input.stream(options.data, task.output.names, labelled=True)]
        split = Split.read(options.split, sum(map(len, read)))
        whole = concatenated(task.prepare(read))
        return {"valid": whole.take(split.valid), "test": whole.take(split.test)}
    loaded = load(options.data, options.data_dir, options.split, task=task)
    if not task.matches(loaded.train):
        what = (
            f"{options.data} does not have the inputs and {task.output.kind} of the model in {options.model}"
        )
        raise ValueError(f"{what}; give data like those it was trained on")
    return {"valid": loaded.valid, "test": loaded.test}


def _predict(options: Namespace) -> None:
    """Predict labels (one CSV row per instance, with label names and probabilities), masks or tags.

    examples:
      lossnet predict runs/b0 input.arff -o out.csv
      lossnet predict runs/names --text 'Ann Lee went to Paris.'
    """
    from lossnet import stream
    from lossnet.outputs import Predicted

    model = _loaded(options)
    task = model.task
    if (options.text is None) == (options.input is None):
        raise ValueError("give a file to predict for, or --text for models that read sentences")
    decoder = model.decoder(options.decode or None)
    if options.text is not None:
        lines = [line for line in options.text.splitlines() if line.strip()]
        if not type(task.input).accepts(lines or ["a sentence"]):
            raise ValueError(f"--text is for models that read sentences; this one reads {task.input.summary}")
        if not lines:
            raise ValueError("--text has no sentence; give some words")
        examples = task.read(lines)
        predicted = iter([Predicted(examples.source, model.probabilities(examples)[0])])
    else:
        _check_not_over(options.input, options.output)
        predicted = stream.predict(model, options.input)
    line = task.output.write(predicted, decoder, options.output)
    if line is not None:
        _print(line)


def _check_not_over(source: Path | str | None, target: Path | None) -> None:
    """Raise a ValueError where the output would replace the input, which is read while writing."""
    if source is None or target is None or not Path(source).exists():
        return
    for place in (target, target / f"{Path(source).stem}.png"):  # a file, or a mask in a folder
        if place.exists() and os.path.samefile(str(source), str(place)):
            raise ValueError(f"{place} is the input file; choose another --output")


def _export(options: Namespace) -> None:
    """Write a model as an ONNX file, checked against PyTorch on random inputs.

    example:
      lossnet export runs/b0 b0.onnx
    """
    from lossnet.export import export  # an extra
    from lossnet.model import load

    model = load(options.model)
    difference = export(model, options.file)
    _print(
        f"{options.file} predicts {model.task.output.kind}; largest difference from PyTorch: {difference:.2g}"
    )


def _serve(options: Namespace) -> None:
    """Answer predictions over HTTP (POST /predict, GET /health, /metrics, /openapi.json) until stopped.

    examples:
      lossnet serve runs/b0
      lossnet serve runs/b0 --host 0.0.0.0 --token-file token.txt    # for others, who know the token
    """
    from lossnet.model import load
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
        print(f"serving {options.model} ({model.task.output.kind}) on {address}, Ctrl-C stops", flush=True)

    serve(model, options.host, options.port, limits, token, options.threads, ready)


def _report(options: Namespace) -> None:
    """Write one HTML page about runs on the same data: figures, curves, what was learned, examples.

    examples:
      lossnet report runs/b0
      lossnet report runs/seal-* runs/ce-* --data-dir data --output page.html   # seeds are grouped
    """
    from lossnet import report

    path = report.write(options.runs, options.output, options.data_dir)
    _print(f"the report is in {path}")


def _data(options: Namespace) -> None:
    """List data sets, or show one.

    examples:
      lossnet data list
      lossnet data show bibtex --data-dir data
    """
    from lossnet import data
    from lossnet.loading import describe

    if options.action == "list":
        entries = {name: data.entry(name) for name in data.names()}
        here = {n: not one.files or data.find(n, options.data_dir) is not None for n, one in entries.items()}
        rows = [[name, one.description, "yes" if here[name] else "no"] for name, one in entries.items()]
        return _print_table(["name", "what", "at hand"], rows)
    if options.name is None:
        raise ValueError("name a data set or a file: lossnet data show digits-completion")
    shown = describe(
        options.name, options.data_dir, split=options.split, labels=options.labels, words=options.words
    )
    about = {key: getattr(shown, key) for key in ("name", "description", "split_name", "instances")}
    about |= {**shown.facts, "home": shown.home, "terms": shown.terms}
    rows = [[key.replace("_", " "), _readable(value)] for key, value in about.items()]
    _print_table(["property", "value"], rows, shown.name)


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(f"{name} ({count})" for name, count in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _methods(options: Namespace) -> None:
    """List methods and losses.

    example:
      lossnet methods
    """
    from lossnet.build import METHODS

    rows = [[name, ", ".join(spec.losses), spec.summary] for name, spec in METHODS.items()]
    _print_table(["method", "losses (default first)", "what it does"], rows)


# ---------------------------------------------------------------- parsers


class _Parser(argparse.ArgumentParser):
    """A parser that keeps line breaks in texts, takes flags in full only, and suggests similar flags."""

    def __init__(self, **options: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for word in message.split():
            if word.startswith("--") and word not in flags and "unrecognized" in message:
                close = difflib.get_close_matches(word.partition("=")[0], flags, n=2)
                message += f"; did you mean {' or '.join(close)}?" if close else ""
        super().error(message)


def _outline() -> _Parser:
    """Return a parser that knows the names of commands only, which is enough for its help."""
    parser = _Parser(prog="lossnet", description="Train networks with a loss that is itself a network.")
    parser.add_argument("--version", action="version", version=f"lossnet {lossnet.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, command in _COMMANDS.items():
        commands.add_parser(name, help=command.help)
    return parser


def parsers() -> dict[str, _Parser]:
    """Return the parser of each command."""
    return {name: command.parser(name) for name, command in _COMMANDS.items()}


def _add_train(parser: _Parser) -> None:
    from lossnet.training.tracking import TRACKERS

    _add_run(parser)
    parser.add_argument("--seeds", type=int, help="number of runs, from --seed on, at once where possible")
    about = "a run for each of a setting's values a,b,c, and for all combinations"
    parser.add_argument("--sweep", nargs="+", metavar="NAME=VALUES", help=about)
    parser.add_argument("--output", type=Path, help="folder for what the run leaves")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--kernels", action="store_true", help="Triton kernels for label sets on a GPU")
    parser.add_argument("--no-report", dest="report", action="store_false", help="write no page about it")
    parser.add_argument("--track", help=f"follow epochs with {', '.join(TRACKERS)}")
    _add_settings(parser, "a recipe changes the defaults")


def _add_tune(parser: _Parser) -> None:
    _add_run(parser)
    parser.add_argument("--output", type=Path, help="folder for recipe and trials; else runs/tune/STUDY")
    parser.add_argument("--trials", type=int, default=30, help="settings to try, by all workers together")
    about = "search a setting in low:high, low:high:log or a,b,c, beside the method's own"
    parser.add_argument("--search", nargs="+", metavar="NAME=VALUES", help=about)
    parser.add_argument("--study", default="", help="name in the storage; by default of data and method")
    parser.add_argument("--storage", default="", help="database for workers on many machines")
    _add_settings(parser, "those given are not searched, a recipe changes the others' defaults")


def _add_evaluate(parser: _Parser) -> None:
    _add_model(parser, several=True)
    parser.add_argument("data", help="a registered name, or a file, which counts whole")
    parser.add_argument("--data-dir", type=Path, help="where data sets are")
    parser.add_argument("--split", type=Path, help="JSON: rows of train, valid, test")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--output", type=Path, help="JSON file for the metrics")


def _add_predict(parser: _Parser) -> None:
    from lossnet.decoding import LABEL_DECODERS

    _add_model(parser, several=True)
    parser.add_argument("input", nargs="?", help="a file with the model's inputs")
    parser.add_argument("--text", help="sentences to tag, one on each line")
    parser.add_argument("-o", "--output", type=Path, help="file, or folder of masks; else printed")
    ways = ", ".join(LABEL_DECODERS)
    parser.add_argument("--decode", default="", help=f"how labels are chosen: {ways}")


def _add_export(parser: _Parser) -> None:
    _add_model(parser)
    parser.add_argument("file", type=Path, help="the ONNX file to write")


def _add_serve(parser: _Parser) -> None:
    _add_model(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any that is free")
    parser.add_argument("--token-file", type=Path, help="a file with what clients must know")
    parser.add_argument("--max-body", type=float, default=4, help="MiB of a request")
    parser.add_argument("--max-instances", type=int, default=256, help="in one request")
    parser.add_argument("--queue", type=int, default=128, help="requests that may wait")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for a request and its answer")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; small networks want 1")


def _add_report(parser: _Parser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", help="folders that 'lossnet train' left")
    parser.add_argument(
        "--output", type=Path, help="HTML file; by default in the run's folder, or beside several"
    )
    parser.add_argument("--data-dir", type=Path, help="where data sets are")


def _add_data(parser: _Parser) -> None:
    parser.add_argument("action", choices=["list", "show"], help="what to do")
    parser.add_argument("name", nargs="?", help="the data set to show")
    _add_data_options(parser)


class _Command(NamedTuple):
    """A command: a line of help, a function that adds arguments, and one that runs.

    The docstring of the latter is the command's description and its examples.
    """

    help: str
    add: Callable[[_Parser], None]
    run: Callable[[Namespace], None]
    usage: str | None = None

    def parser(self, name: str) -> _Parser:
        """Return the parser of the command's arguments."""
        description, _, examples = (inspect.getdoc(self.run) or "").partition("\n\n")
        parser = _Parser(
            prog=f"lossnet {name}", description=description, epilog=examples + "\n", usage=self.usage
        )
        self.add(parser)
        return parser


_USAGE = "lossnet {} DATA [--method METHOD] [--loss LOSS] {}[--output DIR] [options]"
_COMMANDS = {
    "train": _Command("train a model", _add_train, _train, _USAGE.format("train", "")),
    "tune": _Command("search for settings", _add_tune, _tune, _USAGE.format("tune", "[--trials N] ")),
    "evaluate": _Command("evaluate a model", _add_evaluate, _evaluate),
    "predict": _Command("predict with a model", _add_predict, _predict),
    "export": _Command("write a model as ONNX", _add_export, _export),
    "serve": _Command("answer predictions over HTTP", _add_serve, _serve),
    "report": _Command("write a page about runs", _add_report, _report),
    "data": _Command("list or show data sets", _add_data, _data),
    "methods": _Command("list methods", lambda parser: None, _methods),
}


def _add_run(parser: _Parser) -> None:
    """Add flags that say what to train, and on what."""
    from lossnet.build import METHODS

    parser.add_argument("data", help="a name from 'lossnet data list', or a file")
    parser.add_argument("--method", choices=list(METHODS), help="how to train (default: seal)")
    parser.add_argument("--loss", help="of the method; see 'lossnet methods'")
    parser.add_argument("--seed", type=int, default=0, help="decides everything random")
    parser.add_argument("--recipe", help="a recipe, such as bibtex/seal-nce, or a YAML file")
    _add_data_options(parser)
    parser.add_argument("--embeddings", type=Path, nargs="+", help="files with word vectors")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; small networks want 1")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_model(parser: _Parser, several: bool = False) -> None:
    parser.add_argument("model", type=Path, help="a run's folder or its model folder")
    if several:
        about = "models whose probabilities are averaged with this one's, as of other seeds"
        many: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
        parser.add_argument("--with", dest="others", type=Path, metavar="DIR", help=about, **many)


def _add_data_options(parser: _Parser) -> None:
    parser.add_argument("--data-dir", type=Path, help="where data sets are")
    parser.add_argument("--split", type=Path, help="JSON: rows of train, valid, test")
    parser.add_argument("--labels", nargs="+", help="label columns or patterns, for CSV and such")
    parser.add_argument("--words", help="a column of texts, read as sentences, in a CSV")


def _add_settings(parser: _Parser, note: str) -> None:
    """Add a flag for each setting, in its group, with type, bounds, default and help from `Settings`."""
    from lossnet.settings import GROUPS, all_settings

    for group, about in GROUPS.items():
        title = parser.add_argument_group(f"{group} settings", f"{about}; {note}")
        for one in (one for one in all_settings().values() if one.group == group):
            choices = "{" + ",".join(get_args(one.type)) + "}" if get_args(one.type) else None
            metavar = choices or one.type.__name__.upper()
            title.add_argument(
                "--" + one.name.replace("_", "-"),
                type=partial(_setting, one.name),
                default=argparse.SUPPRESS,
                metavar=metavar,
                help=f"{one.help} (default: {one.default})".replace("%", "%%"),
            )


def _setting(name: str, text: str) -> Any:
    """Return the value of a setting from the command line."""
    from lossnet.settings import from_text

    try:
        return from_text(name, text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _print(what: Any) -> None:
    """Print without reading markup: label names and paths may hold square brackets."""
    from rich.console import Console

    Console(markup=False, highlight=False).print(what)


def _print_table(heading: Iterable[Any], rows: Iterable[Iterable[Any]], title: str | None = None) -> None:
    from rich.table import Table

    table = Table(*map(str, heading), title=title)
    for row in rows:
        table.add_row(*map(str, row))
    _print(table)


def _show_metrics(title: str, metrics: dict[str, dict[str, float]]) -> None:
    names = next(iter(metrics.values()))
    rows = [[name, *(f"{part[name]:.4f}" for part in metrics.values())] for name in names]
    _print_table(["", *metrics], rows, title)


if __name__ == "__main__":
    sys.exit(main())
