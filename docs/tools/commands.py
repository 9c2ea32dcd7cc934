"""The page about the command line, made from the parsers that also print its help.

It is written to ``docs/reference`` before each build.  A new command or flag needs no line here.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from sphinx.application import Sphinx

from lossnet import cli

#: characters in a line of a literal block
WIDTH = "100"


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the page when a build begins."""
    app.connect("config-inited", lambda app, config: write(Path(app.srcdir) / "reference"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write(folder: Path) -> None:
    """Write the page, unless it is there."""
    path, text = folder / "command-line.rst", page()
    folder.mkdir(exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def page() -> str:
    """Return all commands, each with its description, usage, arguments and examples."""
    lines = [*_title("The command line", "=")]
    lines += ["``lossnet COMMAND --help`` prints the same.", "", escape(inspect.getdoc(cli.main) or ""), ""]
    with mock.patch.dict(os.environ, COLUMNS=WIDTH):
        for name, command in cli.parsers().items():
            lines += _section(name, command)
    return "\n".join(lines)


def _section(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    yield from _title(f"lossnet {name}", "-")
    yield from (escape(command.description or ""), "")
    usage = re.sub(r"^usage: (lossnet) (?:\[options\] )?", r"\1 ", command.format_usage())
    yield from _shown(re.sub(r"\n +", "\n    ", usage.strip()))
    yield from (f".. program:: lossnet {name}", "")
    for group in command._action_groups:
        actions = [action for action in group._group_actions if action.dest != "help"]
        if actions and group.title not in ("positional arguments", "options"):
            yield from (f"**{escape(group.title or '')}**", "")
        for action in actions:
            yield from _argument(action)
    if command.epilog:
        yield from _shown(command.epilog)


def _argument(action: argparse.Action) -> Iterator[str]:
    """Yield an argument's names, purpose, choices and default."""
    choices = list(action.choices or ())
    placeholder = str(action.metavar or action.dest.upper())
    if action.nargs == 0:
        placeholder = ""
    elif action.nargs == "+":
        placeholder += " …"
    names = [f"{flag} {placeholder}".strip() for flag in action.option_strings]
    said = [escape(_sentence(" ".join((action.help or "").split())))]
    if choices:
        said.append("One of " + ", ".join(f"``{choice}``" for choice in choices) + ".")
    if action.option_strings and action.nargs != 0 and action.default not in (None, "", argparse.SUPPRESS):
        said.append(f"Default: ``{_plain(action.default)}``.")
    yield from (f".. option:: {', '.join(names) or action.dest.upper()}", "", f"   {' '.join(said)}", "")


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sentence(text: str) -> str:
    """Return help as a sentence of its own."""
    return text if text.endswith(".") else f"{text}."


def escape(text: str) -> str:
    """Return text in which nothing is markup."""
    return re.sub(r"([\\*`_|<>])", r"\\\1", text)


def _shown(text: str) -> Iterator[str]:
    """Yield text in a literal block."""
    yield from ("::", "", *(f"   {line}".rstrip() for line in text.strip().splitlines()), "")


def _title(text: str, under: str) -> list[str]:
    return [text, under * len(text), ""]
