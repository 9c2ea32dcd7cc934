"""Download a file once, with its checksum verified and a progress bar."""

from __future__ import annotations

import logging
from pathlib import Path

import pooch
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from lossnet.data.errors import DataError


def fetch(url: str, sha256: str, path: Path, progress: bool = True) -> None:
    """Download a file to ``path``, unless it is there and has the right checksum."""
    pooch.get_logger().setLevel(logging.WARNING)  # the bar says what pooch would print
    bar = _Bar(path.name, progress)
    downloader = pooch.HTTPDownloader(progressbar=bar, timeout=30)
    try:
        pooch.retrieve(url, f"sha256:{sha256}", fname=path.name, path=path.parent, downloader=downloader)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors, a bad hash a ValueError
        raise DataError(f"could not be downloaded from {url} ({error})", path) from error
    finally:
        bar.close()


class _Bar:
    """A progress bar as pooch uses it, drawn by rich; pooch sets ``total``, the number of bytes."""

    total = 0

    def __init__(self, name: str, visible: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._progress = Progress(*columns, disable=not visible)
        self._task = self._progress.add_task(name, total=None)
        self._progress.start()

    def update(self, amount: int) -> None:
        """Count some more bytes."""
        self._progress.update(self._task, total=self.total or None, advance=amount)

    def reset(self) -> None:
        """Start again from nothing: pooch ends with this and one last `update`."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """Stop drawing."""
        self._progress.stop()
