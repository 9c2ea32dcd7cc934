"""Figures on pages, written from the results that they are taken from: ``python docs/tools/figures.py``.

A measured figure is on a page in one of three ways, which readers of the site cannot tell apart:

- A table is written as a whole, by what wrote it for the benchmark.  ``blocks.py`` lists them::

    <!-- made: mlc -->
    | data | method | …

    <!-- end -->

- A figure in a sentence has a comment behind it that says where it comes from::

    44.9 ± 0.2<!-- mlc / bibtex / CE, tuned / f1_tuned -->

  These are the file ``docs/results/mlc.jsonl``, a data set, a title and a metric of test data (``valid.f1``:
  of validation data; ``seconds``: of the run).  Two titles with `` - `` between them give the differences
  seed by seed.  ``name=value`` chooses among runs of a title: ``… / f1 / goal=exact-match``.
  The figure is in points and has the form of the one that stands there: the mean, or the mean ± the standard
  deviation, with as many decimals.  A new figure begins as ``?``, or as ``0.00`` for another form.
  ``speed.json / a.b.c`` is a number of a JSON file.

- A figure of which no raw data are kept is typed twice, on the page and in a comment of its paragraph, list
  or table, with where it comes from::

    It took 0.61 s as CUDA graphs and 7.1 s without. <!-- stated: 0.61 7.1; one H200, runs not kept -->

The script brings all pages up to date, a build of the site does so for the site, and the tests fail where
that changes anything, and where a figure has no source.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from functools import cache
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
RESULTS = DOCS / "results"
# Benchmarks of this checkout make the tables, wherever another one may be installed.
sys.path[:0] = [str(DOCS.parent / "src"), str(DOCS.parent), str(DOCS / "tools")]

import blocks  # noqa: E402

_SPREAD = r"[+−-]?\d+(?:\.\d+)?[ \u00a0]±[ \u00a0]\d+(?:\.\d+)?"
#: a figure and its source
MARKED = re.compile(
    rf"(?P<figure>{_SPREAD}|[+−-]?\d+(?:\.\d+)?|\?)<!-- (?!stated:)(?P<source>[^>]*? / [^>]*?) -->"
)
#: what is written as a whole
MADE = re.compile(r"<!-- made: (?P<name>.*?) -->\n(?P<text>.*?)\n\n<!-- end -->", re.DOTALL)
#: figures of a paragraph, list or table that have no other source, and where they come from
STATED = re.compile(r"<!-- stated: (?P<figures>[^;]*); \S[^>]*? -->")
#: any number that stands for itself: not the 1 of F1, the 200 of H200 or the 2003 of CoNLL-2003
NUMBER = re.compile(r"(?<![\w.,-])[+−]?\d+(?:[.,]\d+)*(?:e-?\d+)?")
#: a number that looks like a measurement: with an exponent, a sign or decimals, spread, of points or percent
MEASURED = re.compile(
    r"(?<![\w.,§-])(?<!Python )(?:"
    r"\d+(?:\.\d+)?e-?\d+|[+−]\d+(?:\.\d+)?|\d+\.\d+(?!\.?\d)"
    r"|(?<=±\s)\d+|\d+(?=\s(?:±|points?\b|%)))"
)
#: what is no text: code, addresses, formulas, comments, headings, and a threshold that all label sets know
NO_TEXT = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\$[^$]*\$|<!--.*?-->|^#.*?$|\b(?:at|above|least|threshold of) 0\.5(?!\d)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the figures of each page when it is read."""
    app.connect("source-read", lambda app, name, text: text.__setitem__(0, filled(text[0], name)))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def filled(page: str, name: str = "a page") -> str:
    """Return a page with all figures as the results have them."""

    def written(match: re.Match[str]) -> str:
        return f"<!-- made: {match['name']} -->\n{made(match['name'])}\n\n<!-- end -->"

    def current(match: re.Match[str]) -> str:
        try:
            return f"{figure(match['source'], match['figure'])}<!-- {match['source']} -->"
        except (ValueError, KeyError, OSError) as error:
            raise ValueError(f"{name}: the figure from {match['source']!r}: {error}") from error

    return MARKED.sub(current, MADE.sub(written, page))


def problems(page: str, every: bool = False) -> list[str]:
    """Return what is wrong with the figures of a page: those that are stale, and those without a source.

    With ``every``, all numbers are figures; else those that look like measurements.
    """
    found = []
    for part in parts(page):
        if (whole := MADE.fullmatch(part)) and whole["text"] == made(whole["name"]):
            continue
        if (new := filled(part)) != part:
            found.append(f"run docs/tools/figures.py for\n{part}\nwhich should be\n{new}")
        if (numbers := unsourced(part, every)) != (sources := stated(part)):
            found.append(f"{numbers} have no source but {sources} in\n{part}")
    return found


