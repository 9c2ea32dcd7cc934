"""Atomic writing of files: a kill leaves the old one or the new one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

__all__ = ["opened", "replaced", "write_bytes", "write_json", "write_text"]


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, to which it is renamed if nothing goes wrong.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "new" / "file.txt"
    >>> with replaced(path) as beside:
    ...     _ = beside.write_text("done")
    >>> path.read_text(), beside.exists()
    ('done', False)
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:  # a full disk does not say which file it is about
        if error.errno is not None:
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with replaced(path) as beside:
        beside.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


@contextmanager
def opened(path: Path | None) -> Iterator[TextIO]:
    """Open a text file to write to piece by piece; standard output for None."""
    if path is None:
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        yield file
