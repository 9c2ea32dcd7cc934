"""What is written on pages as a whole: tables of results, by what makes them for the benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks import (
    auto,
    citations,
    digits,
    energies,
    few_labels,
    hypergradient,
    implicit,
    known,
    mlc,
    names,
    ner,
    parsing,
    peers,
    pos,
    residuals,
    roles,
    seal,
    segmentation,
    serving,
    small,
    solvers,
    speed,
    streaming,
    structure,
    tagging_speed,
    text,
    verdicts,
)
from benchmarks.grid import COLUMNS, Cell, finished, gains, markdown, summarise, with_error

RESULTS = Path(__file__).parents[1] / "results"

#: columns of the tables of masks
_MASKS = (
    ("iou", "test mean IoU"),
    ("valid.iou", "valid mean IoU"),
    ("pixel_accuracy", "test pixel accuracy"),
)
_SPANS = (("span_f1", "F1"), ("precision", "precision"), ("recall", "recall"))


@cache
def _lines(name: str) -> list[dict[str, Any]]:
    return finished(RESULTS / f"{name}.jsonl")


def _content(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _table(file: str, cells: Sequence[Cell], columns: Sequence[tuple[str, str]], *others: str) -> str:
    """Return a row for each cell: its title, metrics, and other columns of the benchmark's table."""
    heading, rows = summarise(cells, _lines(file), columns)
    shown = [*(["data"] if len({cell.data for cell in cells}) > 1 else []), "method"]
    shown += [*(name for _, name in columns), *others]
    places = [heading.index(name) for name in shown]
    return markdown(shown, [[row[place] for place in places] for row in rows])


# ---------------------------------------------------------------- label sets

_BIBTEX = [cell for cell in mlc.MAIN if cell.data == "bibtex"]
_MAIN = [*_BIBTEX, mlc.STACK, *(cell for cell in mlc.MAIN if cell.data != "bibtex")]


def _gains_on_digits() -> str:
    """Return what SEAL-NCE has more than each other row, on both sets of digits."""
    rows = []
    for name, (ce, soft, nce, control) in (("completion", digits.CELLS), ("pairs", digits.PAIRS)):
        for metric, title in digits.COLUMNS:
            found = (gains(_lines("digits"), nce, other, metric) for other in (ce, soft, control))
            rows.append([f"{name}, {title}", *map(with_error, found)])
    return markdown(["", "over cross-entropy", "over soft-F1", "over weight 0"], rows)


# ---------------------------------------------------------------- tags


def _names(*names: str) -> list[Cell]:
    """Return the cells of some of ``ner.BLOCKS``."""
    return [cell for name in names for cell in ner.CELLS if cell.title.startswith(f"{name}: ")]


def _texts(*columns: tuple[str, str]) -> str:
    """Return the chosen trials of each row."""
    heading, rows = summarise(text.CELLS, text.kept(_lines("text")), columns)
    return markdown([*heading[:-1]], [row[:-1] for row in rows])


def _gains_on_tags() -> str:
    """Return what SEAL-NCE has more than the BiLSTM, wherever both were run."""
    cells = {cell.title: cell for cell in (*pos.CELLS, *ner.CELLS)}
    rows, every = [], []
    for title, nce in cells.items():
        if title.endswith("SEAL-NCE"):
            metric = "accuracy" if nce.data == "twitter-pos" else "span_f1"
            ce = cells[title.replace("SEAL-NCE", "BiLSTM")]
            found = [gains(_lines("tagging"), nce, ce, part + metric) for part in ("", "valid.")]
            rows.append([title.rpartition(":")[0] or "tweets", *map(with_error, found)])
            every.append(found)
    together = (with_error([one for part in parts for one in part]) for parts in zip(*every, strict=True))
    return markdown(["", "on test data", "on validation data"], [*rows, ["all", *together]])


# ---------------------------------------------------------------- masks


