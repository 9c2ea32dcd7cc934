"""Where we are ahead of published figures, level or behind, and what each claim has beside its baseline.

All of it is made from the lines of other benchmarks.  A *verdict* is by Student's interval of 95 % of a mean
over seeds: of figures against a published one, of differences seed by seed against nothing (a paired t-test
at 5 %).  Predictions of single instances are not kept, so that the chance of the test part is not in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import citations, digits, implicit, mlc, ner, pos, seal, segmentation
from benchmarks.grid import Cell, chance
from lossnet.analysis import Estimate, estimate

__all__ = ["CELLS", "Claim", "best", "claims", "covered", "rows", "shown_estimate", "tally", "verdict"]

#: lines by the stem of their file
Lines = Callable[[str], Sequence[Mapping[str, Any]]]
AHEAD, LEVEL, BEHIND = "**ahead**", "level", "behind"
WAYS = {"f1": "F1 at 0.5", "f1_expected": "expected F1"}
METRICS = {**WAYS, "accuracy": "accuracy", "span_f1": "span F1", "iou": "mean IoU"}


def verdict(difference: Estimate) -> str:
    """Return what the interval of a difference says; nothing for a single seed.

    >>> [verdict(Estimate(mean, 1.0)) for mean in (1.5, -0.5, -2.0)]
    ['**ahead**', 'level', 'behind']
    >>> verdict(Estimate(1.5, None))
    ''
    """
    if difference.half is None:
        return ""
    if abs(difference.mean) <= difference.half:
        return LEVEL
    return AHEAD if difference.mean > 0 else BEHIND


def shown_estimate(found: Estimate, sign: bool = False) -> str:
    """A mean and half the width of its interval."""
    half = "" if found.half is None else f" ± {found.half:.2f}"
    return f"{found.mean:{'+' if sign else ''}.2f}{half}".replace("-", "−")


def _scores(
    lines: Iterable[Mapping[str, Any]], data: str, title: str, metric: str, part: str = "test"
) -> dict[int, float]:
    """A metric in points, by seed."""
    found: dict[int, float] = {}
    for one in lines:
        if (one["dataset"], one["title"]) == (data, title):
            if one["seed"] in found:
                raise ValueError(f"several runs of {title!r} on {data} have seed {one['seed']}")
            found[one["seed"]] = 100 * one["metrics"][part][metric]
    return found


def _less(scores: Mapping[int, float], figure: float) -> Estimate:
    """The difference to a published figure."""
    found = estimate([*scores.values()])
    return Estimate(found.mean - figure, found.half)


def _seeds(seeds: Iterable[int]) -> str:
    """Seeds as a list, or as a range.

    >>> _seeds([2, 0, 1]), _seeds([0, 2])
    ('0–2', '0, 2')
    """
    found = sorted(seeds)
    whole = len(found) > 2 and found == [*range(found[0], found[-1] + 1)]
    return f"{found[0]}–{found[-1]}" if whole else ", ".join(map(str, found))


# ---------------------------------------------------------------- the best published figures


@dataclass(frozen=True)
class Best:
    """The best published figure of a task, and where ours are: cells of files, and a metric of the papers."""

    task: str
    figure: float
    system: str
    metrics: tuple[str, ...]
    sources: tuple[tuple[str, tuple[Cell, ...]], ...]


def _of(cells: Sequence[Cell], data: str, start: str = "", without: str = "\0") -> tuple[Cell, ...]:
    return tuple(
        cell
        for cell in cells
        if cell.data == data and cell.title.startswith(start) and without not in cell.title
    )


def _labels(data: str, figure: float, system: str) -> Best:
    sources = {"mlc": (*mlc.CELLS, mlc.STACK), "seal": seal.CELLS, "implicit": implicit.CELLS}
    own = tuple((file, _of(cells, data)) for file, cells in sources.items())
    return Best(data, figure, system, tuple(WAYS), own)


def _names(inputs: str, figure: float, system: str) -> Best:
    # NER+ is followed by a colon, or by a comma and the width; not by another plus.
    own = tuple(
        cell
        for cell in ner.CELLS
        if re.match(re.escape(inputs) + r"[:,]", cell.title) and "clusters" not in cell.title
    )
    return Best(f"conll2003, {inputs}", figure, system, ("span_f1",), (("tagging", own),))


def _references(labelled: int, figure: float, system: str) -> Best:
    data = f"{citations.DATA}, {labelled} labels"
    own = tuple(Cell(title, data, row.method) for title, row in citations.ROWS.items())
    return Best(data, figure, system, ("accuracy",), (("citations", own),))


BEST = (
    _labels("bibtex", 48.6, "GSPEN (UAI Table 1)"),
    _labels("delicious", 36.04, "SEAL-ranking (ICLR Table 2)"),
    _labels("genbase", 97.32, "SEAL-NCE (SEAL Table 1)"),
    _labels("cal500", 48.21, "DVN (ICLR Table 2)"),
    _labels("expr_fun", 38.28, "SEAL-NCE (SEAL Table 1)"),
    _labels("spo_fun", 29.97, "DVN (ICLR Table 2)"),
    Best(
        "twitter-pos",
        90.1,
        "implicit NCE (UAI supplement Table 4)",
        ("accuracy",),
        (("tagging", pos.CELLS),),
    ),
    _names("NER", 86.3, "InfNet+ with GE(c) (InfNet+ Table 4)"),
    _names("NER+", 90.4, "InfNet+ with GE(c) (InfNet+ Table 4)"),
    _names("NER++", 91.0, "InfNet+ with GE(c) (InfNet+ Table 4)"),
    Best(
        "horses",
        89.4,
        "implicit NCE (UAI supplement Table 5)",
        ("iou",),
        (("segmentation", segmentation.HORSES),),
    ),
    *(
        _references(labelled, figure, "implicit NCE (UAI Table 4)")
        for labelled, figure in zip(citations.LABELLED, (58.9, 67.8, 82.9), strict=True)
    ),
)


def best(lines: Lines) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: our best row on validation data against the best published figure of each task."""
    heading = ["data", "metric", "published", "system", "ours, best on validation data", "test", "seeds"]
    found = []
    for task in BEST:
        for metric in task.metrics:
            tried = [
                (file, cell, _scores(lines(file), cell.data, cell.title, metric, "valid"))
                for file, cells in task.sources
                for cell in cells
            ]
            # A single seed may be the best by luck.
            several = [one for one in tried if len(one[2]) > 2]
            file, cell, _ = max(several, key=lambda one: estimate([*one[2].values()]).mean)
            scores = _scores(lines(file), cell.data, cell.title, metric)
            figures = [
                f"{task.figure:g}",
                task.system,
                cell.title,
                shown_estimate(estimate([*scores.values()])),
            ]
            says = verdict(_less(scores, task.figure))
            found.append([task.task, METRICS[metric], *figures, _seeds(scores), says])
    return [*heading, "verdict"], found


