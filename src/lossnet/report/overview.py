"""Sections about runs of every kind: figures, curves and settings."""

from __future__ import annotations

from collections.abc import Sequence

from lossnet.analysis import Estimate, difference, estimate
from lossnet.report.draw import COLOURS, Interval, Line, interval_chart, line_chart
from lossnet.report.markup import Cell, Markup, join, missing, table, tag
from lossnet.report.runs import Comparison
from lossnet.scores import headlines, metric


def summary(comparison: Comparison) -> Markup:
    """Return what the page is about, and its figure beside the baseline's."""
    subject, baseline = comparison.subject, comparison.baseline
    name = next(iter(_headlines(comparison) or subject.first.metrics))
    result, seeds = subject.first.result, ", ".join(str(run.seed) for run in subject.runs)
    facts = [f"split: {result['split']}", f"{'seeds' if len(subject.runs) > 1 else 'seed'} {seeds}"]
    facts += [f"{result.get('steps', '?')} steps in {result['seconds']:g} s"]
    what = f"{subject.first.part} {_title(name)}"
    tiles = [_tile(group.title, _points(group.values(name)), what) for group in comparison.shown]
    if baseline is not None and subject.values(name) and baseline.values(name):
        gap = difference(subject.values(name), baseline.values(name))
        verdict = "one seed cannot tell this from chance"
        if gap.half is not None:
            verdict = f"the 95 % interval {'excludes' if abs(gap.mean) > gap.half else 'includes'} 0"
        tiles.append(_tile("difference", _spread(gap, "+"), verdict))
    return join(
        tag("h1", comparison.title),
        tag("p", " · ".join(facts), class_="note"),
        tag("div", *tiles, class_="tiles"),
    )


def figures(comparison: Comparison) -> Markup:
    """Return every metric of every group, with confidence intervals."""
    groups, baseline = comparison.groups, comparison.baseline
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.metrics)
    rows, plain = [], {}
    for name in names:
        columns = [group.values(name) for group in groups]
        if metric(name).higher_is_better is None:
            plain[_title(name)] = columns
            continue
        cells = [Cell(_title(name)), *(Cell(_points(values)) for values in columns)]
        if baseline is not None:
            pair = comparison.subject.values(name), baseline.values(name)
            cells.append(Cell(_spread(difference(*pair), "+") if all(pair) else "–"))
        rows.append(cells)
    plain["seconds"] = [[run.result["seconds"] for run in group.runs] for group in groups]
    for title, columns in plain.items():
        means = [f"{estimate(values).mean:.3g}" if values else "–" for values in columns]
        rows.append([Cell(title), *map(Cell, means), *([] if baseline is None else [Cell("")])])
    heading = ["", *(group.title for group in groups), *([] if baseline is None else ["difference"])]
    note = "Points: mean over seeds ± half of the 95 % confidence interval (Student’s t); dots are seeds."
    if baseline is not None:
        note += f" The difference is {comparison.subject.title} less {baseline.title}, with Welch’s interval."
    charts = []
    for name in _headlines(comparison):
        intervals = []
        for colour, group in enumerate(groups):
            if points := [100 * value for value in group.values(name)]:
                intervals.append(Interval(group.title, *estimate(points), colour, points))
        charts.append(tag("figure", interval_chart(f"{groups[0].first.part} {_title(name)}", intervals)))
    return join(tag("div", *charts, class_="charts"), table(heading, rows), tag("p", note, class_="note"))


def _headlines(comparison: Comparison) -> list[str]:
    return [name for name in headlines() if comparison.subject.values(name)]


def _tile(title: str, figure: str, note: str) -> Markup:
    return tag("div", tag("span", title), tag("b", figure), tag("span", note, class_="note"), class_="tile")


def _title(name: str) -> str:
    known = metric(name)
    return f"{known.title} (lower is better)" if known.higher_is_better is False else known.title


def _points(values: Sequence[float]) -> str:
    return _spread(estimate(values)) if values else "–"


def _spread(value: Estimate, sign: str = "") -> str:
    """Return a mean with its interval in points; ``sign`` is "+" to show the sign."""
    text = f"{100 * value.mean:{sign}.2f}".replace("-", "−")
    return text if value.half is None else f"{text} ±\u00a0{100 * value.half:.2f}"


def curves(comparison: Comparison) -> Markup:
    """Return everything in the histories: validation metric and losses first, the rest folded."""
    every = dict.fromkeys(name for group in comparison.groups for run in group.runs for name in run.curves)
    if not every:
        return missing("No run has a history.")
    leading = {f"valid {name}" for name in headlines()}
    first = [name for name in every if name in leading or name.endswith(": loss")]
    charts = {}
    for name in every:
        lines = [
            Line(f"{group.title}, seed {run.seed}", *run.curves[name], colour)
            for colour, group in enumerate(comparison.groups)
            for run in group.runs
            if name in run.curves
        ]
        charts[name] = tag("figure", line_chart(name.replace("_", " "), lines, across="epoch"))
    legend = [
        tag("span", group.title, class_=f"key c{colour % COLOURS}")
        for colour, group in enumerate(comparison.groups)
    ]
    parts = [
        tag("p", *legend, class_="legend"),
        tag("div", *(charts.pop(name) for name in first), class_="charts"),
        tag("p", "One line for each seed; epochs are counted through all stages of training.", class_="note"),
    ]
    if charts:
        heading = tag("summary", f"{len(charts)} more curve{'s' * (len(charts) != 1)}")
        parts.append(tag("details", heading, tag("div", *charts.values(), class_="charts")))
    return join(*parts)


def settings(comparison: Comparison) -> Markup:
    """Return every setting, and where the runs come from; what differs is bold."""
    groups = comparison.groups
    results = [group.first.result for group in groups]
    chosen = [result["settings"] for result in results]
    names = dict.fromkeys(name for one in chosen for name in one)
    every = {name.replace("_", " "): [one.get(name, "–") for one in chosen] for name in names}
    origin = {
        "seeds": [", ".join(str(run.seed) for run in group.runs) for group in groups],
        "folders": [", ".join(str(run.folder) for run in group.runs) for group in groups],
        "epochs": [", ".join(str(run.result.get("epochs", "–")) for run in group.runs) for group in groups],
        "device": [result.get("device", "–") for result in results],
        "commit": [str(result.get("commit") or "–")[:12] for result in results],
        "versions": [", ".join(f"{k} {v}" for k, v in result["versions"].items()) for result in results],
    }
    heading = ["", *(group.title for group in groups)]
    tables = []
    for part in (every, origin):
        rows = []
        for name, values in part.items():
            kind = "words differs" if len(set(map(str, values))) > 1 else "words"
            rows.append([Cell(name), *(Cell(str(value), kind=kind) for value in values)])
        tables.append(table(heading, rows))
    return join(*tables)
