"""Notebooks of the tutorials, made from their pages: ``python docs/tools/notebooks.py`` writes them.

Python blocks become code cells and the rest is text.  What a block prints, which the page shows under it, is
left out: a notebook prints it itself.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parents[1] / "tutorials"
NAMES = ("labels", "tags", "masks", "ten-labels")

_ITSELF = re.compile(r"^This page is also .*\n\n", re.MULTILINE)
_CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n```(?:text|none)\n.*?^```\n)?", re.DOTALL | re.MULTILINE)


def notebook(page: str, name: str) -> dict[str, Any]:
    """Return a page as a notebook of format 4.5, without outputs."""
    cells: list[dict[str, Any]] = []
    for place, part in enumerate(_CODE.split(_ITSELF.sub("", page))):  # text and code in turn
        source = part.strip("\n").splitlines(keepends=True)
        if not source:
            continue
        cell: dict[str, Any] = {"cell_type": "markdown", "id": f"{name}-{place}", "metadata": {}}
        if place % 2:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        cells.append(cell | {"source": source})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def text(name: str) -> str:
    """Return the content of a tutorial's notebook file."""
    page = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    return json.dumps(notebook(page, name), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in NAMES:
        (TUTORIALS / f"{name}.ipynb").write_text(text(name), encoding="utf-8")