def _masks(data: str, rows: Mapping[str, str], *others: str) -> str:
    """Return a table of masks, with words for the titles of its runs."""
    cells = [Cell(title, data, "") for title in rows]
    text = _table("segmentation", cells, _MASKS, *others)
    for title, words in rows.items():
        text = text.replace(f"| {title} |", f"| {words} |")
    return text


#: the recipes, and others of their time
SCENES = {
    "CE": "**CE**, 55 epochs, dropout 0.1, learning rate 0.006",
    "SEAL-NCE": "**SEAL-NCE**, U-Net as energy, three task steps, otherwise the same",
    "CE, 165 epochs, learning rate 0.02": "CE, 165 epochs, learning rate 0.02",
    "CE, H200": "CE, on an H200",
    "CE, 110 epochs, H200": "CE, 110 epochs, on an H200",
    "SEAL-NCE, one task step, H200": "SEAL-NCE, one task step, on an H200",
    "SEAL regression-s, H200": "SEAL regression-s, weight 30, on an H200",
}
#: without dropout
EARLIER_SCENES = {
    "CE, 40 epochs, no dropout": "CE, 40 epochs",
    "SEAL-NCE, two task steps, 18 epochs, no dropout": "SEAL-NCE, two task steps, 18 epochs",
    **{
        title: title
        for title in (
            "CE, 40 epochs, H200",
            "CE, 60 epochs, H200",
            "SEAL-NCE, 20 epochs, H200",
            "SEAL-NCE, three task steps, 20 epochs, H200",
            "CE, 20 epochs",
            "CE + soft-IoU, 20 epochs",
            "Dice, 20 epochs",
            "SEAL-NCE, one task step, 20 epochs",
        )
    },
}
#: horses: what was run and not chosen
NOT_CHOSEN = {
    "FCN, SEAL regression, weight 10": "FCN, SEAL regression, weight 10",
    "FCN, SEAL regression, weight 30": "FCN, SEAL regression, weight 30",
    "DVN + inference, SGD": "DVN + inference, plain gradient steps",
    "wide U-Net, CE": "U-Net, 64 channels, 400 epochs, dropout 0.1, CE",
}

