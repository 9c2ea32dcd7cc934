"""``lossnet demo``: what a rule is worth beside ten labels, and losses of label sets, in a minute or two.

Pictures show two handwritten digits, drawn over each other; a network says which two.  All figures are of the
600 test pictures, which nothing is chosen by, and all networks answer with their two likeliest digits.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import statistics
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data import Facts, MultiLabelData, digits_pairs
from lossnet.energies import exactly, sums_to
from lossnet.files import write_text
from lossnet.loading import Loaded, keep_labels
from lossnet.own import OwnParts
from lossnet.recipes import recipe_settings
from lossnet.report import draw
from lossnet.report.markup import Cell, Markup, join, table, tag
from lossnet.report.page import document
from lossnet.run import Run, fit
from lossnet.runs import markdown, spread
from lossnet.settings import Settings, changed

__all__ = ["FEW", "LOSSES", "Row", "run"]

LABELLED = 10
_SHOWN = 12
_ANSWERS = 2  # digits of a picture


@dataclass(frozen=True)
class Row:
    """A row of a table: how networks are trained.

    Args:
        title: what it is called.
        method: by its name.
        loss: of the method.
        labelled: pictures with labels in training; None for all.
        seeds: which are trained; with few labels, also those that draw which.
        changes: to the recipe of method and loss on these pictures, if it has one.
    """

    title: str
    method: str
    loss: str
    labelled: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    changes: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Settings:
        """Return the recipe's settings with the changes."""
        return Settings.of(recipe_settings("digits-pairs", self.method, self.loss) | dict(self.changes))


_NETWORK = {"task_hidden": 200, "task_dropout": 0.1, "task_lr": 6e-3, "patience": 1000}
_TEACHER = {"batch_size": 64, "epochs": 40, "input_noise": 0.1, "teacher_decay": 0.98, "ramp_up": 100}
_ALL = Row("cross-entropy, 1,800 labels", "cross-entropy", "none", changes={"epochs": 40})
#: what labels and a rule are worth; the rule is the third, after what its recipe brings without it
FEW = (
    Row("cross-entropy, 10 labels", "cross-entropy", "none", LABELLED, changes={**_NETWORK, "epochs": 100}),
    Row(
        "mean teacher, 10 labels, 1,790 pictures",
        "mean-teacher",
        "none",
        LABELLED,
        changes=_NETWORK | _TEACHER,
    ),
    Row("rule, 10 labels, 1,790 sums", "rules", "semantic", LABELLED, changes=_NETWORK | _TEACHER),
    _ALL,
)
#: losses on all labels; the last is the control, whose energy is trained but does not teach
LOSSES = (
    _ALL,
    Row("cross-entropy + soft-F1", "cross-entropy", "soft-f1", changes={"epochs": 40}),
    Row("SEAL-NCE", "seal", "nce", changes={"epochs": 20}),
    Row("SEAL-NCE, energy weight 0", "seal", "nce", changes={"epochs": 20, "energy_weight": 0.0}),
)


@dataclass(frozen=True)
class Outcome:
    """What a training came to: figures on test pictures, and the pairs that it says they show."""

    title: str
    seed: int
    figures: dict[str, float]
    pairs: list[list[int]]
    seconds: float


def run(output: Path | str, jobs: int = 2, tell: Any = None) -> dict[str, list[list[str]]]:
    """Train all rows, ``jobs`` at a time; write the page, the chart and all figures; return both tables.

    ``tell`` is told of each training that has ended.  The tables are rows of text by their titles, each with
    its heading in front.
    """
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(dict.fromkeys(row.title for row in (*FEW, *LOSSES)))
    work = [(row, seed) for row in {row.title: row for row in (*LOSSES, *FEW)}.values() for seed in row.seeds]
    # The longest first, so that none is left for the end.
    work.sort(key=lambda job: ("seal", "rules", "mean-teacher").count(job[0].method), reverse=True)
    outcomes: dict[str, list[Outcome]] = {title: [] for title in rows}
    for done, outcome in enumerate(_carried_out(work, jobs), start=1):
        outcomes[outcome.title].append(outcome)
        if tell is not None:
            tell(f"{done} of {len(work)}: {outcome.title}, seed {outcome.seed}")
    for found in outcomes.values():
        found.sort(key=lambda outcome: outcome.seed)
    tables = {
        "Ten labels and a rule": _table(FEW, outcomes),
        "Losses, with all labels": _table(LOSSES, outcomes),
    }
    every = [dataclasses.asdict(outcome) for found in outcomes.values() for outcome in found]
    write_text(folder / "results.jsonl", "".join(json.dumps(one) + "\n" for one in every))
    text = "\n\n".join(f"{title}\n\n{markdown(lines[0], lines[1:])}" for title, lines in tables.items())
    write_text(folder / "table.md", text + "\n")
    chart = _chart(outcomes)
    write_text(folder / "demo.svg", draw.standalone(chart))
    write_text(folder / "index.html", _page(outcomes, tables, chart))
    return tables


