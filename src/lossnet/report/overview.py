"""Sections about runs of every kind: figures, curves and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lossnet.analysis import Estimate, difference, estimate
from lossnet.card import changed_settings, decoding_facts
from lossnet.report.draw import COLOURS, Interval, Line, interval_chart, line_chart
from lossnet.report.evidence import Trained
from lossnet.report.markup import Cell, Markup, join, missing, table, tag
from lossnet.report.runs import Comparison
from lossnet.scores import headlines, metric

#: more columns than these are folded
MOST_COLUMNS = 40


def summary(comparison: Comparison, models: Sequence[Trained]) -> Markup:
    """Return what the page is about, and its figure beside the baseline's."""
    subject, baseline = comparison.subject, comparison.baseline
    name = next(iter(_headlines(comparison, models) or subject.first.metrics))
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
        _remarks(comparison),
    )


def _remarks(comparison: Comparison) -> Markup | None:
    """Return what to know before believing the figures, each remark once with the runs that it is about."""
    runs: dict[str, list[str]] = {}
    for group in comparison.groups:
        for run in group.runs:
            for remark in run.result["remarks"]:
                runs.setdefault(remark, []).append(f"{group.title}, seed {run.seed}")
    total = sum(len(group.runs) for group in comparison.groups)
    items = []
    for remark, about in runs.items():
        which = "all runs" if len(about) == total else "; ".join(about)
        items.append(tag("li", remark, tag("span", f" ({which})", class_="note") if total > 1 else None))
    if not items:
        return None
    return tag(
        "div", tag("b", "Before you believe these figures"), tag("ul", *items), class_="missing remarks"
    )


def figures(comparison: Comparison, models: Sequence[Trained]) -> Markup:
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
    if any(name.endswith("_tuned") for name in names):
        note += _tuned_for(comparison)
    charts = []
    for name in _headlines(comparison, models):
        intervals = []
        for colour, group in enumerate(groups):
            if points := [100 * value for value in group.values(name)]:
                intervals.append(Interval(group.title, *estimate(points), colour, points))
        charts.append(tag("figure", interval_chart(f"{groups[0].first.part} {_title(name)}", intervals)))
    return join(tag("div", *charts, class_="charts"), table(heading, rows), tag("p", note, class_="note"))


def _headlines(comparison: Comparison, models: Sequence[Trained]) -> list[str]:
    """Return the metrics to show in pictures, the one that the subject's model is judged by first."""
    judged_by = [one.model.task.output.goal_metric(one.model.decision) for one in models[:1]]
    return [name for name in dict.fromkeys([*judged_by, *headlines()]) if comparison.subject.values(name)]


def _tuned_for(comparison: Comparison) -> str:
    """Return what thresholds were tuned for."""
    goals = dict.fromkeys(run.result["goal"] for group in comparison.groups for run in group.runs)
    named = (f"the goal {goal}" if goal else "F1 where no goal was stated" for goal in goals)
    return f" Thresholds were tuned on validation data, for {' and '.join(named)}."


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
            Line(
                ", ".join(filter(None, (group.title, f"seed {run.seed}", part.stages[0]))),
                part.epochs,
                part.values,
                colour,
            )
            for colour, group in enumerate(comparison.groups)
            for run in group.runs
            if name in run.curves
            for part in run.curves[name].by_stage()
        ]
        charts[name] = tag("figure", line_chart(name.replace("_", " "), lines, across="epoch"))
    legend = [
        tag("span", group.title, class_=f"key c{colour % COLOURS}")
        for colour, group in enumerate(comparison.groups)
    ]
    note = "One line for each seed and stage of training; epochs are counted through all stages."
    parts = [
        tag("p", *legend, class_="legend"),
        tag("div", *(charts.pop(name) for name in first), class_="charts"),
        tag("p", note, class_="note"),
    ]
    if charts:
        heading = tag("summary", f"{len(charts)} more curve{'s' * (len(charts) != 1)}")
        parts.append(tag("details", heading, tag("div", *charts.values(), class_="charts")))
    return join(*parts)


def choices(comparison: Comparison) -> Markup:
    """Return how each run's method was chosen among candidates; nothing where none was."""
    headings: dict[Markup, str] = {}
    for group in comparison.groups:
        for run in group.runs:
            if (choice := run.result["choice"]) is not None:
                headings.setdefault(_choice(choice), f"{group.title}, seed {run.seed}")
    several = len(headings) > 1
    return join(*(join(tag("h3", heading) if several else None, part) for part, heading in headings.items()))