#: what writes each block, by the name that pages give it
BLOCKS: dict[str, Callable[[], str]] = {
    "auto": lambda: markdown(*auto.compare(_lines("auto"))),
    "auto / regret": lambda: markdown(*auto.regret(_lines("auto"))),
    "auto / members": lambda: markdown(*auto.summarise(_lines("auto"))),
    "citations": lambda: citations.table(_lines("citations")),
    "citations / trials": lambda: citations.trials_table(_lines("citations")),
    "digits / completion": partial(_table, "digits", digits.CELLS, digits.COLUMNS, "seconds"),
    "digits / pairs": partial(_table, "digits", digits.PAIRS, (*COLUMNS, digits.COLUMNS[-1]), "seconds"),
    "digits / gains": _gains_on_digits,
    "energies": lambda: markdown(*energies.table(_lines("energies"))),
    "few-labels / digits": lambda: markdown(*few_labels.digits(_lines("few-labels"))),
    "few-labels / partly": lambda: markdown(*few_labels.partly(_lines("few-labels"))),
    "few-labels / bibtex": lambda: markdown(*few_labels.few(_lines("few-labels"))),
    "few-labels / expr_fun": lambda: markdown(*few_labels.taxonomy(_lines("few-labels"))),
    "few-labels / costs": lambda: markdown(*few_labels.partly_costs(_lines("few-labels"))),
    "hypergradient": lambda: markdown(*hypergradient.costs(_content("hypergradient"))),
    "implicit": partial(_table, "implicit", implicit.CELLS, seal.COLUMNS, "seeds", "published"),
    "implicit / gained": lambda: markdown(*implicit.gained(_lines("implicit"))),
    "implicit / search": partial(_table, "implicit", implicit.SEARCH, implicit.VALID),
    "mlc": partial(_table, "mlc", _MAIN, seal.COLUMNS, "published"),
    "mlc / the rest of SEAL's Table 1": partial(_table, "mlc", mlc.REST, seal.COLUMNS, "published"),
    "names": lambda: markdown(*names.table(_lines("names"))),
    "peers": lambda: markdown(*peers.best(_lines("peers"))),
    "peers / compared": lambda: markdown(*peers.compare(_lines("peers"))),
    "residuals": lambda: markdown(residuals.HEADING, residuals.table(_lines("residuals"))),
    "parsing": lambda: markdown(*parsing.table(_lines("parsing"))),
    "roles": lambda: markdown(*roles.table(_lines("roles"))),
    "seal": partial(_table, "seal", seal.CELLS, seal.COLUMNS, "seeds", "published"),
    "seal / gained": lambda: markdown(*seal.gained(_lines("seal"))),
    "segmentation / horses": partial(
        _table, "segmentation", segmentation.HORSES, _MASKS, "seeds", "published"
    ),
    "segmentation / horses, not chosen": partial(_masks, "horses", NOT_CHOSEN, "seeds"),
    "segmentation / scenes": partial(_masks, "digits-scenes", SCENES, "seeds"),
    "segmentation / scenes, earlier": partial(_masks, "digits-scenes", EARLIER_SCENES, "seconds", "seeds"),
    "serving": lambda: markdown(["", ""], serving.table(_content("serving"))),
    "index / best": lambda: markdown(*verdicts.best(_lines)),
    "index / tally": lambda: markdown(*verdicts.tally(_lines)),
    "index / claims": lambda: markdown(*verdicts.claims(_lines)),
    "index / covered": lambda: markdown(*verdicts.covered(_lines)),
    "index / rows": lambda: markdown(*verdicts.rows(_lines)),
    "known": lambda: markdown(*known.known_table(_lines("known"))),
    "known-both": lambda: markdown(*known.known_table(_lines("known"), both=True)),
    "known-exact": lambda: markdown(*known.exact_table(_lines("known"))),
    "known-planted": lambda: markdown(*known.planted_table(_lines("known"))),
    "known-cost": lambda: markdown(*known.cost_table(_lines("known"))),
    "structure": lambda: markdown(structure.HEADING, structure.table(_lines("structure"))),
    "small": lambda: small.tables(_lines("small")),
    "text": lambda: _texts(*text.COLUMNS[:3]),
    "text / all labels": lambda: _texts(*text.COLUMNS[3:]),
    "text / over cross-entropy": lambda: markdown(*text.compare(_lines("text"))),
    "text / over TF-IDF": lambda: markdown(*text.compare(_lines("text"), text.TFIDF)),
    "solvers": lambda: markdown(*solvers.table(_content("solvers"))),
    "speed": lambda: speed.page(_content("speed")).rstrip(),
    "streaming": lambda: markdown(*streaming.table(_content("streaming"))),
    "tagging / tweets": partial(
        _table, "tagging", pos.CELLS, [("accuracy", "accuracy")], "seconds", "seeds", "published"
    ),
    "tagging / names": partial(
        _table, "tagging", _names("NER", "NER+", "NER++"), _SPANS, "seconds", "seeds", "published"
    ),
    "tagging / names, 256 units": partial(
        _table,
        "tagging",
        _names("NER+, 256 units", "NER++, 256 units"),
        _SPANS,
        "seconds",
        "seeds",
        "published",
    ),
    "tagging / names, clusters": partial(
        _table,
        "tagging",
        _names("NER+, clusters, 256 units", "NER++, clusters, 256 units"),
        _SPANS,
        "seconds",
        "seeds",
    ),
    "tagging / gains": _gains_on_tags,
    "tagging / speed": lambda: markdown(*tagging_speed.table(_content("tagging_speed"))),
}
