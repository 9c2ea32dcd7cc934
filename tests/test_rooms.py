"""The map of rooms in CONTRIBUTING.md: all of them are there, and each imports only rooms above it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "lossnet"
PANELS = "outputs/panels"  # drawn when a report asks for them


def rooms():
    """The rooms in the order of the map."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"^src/lossnet/\n(.*?)^benchmarks/", text, re.DOTALL | re.MULTILINE)[1]
    lines = (re.match(r"  (\S+)(?:  (\w+\.py)\b)?", line) for line in block.splitlines())
    return [name.rstrip("/").removesuffix(".py") for line in lines if line for name in line.groups() if name]


def room(parts):
    return PANELS if "/".join(parts[:2]) == PANELS else parts[0]


def imports(path):
    """The rooms that a file imports when it is imported itself."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module == "lossnet":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lossnet."):
            yield room(node.module.split(".")[1:])


def files():
    for path in sorted(SOURCES.glob("**/*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        if parts[0] not in ("__init__", "__main__"):
            yield room(parts), path


def test_all_rooms_are_on_the_map():
    assert sorted(rooms()) == sorted({name for name, _ in files()})


def test_a_room_imports_only_rooms_above_it():
    order = {name: place for place, name in enumerate(rooms())}
    assert len(order) > 30
    wrong = {
        f"{path.relative_to(SOURCES)} imports {other}"
        for name, path in files()
        for other in imports(path)
        if order[other] > order[name]
    }
    assert wrong == set()