# ---------------------------------------------------------------- claims beside their baselines


@dataclass(frozen=True)
class Claim:
    """Two rows of a data set that are compared seed by seed."""

    file: str
    data: str
    title: str
    other: str
    metrics: tuple[str, ...] = tuple(WAYS)


def _claims() -> Iterable[Claim]:
    for data in ("bibtex", "cal500", "genbase", "expr_fun", "spo_fun"):
        yield Claim("seal", data, "SEAL-NCE", "CE")
        yield Claim("seal", data, "SEAL-NCE", "SEAL-NCE, weight 0")
    yield Claim("mlc", "delicious", "SEAL-NCE, authors' settings", "CE, authors' settings")
    for data in ("bibtex", "delicious", "cal500"):
        yield Claim("mlc", data, "CE + soft-F1", "CE, tuned")
        yield Claim("mlc", data, "SEAL-NCE + soft-F1", "CE + soft-F1")
    yield Claim("mlc", "bibtex", "stack, calibrated", "CE, tuned", ("f1_expected",))
    for data in ("bibtex", "delicious", "cal500", "genbase"):
        yield Claim("implicit", data, "NCE + implicit", "NCE")
        yield Claim("implicit", data, "NCE + soft-F1 + implicit", "CE + soft-F1")
    for cells in (digits.CELLS, digits.PAIRS):
        for other in ("CE", "CE + soft-F1", "SEAL-NCE, weight 0"):
            yield Claim("digits", cells[0].data, "SEAL-NCE", other)
    places = (("twitter-pos", "", "accuracy"), *((ner.DATA, f"{i}: ", "span_f1") for i in ("NER", "NER+")))
    for data, start, metric in places:
        for title in ("compound, stacked", "SEAL-NCE", "implicit NCE"):
            yield Claim("tagging", data, start + title, f"{start}BiLSTM", (metric,))
        yield Claim("tagging", data, f"{start}compound, stacked", f"{start}margin", (metric,))
    for title, other in (
        ("FCN, SEAL regression", "FCN, CE"),
        ("FCN, CE + soft-IoU", "FCN, CE"),
        (
            "FCN, SEAL NCE, smooth, U-Net as energy",
            "FCN, SEAL NCE, smooth, U-Net as energy, weight 0",
        ),
    ):
        yield Claim("segmentation", "horses", title, other, ("iou",))
    for labelled in citations.LABELLED:
        for other in ("cross-entropy", "mean teacher"):
            data = f"{citations.DATA}, {labelled} labels"
            yield Claim("citations", data, "rules", other, ("accuracy",))


CLAIMS = tuple(_claims())


