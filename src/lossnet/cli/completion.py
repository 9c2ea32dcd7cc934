"""Scripts that complete words of ``lossnet`` in a shell, made from the parsers."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple, get_args

from lossnet.cli.parsers import GOALS


class _Word(NamedTuple):
    """A flag: its help and, where it takes any, the values that it can have; none for a file or a number."""

    about: str
    values: tuple[str, ...]
    takes_value: bool


class _Words(NamedTuple):
    """What may follow a command: flags by their names, and arguments that are names, or paths."""

    flags: Mapping[str, _Word]
    values: tuple[str, ...]
    paths: bool


def script(shell: str, parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """Return the script for ``bash``, ``zsh`` or ``fish`` that completes these commands.

    >>> from lossnet.cli.parsers import parsers
    >>> "digits-pairs" in script("bash", parsers())
    True
    """
    named = _names()
    words = {name: _words(parser, named) for name, parser in parsers.items()}
    makers: dict[str, Callable[[Mapping[str, _Words]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return makers[shell](words)


def _names() -> dict[str, tuple[str, ...]]:
    """Return the values of flags and arguments that are names of ours."""
    from lossnet.build import AUTO, METHODS
    from lossnet.data import names
    from lossnet.decoding import LABEL_DECODERS
    from lossnet.recipes import recipe_names
    from lossnet.settings import all_settings
    from lossnet.training.tracking import TRACKERS

    settings = {name: get_args(one.type) for name, one in all_settings().items()}
    return settings | {
        "data": names(),
        "name": names(),
        "method": (AUTO, *METHODS),
        "loss": tuple(sorted({loss for spec in METHODS.values() for loss in spec.losses})),
        "goal": GOALS,
        "decode": tuple(LABEL_DECODERS),
        "recipe": tuple(recipe_names()),
        "track": tuple(TRACKERS),
        "device": ("auto", "cpu", "cuda"),
        "encoding": ("utf-8", "latin-1", "utf-16", "cp1252"),
    }


def _words(parser: argparse.ArgumentParser, named: Mapping[str, tuple[str, ...]]) -> _Words:
    flags: dict[str, _Word] = {}
    values: tuple[str, ...] = ()
    paths = False
    for action in parser._actions:
        own = tuple(action.choices or named.get(action.dest, ()))
        if action.dest == "help" and action.metavar:
            own = (*getattr(parser, "groups", ()), "all")
        if not action.option_strings:
            values, paths = (*values, *own), paths or not action.choices
        about = " ".join((action.help or "").replace("%%", "%").split())
        for flag in action.option_strings:
            flags[flag] = _Word(about, own, action.nargs != 0)
    return _Words(flags, values, paths)


def _bash(words: Mapping[str, _Words]) -> str:
    """Complete by a case for each command and, in it, for each flag that has values of ours."""
    lines = [
        "# bash completion of lossnet",
        "_lossnet() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words="" files=""',
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    COMPREPLY=($(compgen -W {shlex.quote(" ".join([*words, "--help", "--version"]))} -- "$word"))',
        "    return",
        "  fi",
        '  case "${COMP_WORDS[1]}" in',
    ]
    for command, (flags, values, paths) in words.items():
        lines += [f"  {command})", '    case "$before" in']
        for flag, one in flags.items():
            if one.values:
                lines.append(f"    {flag}) words={shlex.quote(' '.join(one.values))} ;;")
        free = "|".join(flag for flag, one in flags.items() if one.takes_value and not one.values)
        if free:
            lines.append(f"    {free}) files=yes ;;")
        lines += [
            "    *)",
            f'      if [[ "$word" == -* ]]; then words={shlex.quote(" ".join(flags))}',
            f"      else words={shlex.quote(' '.join(values))} files={'yes' * paths}; fi ;;",
            "    esac ;;",
        ]
    lines += [
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        '  if [ -n "$files" ]; then COMPREPLY+=($(compgen -f -- "$word")); fi',
        "}",
        "complete -o filenames -F _lossnet lossnet",
    ]
    return "\n".join(lines) + "\n"


def _zsh(words: Mapping[str, _Words]) -> str:
    lines = ["#compdef lossnet", "_lossnet() {", "  if (( CURRENT == 2 )); then"]
    lines += [f"    compadd -- {' '.join([*words, '--help', '--version'])}", "    return", "  fi"]
    lines += ['  case "$words[2]" in']
    for command, (flags, values, paths) in words.items():
        lines += [f"  {command})", '    case "$words[CURRENT-1]" in']
        for flag, one in flags.items():
            if one.values:
                lines.append(f"    {flag}) compadd -- {shlex.join(one.values)} ;;")
        free = "|".join(flag for flag, one in flags.items() if one.takes_value and not one.values)
        if free:
            lines.append(f"    {free}) _files ;;")
        named = [f"compadd -- {shlex.join(values)}"] if values else []
        arguments = "; ".join([*named, *["_files"] * paths]) or ":"
        lines += [
            "    *)",
            f'      if [[ "$words[CURRENT]" == -* ]]; then compadd -- {shlex.join(flags)}',
            f"      else {arguments}; fi ;;",
            "    esac ;;",
        ]
    # As a function of $fpath it is called at once; sourced from .zshrc it is registered.
    lines += ["  esac", "}"]
    lines += ['if [ "$funcstack[1]" = "_lossnet" ]; then _lossnet "$@"; else compdef _lossnet lossnet; fi']
    return "\n".join(lines) + "\n"


def _fish(words: Mapping[str, _Words]) -> str:
    lines = [
        "# fish completion of lossnet",
        f"complete -c lossnet -f -n __fish_use_subcommand -a {shlex.quote(' '.join(words))}",
    ]
    for command, (flags, values, paths) in words.items():
        start = f"complete -c lossnet -n '__fish_seen_subcommand_from {command}'"
        if values or not paths:
            lines.append(f"{start} {'' if paths else '-f '}-a {shlex.quote(' '.join(values))}")
        for flag, one in flags.items():
            kind = "-l" if flag.startswith("--") else "-s"
            line = f"{start} {kind} {flag.lstrip('-')} -d {_fish_quoted(one.about)}"
            if one.takes_value:
                line += f" -x -a {shlex.quote(' '.join(one.values))}" if one.values else " -r"
            lines.append(line)
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
