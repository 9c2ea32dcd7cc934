"""All of the page, in order."""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console

from lossnet.analysis import Estimate, difference, estimate
from lossnet.report import labels, masks
from lossnet.report.draw import COLOURS, Interval, Line, interval_chart, line_chart
from lossnet.report.evidence import Evidence, Section, Tell, collect
from lossnet.report.markup import Markup, join, tag
from lossnet.report.runs import Comparison, Group, compare, read_run
from lossnet.report.tables import Cell, missing, table
from lossnet.tasks import LabelTask, MaskTask

__all__ = ["write"]

#: what else there is to see, by the kind of outputs
KINDS: dict[str, Callable[[Evidence, Tell], list[Section]]] = {
    LabelTask.kind: labels.sections,
    MaskTask.kind: masks.sections,
}
#: metrics that deserve a picture
HEADLINES = ("f1", "f1_tuned", "iou", "accuracy", "span_f1")
NAMES = {
    "f1": "F1 at 0.5",
    "f1_tuned": "F1, tuned threshold",
    "f1_expected": "F1, highest expected",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "iou": "IoU",
    "span_f1": "span F1",
}


def write(
    folders: Sequence[Path | str],
    output: Path | str | None = None,
    data_dir: Path | str | None = None,
    progress: bool = True,
) -> Path:
    """Writes the page about one or more runs on the same data and returns where it is.

    Args:
        folders: of runs.  Those that differ in their seed alone are shown together.
        output: the HTML file; ``report.html`` in the first folder by default.
        data_dir: where data sets are, to show examples; without data the page shows the rest.
        progress: say on standard error what is being done.
    """
    if not folders:
        raise ValueError("give at least one run's folder")
    unique = list({Path(folder).resolve(): folder for folder in folders}.values())
    comparison = compare([read_run(folder) for folder in unique])
    path = Path(folders[0]) / "report.html" if output is None else Path(output)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file for the page")
    with _told(progress) as tell:
        page = _page(comparison, None if data_dir is None else Path(data_dir), tell)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, path)
    return path


@contextmanager
def _told(progress: bool) -> Iterator[Tell]:
    if not progress:
        yield lambda _: None
        return
    with Console(stderr=True).status("reading runs") as status:
        yield lambda what: status.update(what.replace("[", r"\["))


def _page(comparison: Comparison, data_dir: Path | None, tell: Tell) -> str:
    sections = [
        Section("Comparison", _comparison(comparison)),
        Section("Learning curves", _curves(comparison)),
    ]
    try:
        evidence = collect(comparison, data_dir, tell)
    except (ValueError, OSError, ImportError) as error:
        hint = "Give --data-dir if the data are elsewhere; the rest of this page does not need them."
        sections.append(Section("Predictions", missing(f"No examples: {error}. {hint}")))
    else:
        sections += KINDS[evidence.subject.model.task.kind](evidence, tell)
    sections.append(Section("Settings", _settings(comparison)))
    links = [tag("a", section.title, href=f"#{_identifier(section.title)}") for section in sections]
    parts = [
        tag("section", tag("h2", section.title), section.body, id=_identifier(section.title))
        for section in sections
    ]
    title = f"{comparison.subject.title} on {comparison.dataset}"
    return _document(title, join(_summary(comparison), tag("nav", *links), *parts))


def _document(title: str, content: Markup) -> str:
    """The file: nothing is fetched, and no script runs but the page's own."""
    here = resources.files("lossnet.report")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag("body", tag("main", content), tag("script", Markup(script)))
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _identifier(title: str) -> str:
    return title.lower().replace(" ", "-")


# ---------------------------------------------------------------- summary and comparison


def _summary(comparison: Comparison) -> Markup:
    subject, baseline = comparison.subject, comparison.baseline
    metric = next(
        (name for name in HEADLINES if name in subject.first.metrics), next(iter(subject.first.metrics))
    )
    result, ours = subject.first.result, estimate(subject.values(metric))
    seeds = ", ".join(str(run.seed) for run in subject.runs)
    facts = [f"split: {result['split']}", f"{'seeds' if len(subject.runs) > 1 else 'seed'} {seeds}"]
    facts += [f"{result.get('steps', '?')} steps in {result.get('seconds', '?')} s"]
    parts = [
        tag("h1", f"{subject.title} on {comparison.dataset}"),
        tag("p", " · ".join(facts), class_="note"),
    ]
    tiles = [_tile(subject.title, _spread(ours), f"{subject.first.part} {_metric(metric)}")]
    if baseline is not None and baseline.values(metric):
        tiles.append(_tile(baseline.title, _spread(estimate(baseline.values(metric))), "the same"))
        gap = difference(subject.values(metric), baseline.values(metric))
        tiles.append(_tile("difference", _spread(gap, signed=True), _verdict(gap)))
    return join(*parts, tag("div", *tiles, class_="tiles"))


def _tile(title: str, figure: str, note: str) -> Markup:
    return tag("div", tag("span", title), tag("b", figure), tag("span", note, class_="note"), class_="tile")


def _verdict(gap: Estimate) -> str:
    if gap.half is None:
        return "one seed cannot tell this from chance"
    return "more than chance (95 %)" if abs(gap.mean) > gap.half else "within chance (95 %)"