def parts(page: str) -> list[str]:
    """Return what is written as a whole, and the paragraphs, lists and tables between, without code."""
    found = []
    pieces = re.split(
        r"(^<!-- made: .*?^<!-- end -->$|^ *```.*?^ *```$)", page, flags=re.DOTALL | re.MULTILINE
    )
    for piece in pieces:
        if piece.startswith("<!-- made"):
            found.append(piece)
        elif not piece.lstrip().startswith("```"):
            found += [part for part in re.split(r"\n\s*\n", piece) if part.strip() and not is_code(part)]
    return found


def is_code(part: str) -> bool:
    """Whether all lines of a part are indented as code is, and none is of a list."""
    return all(re.match(r" {4}(?! *[-*|\d])", line) for line in part.strip("\n").splitlines())


def unsourced(part: str, every: bool = False) -> list[str]:
    """Return the figures that no file is named for."""
    text = NO_TEXT.sub("", MARKED.sub("", MADE.sub("", part)))
    return (NUMBER if every else MEASURED).findall(text)


def stated(part: str) -> list[str]:
    """Return the figures that a paragraph, list or table states."""
    return [number for match in STATED.finditer(part) for number in match["figures"].split()]


@cache
def made(name: str) -> str:
    """Return what is written as a whole under a name."""
    if name not in blocks.BLOCKS:
        raise ValueError(f"no block is called {name!r}")
    return blocks.BLOCKS[name]()


def figure(source: str, form: str = "0.0 ± 0.0") -> str:
    """Return what a comment names, in points, in the form of another figure."""
    form = "0.0 ± 0.0" if form == "?" else form
    mean, spread = ([*re.split(r"[ \u00a0]±[ \u00a0]", form), ""])[:2]
    digits = len(mean.partition(".")[2])
    numbers, differ = values(source)
    try:
        sign = "+" if differ and (spread or mean[0] in "+−-") else ""
        shown = f"{statistics.mean(numbers):{sign}.{digits}f}"
        if spread:
            shown += f" ± {statistics.stdev(numbers):.{digits}f}"
    except statistics.StatisticsError as error:
        raise ValueError("a spread takes two seeds or more") from error
    return re.sub(r"^[+-](?=0(?:\.0*)?(?: |$))", "", shown).replace("-", "−")


@cache
def values(source: str) -> tuple[list[float], bool]:
    """Return the numbers that a comment names, and whether they are differences."""
    file, *names = source.split(" / ")
    if file.endswith(".json"):
        return [_number(file, *names)], False
    dataset, titles, metric, *conditions = names
    chosen = dict(condition.split("=", 1) for condition in conditions)
    first, *others = (scores(file, dataset, title, metric, chosen) for title in titles.split(" - "))
    if not others:
        return list(first.values()), False
    (second,) = others
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())], True


@cache
def _number(file: str, path: str) -> float:
    """Return a number of a JSON file, metrics in points."""
    found = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    for name in path.split("."):
        found = found[name]
    return float(found) * (100 if path.startswith("metrics.") else 1)


def scores(
    file: str, dataset: str, title: str, metric: str, chosen: dict[str, str] | None = None
) -> dict[int, float]:
    """Return a metric in points, or the seconds, by seed."""
    part, _, name = metric.rpartition(".")
    found: dict[int, float] = {}
    for run in _runs(file):
        wanted = {"dataset": dataset, "title": title, **(chosen or {})}
        if all(str(run.get(key)) == value for key, value in wanted.items()):
            if run["seed"] in found:
                raise ValueError(f"several runs of {title!r} on {dataset} have seed {run['seed']}")
            found[run["seed"]] = (
                run["seconds"] if metric == "seconds" else 100 * run["metrics"][part or "test"][name]
            )
    if not found:
        raise ValueError(f"no run of {title!r} on {dataset} in {file}.jsonl")
    return found


@cache
def _runs(file: str) -> list[dict[str, Any]]:
    lines = (RESULTS / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()
    return [_standard(json.loads(line)) for line in lines]


def _standard(run: dict[str, Any]) -> dict[str, Any]:
    """Return a line of results; those of ``lossnet demo`` are about one data set and its test data."""
    if "figures" not in run:
        return run
    return {**run, "dataset": "digits-pairs", "metrics": {"test": run["figures"]}}


def pages() -> list[Path]:
    """Return the README and all pages that are not made when the site is."""
    made = DOCS / "api", DOCS / "reference"
    return [DOCS.parent / "README.md", *(p for p in sorted(DOCS.glob("**/*.md")) if p.parent not in made)]


if __name__ == "__main__":
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if (new := filled(text, path.name)) != text:
            path.write_text(new, encoding="utf-8")
            print(path)
