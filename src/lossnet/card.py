"""Model cards: what a model is, what it was trained on, and how good it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lossnet.data import entry, names
from lossnet.task import Task

__all__ = ["model_card"]

#: characters that mean something in Markdown
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def model_card(result: Mapping[str, Any], task: Task, description: str) -> str:
    """Return Markdown about a run with this ``result.json``, a task, and a description of its data.

    >>> result = {"dataset": "mine.csv", "split": "stratified", "method": "seal", "loss": "nce", "seed": 0}
    >>> result |= {"metrics": {"valid": {"f1": 0.5}}, "settings": {"clip": 3}, "versions": {"torch": "2.13"}}
    >>> result |= {"source": {"data": "mine.csv"}, "steps": 12, "seconds": 1.5, "epochs": 3, "device": "cpu"}
    >>> result |= {"best_epoch": 2, "remarks": []}
    >>> task = Task.of_sizes(inputs=4, labels=3)
    >>> print(model_card(result, task, "the file mine.csv").splitlines()[5])
    # seal (nce) on mine.csv
    """
    metrics = result["metrics"]
    figures = [[name, *(f"{part[name]:.4f}" for part in metrics.values())] for name in metrics["valid"]]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    trained = (
        f"{result['epochs']} epochs, of which {result['best_epoch']} was kept, {result['steps']} steps, "
        f"{result['seconds']} s on {result['device']}"
    )
    own = "".join(f", {part}=…" for part in task.own.names)
    lines = [
        "---",
        "library_name: lossnet",
        f"tags: [{task.input.kind}, {task.output.kind}, {result['method']}]",
        "---",
        "",
        f"# {result['method']} ({result['loss']}) on {_plain(result['dataset'])}",
        "",
        f"{task.title.capitalize()}. Weights and JSON without any code, to be read by Lossnet:",
        "",
        "```python",
        "import lossnet",
        "",
        f'model = lossnet.load("this folder"{own})',
        "```",
        *(["", "The parts to give are the author's own code, which is not in this folder."] if own else []),
        "",
        "## Data",
        "",
        f"{_plain(description)}, split: {_plain(result['split'])}.",
        f"Terms of use: {_terms(result)}.",
        "",
        "## Figures",
        "",
        "Fractions of 1, on this split; the epoch and the threshold were chosen on valid.",
        "",
        *_table(["", *metrics], figures),
        "",
        *(f"- Note: {_plain(remark)}." for remark in result["remarks"]),
        *([""] if result["remarks"] else []),
        "## Training",
        "",
        f"Method {result['method']}, loss {result['loss']}, seed {result['seed']}: {trained}; {versions}.",
        "",
        *_table(["setting", "value"], [[name, str(value)] for name, value in result["settings"].items()]),
    ]
    return "\n".join(lines) + "\n"


def _terms(result: Mapping[str, Any]) -> str:
    name = result["source"]["data"]
    known = entry(name) if name in names() else None
    if known is None or not known.terms:
        return "not known; ask those who made the data"
    return _plain(known.terms) + (f" ({known.home})" if known.home else "")


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    marked = [head, ["---"] * len(head), *([_plain(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in marked]


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))
