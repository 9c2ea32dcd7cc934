"""The one error that reading or checking data raises."""

from __future__ import annotations

from os import PathLike, fspath

AnyPath = str | PathLike[str]


class DataError(ValueError):
    """Error in data; says where, what, and what to do.

    The message reads ``path:line: what was wrong; what to do``.  ``path`` and ``line`` are left out
    where there is none: arrays have no file, a missing file has no line.

    >>> print(DataError("label 'a' is given twice; remove one", path="music.xml", line=3))
    music.xml:3: label 'a' is given twice; remove one
    """

    def __init__(self, message: str, path: AnyPath | None = None, line: int | None = None) -> None:
        self.message = message
        self.path = None if path is None else fspath(path)
        self.line = line
        where = "" if self.path is None else self.path + ("" if line is None else f":{line}") + ": "
        super().__init__(where + message)

    def at(self, path: AnyPath, line: int | None = None) -> DataError:
        """Return the same error about a file."""
        return DataError(self.message, path, line)

    def __reduce__(self) -> tuple[type[DataError], tuple[str, str | None, int | None]]:
        # Worker processes send exceptions by pickle, which would otherwise repeat the location.
        return DataError, (self.message, self.path, self.line)