def _comparison(comparison: Comparison) -> Markup:
    groups, baseline = comparison.groups, comparison.baseline
    metrics = list(dict.fromkeys(name for group in groups for name in group.first.metrics))
    charts = [
        interval_chart(
            f"{comparison.subject.first.part} {_metric(metric)}",
            [
                Interval(
                    group.title,
                    [100 * value for value in group.values(metric)],
                    _scaled(estimate(group.values(metric))),
                    colour,
                )
                for colour, group in enumerate(groups)
                if group.values(metric)
            ],
        )
        for metric in HEADLINES
        if metric in metrics
    ]
    rows = []
    for metric in metrics:
        cells = [Cell(_metric(metric))]
        cells += [
            Cell(_spread(estimate(values)) if (values := group.values(metric)) else "–") for group in groups
        ]
        if baseline is not None:
            pair = comparison.subject.values(metric), baseline.values(metric)
            cells.append(Cell(_spread(difference(*pair), signed=True) if all(pair) else "–"))
        rows.append(cells)
    seconds = [
        estimate([float(run.result.get("seconds", math.nan)) for run in group.runs]) for group in groups
    ]
    rows.append([Cell("seconds"), *(Cell(f"{found.mean:.3g}") for found in seconds)])
    heading = ["", *(group.title for group in groups)]
    note = "Points: mean over seeds ± half of the 95 % confidence interval (Student’s t); dots are seeds."
    if baseline is not None:
        heading.append("difference")
        rows[-1].append(Cell(""))
        note += f" The difference is {comparison.subject.title} less {baseline.title}, with Welch’s interval."
    return join(
        tag("div", *(tag("figure", chart) for chart in charts), class_="charts"),
        table(heading, rows),
        tag("p", note, class_="note"),
    )


def _metric(name: str) -> str:
    return NAMES.get(name, name.replace("_", " "))


def _scaled(found: Estimate) -> Estimate:
    return Estimate(100 * found.mean, None if found.half is None else 100 * found.half)


def _spread(found: Estimate, signed: bool = False) -> str:
    mean, half = _scaled(found)
    text = f"{mean:{'+' if signed else ''}.2f}".replace("-", "−")
    return text if half is None else f"{text} ± {half:.2f}"


# ---------------------------------------------------------------- curves and settings


def _curves(comparison: Comparison) -> Markup:
    names = list(
        dict.fromkeys(name for group in comparison.groups for run in group.runs for name in run.curves)
    )
    if not names:
        return missing("No run has a history.")
    headlines = {f"valid {metric}" for metric in HEADLINES}
    first = [name for name in names if name in headlines or name.endswith(": loss")]
    others = [name for name in names if name not in first]
    legend = [
        tag("span", group.title, class_=f"key c{colour % COLOURS}")
        for colour, group in enumerate(comparison.groups)
    ]
    return join(
        tag("p", *legend, class_="legend"),
        tag("div", *(_curve(comparison, name) for name in first), class_="charts"),
        tag(
            "details",
            tag("summary", f"{len(others)} more"),
            tag("div", *(_curve(comparison, name) for name in others), class_="charts"),
        )
        if others
        else None,
        tag("p", "One line for each seed; epochs are counted through all stages of training.", class_="note"),
    )


def _curve(comparison: Comparison, name: str) -> Markup:
    lines = [
        Line(f"{group.title}, seed {run.seed}", *run.curves[name], colour)
        for colour, group in enumerate(comparison.groups)
        for run in group.runs
        if name in run.curves
    ]
    return tag("figure", line_chart(name.replace("_", " "), lines, across="epoch"))


def _settings(comparison: Comparison) -> Markup:
    groups = comparison.groups
    names = list(dict.fromkeys(name for group in groups for name in group.settings))
    rows = [
        _setting(name.replace("_", " "), [group.settings.get(name, "–") for group in groups])
        for name in names
    ]
    facts: list[tuple[str, Callable[[Group], Any]]] = [
        ("seeds", lambda group: ", ".join(str(run.seed) for run in group.runs)),
        ("folders", lambda group: ", ".join(str(run.folder) for run in group.runs)),
        ("device", lambda group: group.first.result.get("device", "–")),
        ("epochs trained", lambda group: ", ".join(str(run.result.get("epochs", "–")) for run in group.runs)),
        ("commit", lambda group: group.first.result.get("commit") or "–"),
        ("versions", lambda group: _versions(group.first.result.get("versions"))),
    ]
    origin = [_setting(name, [value(group) for group in groups]) for name, value in facts]
    heading = ["", *(group.title for group in groups)]
    return join(table(heading, origin), tag("h3", "Every setting"), table(heading, rows))


def _setting(name: str, values: Sequence[Any]) -> list[Cell]:
    kind = "differs" if len({str(value) for value in values}) > 1 else ""
    return [Cell(name), *(Cell(str(value), kind=kind) for value in values)]


def _versions(versions: Any) -> str:
    return (
        ", ".join(f"{name} {value}" for name, value in versions.items())
        if isinstance(versions, dict)
        else "–"
    )
