"""Fetching a file once, with its checksum verified and a progress bar."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pooch
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from lossnet.data.errors import DataError

__all__ = ["Download", "fetch"]


@dataclass(frozen=True)
class Download:
    """A file to fetch: from where, its SHA-256, and the name to keep it under."""

    url: str
    sha256: str
    file: str


def fetch(download: Download, folder: Path, progress: bool = True) -> Path:
    """The file in ``folder``, downloaded only if it is not there or not what it should be."""
    pooch.get_logger().setLevel(logging.WARNING)  # the bar says what pooch would print
    try:
        with _Bar(download.file, progress) as bar:
            kept = pooch.retrieve(
                download.url,
                known_hash=f"sha256:{download.sha256}",
                fname=download.file,
                path=folder,
                downloader=pooch.HTTPDownloader(progressbar=bar, timeout=30),
            )
    except (OSError, ValueError) as error:  # requests' errors are OSErrors, a bad hash a ValueError
        what = f"could not be downloaded from {download.url} ({error})"
        raise DataError(what, folder / download.file) from error
    return Path(kept)


class _Bar:
    """What pooch wants of a progress bar, drawn by rich."""

    def __init__(self, name: str, visible: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._progress = Progress(*columns, disable=not visible)
        self._task = self._progress.add_task(name, total=None)
        self._total = 0

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    @property
    def total(self) -> int:
        """How many bytes will come; set by pooch."""
        return self._total

    @total.setter
    def total(self, value: int) -> None:
        self._total = value
        self._progress.update(self._task, total=value or None)

    def update(self, amount: int) -> None:
        """Some bytes came."""
        self._progress.advance(self._task, amount)

    def reset(self) -> None:
        """Back to nothing: pooch ends with this and one last `update`."""
        self._progress.reset(self._task, total=self._total or None)

    def close(self) -> None:
        """All came."""
        self._progress.stop()
