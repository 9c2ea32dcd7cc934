"""Figures on pages, written from the results that they are taken from: ``python docs/tools/figures.py``.

A figure of a page has a comment behind it that says where it comes from, which readers do not see::

    44.9 ± 0.2<!-- mlc / bibtex / CE, tuned / f1_tuned -->

These are the file ``docs/results/mlc.jsonl``, a data set, a title and a metric of test data.  The figure is
the mean over seeds, in points, ± the standard deviation.  Two titles with `` - `` between them give the mean
of the differences seed by seed, ± their standard deviation.  Where a file has several runs of a title and a
seed, ``name=value`` chooses among them: ``… / f1 / goal=exact-match``.

The script brings all pages up to date, a build of the site does so for the site, and the tests fail where
that changes anything.
"""

from __future__ import annotations

import json
import re
import statistics
from functools import cache
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
RESULTS = DOCS / "results"

#: a figure and its source
MARKED = re.compile(
    r"(?P<figure>[+−-]?\d+(?:\.\d+)?[ \u00a0]±[ \u00a0]\d+(?:\.\d+)?|\?)<!-- (?P<source>.*?) -->"
)


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the figures of each page when it is read."""
    app.connect("source-read", lambda app, name, text: text.__setitem__(0, filled(text[0], name)))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def filled(page: str, name: str = "a page") -> str:
    """Return a page with all marked figures as the results have them."""

    def current(match: re.Match[str]) -> str:
        try:
            return f"{figure(match['source'])}<!-- {match['source']} -->"
        except (ValueError, KeyError, OSError) as error:
            raise ValueError(f"{name}: the figure from {match['source']!r}: {error}") from error

    return MARKED.sub(current, page)


def figure(source: str) -> str:
    """Return mean and standard deviation of what a comment names, in points."""
    file, dataset, titles, metric, *conditions = source.split(" / ")
    chosen = dict(condition.split("=", 1) for condition in conditions)
    first, *others = (scores(file, dataset, title, metric, chosen) for title in titles.split(" - "))
    if not others:
        return _spread(list(first.values()), "")
    (second,) = others
    common = sorted(first.keys() & second.keys())
    return _spread([first[seed] - second[seed] for seed in common], "+")


def scores(
    file: str, dataset: str, title: str, metric: str, chosen: dict[str, str] | None = None
) -> dict[int, float]:
    """Return a metric of test data, in points, by seed."""
    found: dict[int, float] = {}
    for run in _runs(file):
        wanted = {"dataset": dataset, "title": title, **(chosen or {})}
        if all(str(run.get(name)) == value for name, value in wanted.items()):
            if run["seed"] in found:
                raise ValueError(f"several runs of {title!r} on {dataset} have seed {run['seed']}")
            found[run["seed"]] = 100 * run["metrics"]["test"][metric]
    if not found:
        raise ValueError(f"no run of {title!r} on {dataset} in {file}.jsonl")
    return found


def _spread(values: list[float], sign: str) -> str:
    if len(values) < 2:
        raise ValueError("a spread takes two seeds or more")
    mean, deviation = statistics.mean(values), statistics.stdev(values)
    return f"{mean:{sign}.1f} ± {deviation:.1f}".replace("-", "−")


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