def claims(lines: Lines) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: each claim's difference to its baseline, with its interval, p-value and verdict.

    In the metric of the papers and, for label sets, by expected F1.
    """
    heading = ["data", "metric", "row", "beside", "difference", "p", "verdict"]
    found = []
    for claim in CLAIMS:
        parts: list[str] = []
        seeds: list[int] = []
        for metric in claim.metrics:
            own, other = (
                _scores(lines(claim.file), claim.data, title, metric) for title in (claim.title, claim.other)
            )
            seeds = sorted(own.keys() & other.keys())
            if len(seeds) > 1:
                gaps = [own[seed] - other[seed] for seed in seeds]
                gap = estimate(gaps)
                parts += [shown_estimate(gap, sign=True), chance(gaps), verdict(gap)]
        if parts:
            parts += [""] * (6 - len(parts))
            metric = METRICS[claim.metrics[0]]
            found.append([claim.data, metric, claim.title, claim.other, *parts, _seeds(seeds)])
    return [*heading, "expected F1: difference", "p", "verdict", "seeds"], found


# ---------------------------------------------------------------- row by row

#: the tables of results: file, cells, metric
TABLES: Mapping[str, tuple[str, Sequence[Cell], str]] = {
    "SEAL Table 1, authors' training": ("seal", seal.CELLS, "f1"),
    "SEAL Table 1, the other rows": ("mlc", mlc.REST, "f1"),
    "SEAL Table 1 and UAI Table 1, grouped steps": ("mlc", mlc.MAIN, "f1"),
    "UAI Table 5": ("implicit", implicit.CELLS, "f1"),
    "InfNet+ Tables 1 and 2, tweets": ("tagging", pos.CELLS, "accuracy"),
    "InfNet+ Tables 1, 2 and 4, names": ("tagging", ner.CELLS, "span_f1"),
    "SEAL Table 4, horses": ("segmentation", segmentation.HORSES, "iou"),
    "UAI Table 4, citations": (
        "citations",
        tuple(
            Cell(title, f"{citations.DATA}, {labelled} labels", row.method, published=figure)
            for title, row in citations.ROWS.items()
            for labelled, figure in zip(citations.LABELLED, row.published, strict=True)
        ),
        "accuracy",
    ),
}


def rows(lines: Lines) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: every row that has a published figure, the highest where papers differ."""
    heading = ["table", "data", "row", "metric", "ours", "published", "seeds", "verdict"]
    found = []
    for table, (file, cells, metric) in TABLES.items():
        for cell in cells:
            scores = _scores(lines(file), cell.data, cell.title, metric)
            if scores and (figure := _published(cell)):
                shown = [shown_estimate(estimate([*scores.values()])), f"{figure:g}", _seeds(scores)]
                says = verdict(_less(scores, figure))
                found.append([table, cell.data, cell.title, METRICS[metric], *shown, says])
    return heading, found


def _published(cell: Cell) -> float | None:
    """The highest figure that papers have for a row.

    >>> _published(Cell("", "", "", published="84.7 (Table 1), 84.4 (Table 2)"))
    84.7
    """
    return max(map(float, re.findall(r"\d+\.\d+", cell.published)), default=None)


def tally(lines: Lines) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: for each table, how many rows are ahead of the figures published for them."""
    verdicts = [AHEAD, LEVEL, BEHIND]
    found = []
    _, every = rows(lines)
    for table in TABLES:
        mine = [row[-1] for row in every if row[0] == table]
        found.append([table, str(len(mine)), *(str(mine.count(one)) for one in verdicts)])
    total = [sum(int(row[place]) for row in found) for place in range(1, 5)]
    return ["rows of", "rows", "ahead", "level", "behind"], [*found, ["all", *map(str, total)]]


# ---------------------------------------------------------------- what has been run

#: all sets of SEAL's Table 1
SETS = ("bibtex", "delicious", "genbase", "cal500", "eurlexev", "expr_fun", "spo_fun")
#: what rows of SEAL's Table 1 (ranking: its ICLR version) are called with grouped steps, in another file
GROUPED = {
    "CE": "CE, authors' settings",
    "SEAL-NCE": "SEAL-NCE, authors' settings",
    "SEAL-ranking": "SEAL-ranking, authors' settings",
    **{
        title: f"{method}, {loss}, authors' settings"
        for title, (method, loss, _) in seal.ROWS.items()
        if (method, loss) in mlc.OTHERS
    },
    "SEAL-margin": "seal, margin, authors' settings",
}
SYSTEMS: Mapping[str, tuple[tuple[str, str], ...]] = {
    title: (("seal", title), ("mlc", GROUPED[title])) for title in seal.ROWS
}
#: UAI Tables 1 and 5: our rows with the implicit term, and their sets
IMPLICIT = tuple(f"{name} + implicit" for name in implicit.OBJECTIVES.values())
IMPLICIT_SETS = ("bibtex", "delicious", "eurlexev")
#: how many cells the papers' tables have
CELLS = len(SYSTEMS) * len(SETS) + len(IMPLICIT) * len(IMPLICIT_SETS)
ENOUGH = 3


def covered(lines: Lines) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: with how many seeds each cell of the papers' multi-label tables was run."""
    found, full = [], 0
    systems = {**SYSTEMS, **{title: (("implicit", title),) for title in IMPLICIT}}
    for system, places in systems.items():
        sets = IMPLICIT_SETS if system in IMPLICIT else SETS
        counts = {
            data: max(len(_scores(lines(file), data, title, "f1")) for file, title in places) for data in sets
        }
        full += sum(count >= ENOUGH for count in counts.values())
        found.append([system, *(str(counts.get(data, "")) for data in SETS)])
    last = [f"cells with {ENOUGH} seeds or more", f"{full} of {CELLS}", *[""] * (len(SETS) - 1)]
    return ["system", *SETS], [*found, last]