def _carried_out(work: Sequence[tuple[Row, int]], jobs: int) -> Iterator[Outcome]:
    if jobs < 2:
        yield from (train(*job) for job in work)
        return
    # Forked processes would share torch's threads, which may hang.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for ended in as_completed([pool.submit(train, *job) for job in work]):
            yield ended.result()


def train(row: Row, seed: int) -> Outcome:
    """Train a network as a row says, and let it name the digits of all test pictures."""
    torch.set_num_threads(1)
    data = pictures(row.labelled, seed)
    rules = (exactly(_ANSWERS), sums_to()) if row.method == "rules" else ()
    own = OwnParts(rules=rules)
    asked = Run("digits-pairs", row.method, row.loss, row.settings(), seed=seed, progress=False, own=own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that ten labelled pictures are few
        fitted = fit(asked, data)
    relaxed, truth = fitted.model.probabilities(data.test)
    assert truth is not None
    pairs = relaxed.topk(_ANSWERS).indices.sort().values.tolist()
    return Outcome(row.title, seed, compare(likeliest(relaxed), truth), pairs, fitted.seconds)


def pictures(labelled: int | None, seed: int) -> Loaded:
    """Return training, validation and test pictures.

    Where only some are ``labelled``, drawn by the seed, of the others the sum of the two digits is known, and
    there are no labels to validate with: weights are kept of the epoch in which the few labels themselves
    are predicted best.
    """
    data, split = digits_pairs()
    train, valid, test = (data.take(part) for part in (split.train, split.valid, split.test))
    if labelled is None:
        return Loaded.from_parts(train, valid, test)
    sums = train.y @ np.arange(train.labels)
    known, others = keep_labels(train.with_facts(Facts(sums)), labelled, seed)
    return Loaded.from_parts(known, known, test, unlabelled=others)


def likeliest(relaxed: Tensor) -> Tensor:
    """Return the two likeliest labels of each instance as sets.

    >>> likeliest(torch.tensor([[0.1, 0.4, 0.3]]))
    tensor([[0., 1., 1.]])
    """
    return torch.zeros_like(relaxed).scatter(1, relaxed.topk(_ANSWERS).indices, 1)


def compare(predicted: Tensor, truth: Tensor) -> dict[str, float]:
    """Return the share of sets that are right as a whole, and their F1: of two digits, the share found."""
    found = (predicted * truth).sum(1)
    return {
        "exact_match": float((found == _ANSWERS).float().mean()),
        "f1": float(found.mean()) / _ANSWERS,
    }


# ---------------------------------------------------------------- tables and page


def _table(rows: Sequence[Row], outcomes: Mapping[str, Sequence[Outcome]]) -> list[list[str]]:
    lines = [["trained on", "both right", "F1", "seeds"]]
    for row in rows:
        ended = outcomes[row.title]
        names = ("exact_match", "f1")
        figures = [spread([100 * one.figures[name] for one in ended], digits=1) for name in names]
        lines.append([row.title, *figures, ", ".join(str(one.seed) for one in ended)])
    return lines


def _chart(outcomes: Mapping[str, Sequence[Outcome]]) -> Markup:
    shares = {row.title: [100 * one.figures["exact_match"] for one in outcomes[row.title]] for row in FEW}
    return draw.bar_chart("Both digits right, % of 600 test pictures", shares)


def _page(
    outcomes: Mapping[str, Sequence[Outcome]], tables: Mapping[str, list[list[str]]], chart: Markup
) -> str:
    few, teacher, rule, every = (
        statistics.mean(100 * one.figures["exact_match"] for one in outcomes[row.title]) for row in FEW
    )
    data, split = digits_pairs()
    test = data.take(split.test)
    claim = (
        f"A network that saw {LABELLED} labelled pictures of two digits names both in {few:.0f} % of others. "
        f"Told of 1,790 more pictures what their two digits add up to, and nothing else, it names both in "
        f"{rule:.0f} %. Without the sums, the same recipe names both in {teacher:.0f} %; with all 1,800 "
        f"labels, cross-entropy does in {every:.0f} %."
    )
    about = [
        "Bars are means of three draws of ten labels, dots the draws. All networks have the same layers, and "
        "all answer with their two likeliest digits.",
        "With ten labels nothing else is labelled: epochs are fixed, and weights are kept of the epoch in "
        "which these ten are predicted best. With all labels, 600 further pictures choose the epoch.",
    ]
    content = join(
        tag("h1", "What you know, as a loss"),
        tag("p", claim),
        tag(
            "div",
            tag("figure", chart),
            tag("div", *(tag("p", line) for line in about), tag("pre", _code(FEW[2]))),
            class_="columns",
        ),
        tag(
            "section",
            tag("h2", "Which two digits?"),
            tag("p", "Evenly spaced test pictures, not hand-picked, first draw.", class_="note"),
            tag("div", *_cards(test, outcomes), class_="tiles"),
        ),
        *(tag("section", tag("h2", title), _html(lines)) for title, lines in tables.items()),
        tag(
            "p",
            "In the second table all 1,800 labels are known, and 600 more choose the epoch. The control "
            "trains its energy and ignores it: what SEAL-NCE has beyond it is what the energy teaches. "
            "Training is short here; docs/results/digits.md has ten seeds trained to the end.",
            class_="note",
        ),
    )
    return document("Lossnet: what you know, as a loss", content)


def _code(row: Row) -> str:
    """Return Python that trains as a row with rules is trained."""
    given = {"method": row.method, "loss": row.loss, **changed(dataclasses.asdict(row.settings()))}
    given |= {"scale": False, "validation_fraction": 0}
    named = (
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in given.items()
    )
    indent = " " * 4
    parameters = textwrap.fill(", ".join(named), 54, initial_indent=indent, subsequent_indent=indent)
    return (
        "from lossnet import MultiLabelClassifier\n"
        "from lossnet.energies import exactly, sums_to\n\n"
        f"classifier = MultiLabelClassifier(\n{parameters}\n)\n"
        "classifier.fit(\n    X, Y,  # NaN where there are no labels\n"
        "    rules=[exactly(2), sums_to()], facts=sums\n)"
    )


def _cards(test: MultiLabelData, outcomes: Mapping[str, Sequence[Outcome]]) -> Iterator[Markup]:
    """Yield for each picture the two digits that it shows, and those that each network says."""
    pixels: NDArray[np.float32] = test.x.reshape(len(test), 8, 8)
    names = {"10 labels": FEW[0], "10 labels + rule": FEW[2], "all labels": FEW[3]}
    for number in np.linspace(0, len(test) - 1, _SHOWN).astype(int):
        truth = np.flatnonzero(test.y[[number]].toarray()[0]).tolist()
        lines = []
        for name, row in names.items():
            said = outcomes[row.title][0].pairs[number]
            digits = [tag("b", f"{digit} ", class_="good" if digit in truth else "bad") for digit in said]
            mark = "✓" if said == truth else "✗"
            lines.append(tag("span", f"{name}: ", *digits, mark))
        picture = draw.image(1 - pixels[number], f"the digits {truth[0]} and {truth[1]}")
        yield tag("div", picture, tag("span", f"shows {truth[0]} and {truth[1]}"), *lines, class_="tile")


def _html(lines: list[list[str]]) -> Markup:
    return table(lines[0], [[Cell(text) for text in line] for line in lines[1:]])
