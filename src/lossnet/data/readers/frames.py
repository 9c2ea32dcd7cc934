"""Frames: which core roles a predicate takes, as people list them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.text import read_lines, shortened
from lossnet.roles import is_core

#: the columns of a CSV file
_HEADER = ["predicate", "roles"]


def read_frames(path: AnyPath) -> dict[str, tuple[str, ...]]:
    """Read which core roles each predicate takes, for `lossnet.energies.frame_roles`.

    A ``.json`` file is one object, ``{"give.01": ["ARG0", "ARG1", "ARG2"], "rain": []}``.  Any other is CSV
    with the header ``predicate,roles`` and roles separated by spaces: ``give.01,ARG0 ARG1 ARG2``.  Predicates
    are senses (``give.01``), lemmas (``give``) or words (``gave``); no two have the same name.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "frames.csv")
    ...     _ = path.write_text("predicate,roles\\ngive.01,ARG0 ARG1 ARG2\\nrain,\\n")
    ...     read_frames(path)
    {'give.01': ('ARG0', 'ARG1', 'ARG2'), 'rain': ()}
    """
    frames: dict[str, tuple[str, ...]] = {}
    lines = list(read_lines(path))
    rows = _of_json("\n".join(lines), path) if Path(path).suffix.lower() == ".json" else _of_csv(lines, path)
    for name, roles, line in rows:
        if not name:
            raise DataError("a frame has no predicate; give a sense, a lemma or a word", path, line)
        if name in frames:
            raise DataError(
                f"the predicate {shortened(name)} comes twice; put its roles together", path, line
            )
        for role in roles:
            if not is_core(role):
                what = f"{shortened(role)} of {shortened(name)} is no core role"
                raise DataError(f"{what}; those are ARG0 to ARG5, or A0 to A5", path, line)
        frames[name] = tuple(roles)
    if not frames:
        raise DataError("no frame is in it; give a predicate and its roles", path)
    return frames


def _of_json(text: str, path: AnyPath) -> Iterator[tuple[str, Sequence[str], int | None]]:
    try:
        content: Any = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise DataError(f"is no JSON ({error})", path, getattr(error, "lineno", None)) from None
    if not isinstance(content, _Pairs):
        raise DataError('is no object; write {"give": ["ARG0", "ARG1", "ARG2"]}', path)
    for name, roles in content:
        if (
            not isinstance(roles, list)
            or isinstance(roles, _Pairs)
            or not all(isinstance(r, str) for r in roles)
        ):
            raise DataError(f"the roles of {shortened(name)} are no list of strings", path)
        yield name, roles, None


class _Pairs(list[tuple[str, Any]]):
    """A JSON object, of which no name is lost."""


def _of_csv(lines: Sequence[str], path: AnyPath) -> Iterator[tuple[str, Sequence[str], int]]:
    try:
        rows = csv.reader(lines, strict=True)
        for row in rows:
            if rows.line_num == 1:
                if [cell.strip() for cell in row] != _HEADER:
                    raise DataError(
                        f"the header is {shortened(','.join(row))}; write predicate,roles", path, 1
                    )
            elif row:
                if len(row) != len(_HEADER):
                    what = f"{len(row)} column(s); a predicate has {len(_HEADER)}, its name and its roles"
                    raise DataError(f"{what}, separated by spaces", path, rows.line_num)
                yield row[0].strip(), row[1].split(), rows.line_num
    except csv.Error as error:
        raise DataError(f"is no CSV ({error})", path, rows.line_num) from None
