"""Download a file once, with its checksum verified and a progress bar."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

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
    """Return the file in ``folder``, downloaded only if it is not there or has another checksum."""
    pooch.get_logger().setLevel(logging.WARNING)  # the bar says what pooch would print
    bar = _Bar(download.file, progress)
    try:
        path = pooch.retrieve(
            download.url,
            known_hash=f"sha256:{download.sha256}",
            fname=download.file,
            path=folder,
            downloader=pooch.HTTPDownloader(progressbar=bar, timeout=30),
        )
    except (OSError, ValueError) as error:  # requests' errors are OSErrors, a bad hash a ValueError
        what = f"could not be downloaded from {download.url} ({error})"
        raise DataError(what, folder / download.file) from error
    finally:
        bar.close()
    return Path(path)


class _Bar:
    """A progress bar as pooch uses it, drawn by rich."""

    def __init__(self, name: str, visible: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._progress = Progress(*columns, disable=not visible)
        self._task = self._progress.add_task(name, total=None)
        self._total = 0
        self._progress.start()

    @property
    def total(self) -> int:
        """The number of bytes to come; set by pooch."""
        return self._total

    @total.setter
    def total(self, value: int) -> None:
        self._total = value
        self._progress.update(self._task, total=value or None)

    def update(self, amount: int) -> None:
        """Count some more bytes."""
        self._progress.advance(self._task, amount)

    def reset(self) -> None:
        """Start again from nothing: pooch ends with this and one last `update`."""
        self._progress.reset(self._task, total=self._total or None)

    def close(self) -> None:
        """Stop drawing."""
        self._progress.stop()