def _choice(choice: Mapping[str, Any]) -> Markup:
    """Return candidates with their standard errors, as dots and as a table, the best first."""
    known = metric(choice["metric"])
    sign = 1 if known.higher_is_better is False else -1
    candidates = sorted(choice["candidates"], key=lambda one: (math.isnan(one["score"]), sign * one["score"]))
    intervals, rows = [], []
    for one in candidates:
        score, error = 100 * one["score"], 100 * one["error"]
        is_chosen = one["name"] == choice["chosen"]
        name = f"✓ {one['name']}" if is_chosen else one["name"]
        if not math.isnan(score):
            half = None if math.isnan(error) else error
            intervals.append(Interval(name, score, half, colour=0 if is_chosen else 1))
        cells = ["–" if math.isnan(value) else f"{value:.2f}" for value in (score, error)]
        seconds = "–" if math.isnan(one["seconds"]) else f"{one['seconds']:.3g}"
        kind = "differs" if is_chosen else ""
        rows.append([Cell(name, kind=kind), *(Cell(text, kind=kind) for text in (*cells, seconds))])
    title = f"{_title(choice['metric'])}, mean ± standard error"
    text = f"{choice['chosen']} (✓) was chosen for the goal {choice['goal']}. Means are in points."
    chart = tag("figure", interval_chart(title, intervals)) if intervals else None
    return join(
        tag("p", text),
        tag("div", chart, class_="charts"),
        table(["candidate", "mean", "standard error", "seconds"], rows),
    )


def training(comparison: Comparison, models: Sequence[Trained]) -> Markup:
    """Return which epoch each run kept and why it ended, and how subject and baseline predict."""
    rows = [
        [
            Cell(f"{group.title}, seed {run.seed}"),
            Cell(str(stage["stage"]), kind="words"),
            Cell(f"{stage['best_epoch']} of {stage['epochs']}"),
            Cell(str(stage["ended"]), kind="words"),
        ]
        for group in comparison.groups
        for run in group.runs
        for stage in run.result["stages"]
    ]
    parts = [missing("These runs do not say which epochs they kept.")]
    if rows:
        parts = [table(["run", "stage", "epoch kept", "ended because"], rows, "texts")]
    if models:
        facts: dict[str, list[dict[str, str]]] = {}
        for known in models:
            facts.setdefault(known.title, []).append(decoding_facts(known.model))
        names = dict.fromkeys(name for seeds in facts.values() for one in seeds for name in one)
        cells = []
        for name in names:
            values = [
                "; ".join(dict.fromkeys(one.get(name, "–") for one in seeds)) for seeds in facts.values()
            ]
            cells.append([Cell(name), *(Cell(value, kind="words") for value in values)])
        text = (
            "Chosen on validation data. Probabilities are calibrated by the temperature; then the decoder "
            "makes outputs of them, as “lossnet predict” does by default."
        )
        parts += [tag("h3", "How it predicts"), tag("p", text), table(["", *facts], cells, "texts")]
    return join(*parts)


def settings(comparison: Comparison) -> Markup:
    """Return the settings that were changed, all others, columns, and where the runs come from.

    What differs between groups is bold.
    """
    groups = comparison.groups
    results = [group.first.result for group in groups]
    chosen = [result["settings"] for result in results]
    changes = [changed_settings(result) for result in results]
    names = dict.fromkeys(name for one in (*changes, *chosen) for name in one)
    every = {
        name: [one.get(name, own.get(name, "–")) for one, own in zip(chosen, changes, strict=True)]
        for name in names
    }
    changed = {name: values for name, values in every.items() if any(name in one for one in changes)}
    others = {name: values for name, values in every.items() if name not in changed}
    origin = {
        "seeds": [", ".join(str(run.seed) for run in group.runs) for group in groups],
        "folders": [", ".join(str(run.folder) for run in group.runs) for group in groups],
        "epochs": [", ".join(str(run.result.get("epochs", "–")) for run in group.runs) for group in groups],
        "device": [result.get("device", "–") for result in results],
        "commit": [str(result.get("commit") or "–")[:12] for result in results],
        "versions": [", ".join(f"{k} {v}" for k, v in result["versions"].items()) for result in results],
    }

    def of(values: Mapping[str, Sequence[Any]]) -> Markup:
        rows = []
        for name, row in values.items():
            kind = "words differs" if len(set(map(str, row))) > 1 else "words"
            rows.append([Cell(name.replace("_", " ")), *(Cell(str(value), kind=kind) for value in row)])
        return table(["", *(group.title for group in groups)], rows)

    return join(
        tag("h3", "Changed"),
        tag("p", "By a recipe, flags or arguments; all others are the default ones.", class_="note"),
        of(changed) if changed else tag("p", "None: all settings are the default ones."),
        tag("details", tag("summary", f"{len(others)} default settings"), of(others)) if others else None,
        _columns(comparison),
        tag("h3", "Origin"),
        of(origin),
    )


def _columns(comparison: Comparison) -> Markup | None:
    """Return the columns that are inputs, and those that are not with the reasons."""
    columns = comparison.subject.first.result["columns"]
    if columns is None:
        return None
    used, dropped = columns["used"], columns["dropped"]
    chips = tag("p", *(tag("span", name, class_="chip") for name in used), class_="legend")
    shown = chips
    if len(used) > MOST_COLUMNS:
        shown = tag("details", tag("summary", f"{len(used)} columns"), chips)
    rows = [[Cell(name), Cell(reason, kind="words")] for name, reason in dropped.items()]
    left_out = join(tag("h3", f"Columns left out ({len(rows)})"), table(["column", "why"], rows, "texts"))
    return join(tag("h3", f"Columns used ({len(used)})"), shown, left_out if rows else None)
