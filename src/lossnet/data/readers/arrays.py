"""NumPy archives with the arrays ``x`` and ``y``."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.text import Like, read_bytes, whole
from lossnet.data.tables import MultiLabelData

#: raised for archives that are cut, damaged, encrypted or no archives at all
_BROKEN = (
    *(OSError, ValueError, EOFError, AttributeError, TypeError, MemoryError, RuntimeError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error),
)


@whole
def read_npz(path: AnyPath, *, like: Like | None = None, size: int | None = None) -> Iterator[MultiLabelData]:
    """Read an ``.npz`` archive with ``x`` ``(n, d)`` and ``y`` ``(n, L)``.

    ``feature_names`` and ``label_names`` are used where the archive has them.  Archives are always one part.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "small.npz")
    ...     np.savez(path, x=np.eye(2), y=np.ones((2, 1), dtype=int))
    ...     len(read_npz(path))
    2
    """
    arrays = read_arrays(path)
    if like is not None and "x" in arrays and arrays["x"].ndim == 2:
        arrays.setdefault("y", np.zeros((len(arrays["x"]), len(like.label_names))))
        # Arrays without names are taken to have the trained columns, in order.
        if arrays["x"].shape[1] == len(like.feature_names):
            arrays.setdefault("feature_names", np.array(like.feature_names))
        if arrays["y"].ndim == 2 and arrays["y"].shape[1] == len(like.label_names):
            arrays.setdefault("label_names", np.array(like.label_names))
    if "x" not in arrays or "y" not in arrays:
        raise DataError(f"has arrays {sorted(arrays)}; it must have x and y", path)
    keys = ("feature_names", "label_names")
    names = [[str(name) for name in arrays[key]] if key in arrays else None for key in keys]
    try:
        yield MultiLabelData.from_arrays(arrays["x"], arrays["y"], *names)
    except DataError as error:
        raise error.at(path) from None


def read_arrays(path: AnyPath) -> dict[str, NDArray[Any]]:
    """Return all arrays of an ``.npz`` archive by name; pickled objects are refused."""
    content = read_bytes(path)
    if not content:
        raise DataError("the file is empty", path, 1)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except _BROKEN as error:
        raise DataError(f"not a readable .npz archive of plain arrays ({error})", path) from None
