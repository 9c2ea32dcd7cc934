"""Training, validation and test data in files of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples, concatenated
from lossnet.data.image_files import is_labelled, read_images, read_labelled_images
from lossnet.data.images import Pictures
from lossnet.data.readers import TABLES, read_inputs
from lossnet.data.readers.libsvm import is_xc_header
from lossnet.data.readers.text import select_names, stream_lines
from lossnet.data.sentence_files import read_sentences, stream_labelled_texts
from lossnet.data.sentences import Sentences
from lossnet.data.splits import hold_out
from lossnet.data.tables import FeatureTable
from lossnet.data.texts import TextTable

#: how the files or folders of a part may be called, before the first dot
NAMES = {"train": ("train",), "valid": ("valid", "val", "dev", "validation"), "test": ("test",)}
#: the share of the training rows that validates, or tests, where no file does
HELD_OUT = 0.2
#: what may lie beside a part under the same name
_BESIDE = (".xml", ".json", ".md")


def part_files(folder: AnyPath) -> dict[str, Path]:
    """Return the files of a folder by the parts that they are; none for what has no file for training.

    They are called ``train``, ``valid`` (or ``val``, ``dev``, ``validation``) and ``test``, with any
    extension.  Training and one of the others must be there.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for name in ("train.csv", "dev.csv", "README.md"):
    ...         Path(folder, name).touch()
    ...     {part: file.name for part, file in part_files(folder).items()}
    {'train': 'train.csv', 'valid': 'dev.csv'}
    """
    folder = Path(folder)
    return {} if not folder.is_dir() else _parts(path for path in folder.iterdir() if path.is_file())


def part_folders(folder: AnyPath) -> dict[str, Path]:
    """Return the folders of labelled images in a folder by the parts that they are."""
    folder = Path(folder)
    return {} if not folder.is_dir() else _parts(path for path in folder.iterdir() if is_labelled(path))


def _parts(paths: Any) -> dict[str, Path]:
    parts: dict[str, Path] = {}
    for path in sorted(paths):
        stem = path.name.split(".")[0].lower()
        part = next((part for part, names in NAMES.items() if stem in names), None)
        if part is None or path.suffix.lower() in _BESIDE:
            continue
        if part in parts:
            raise DataError(
                f"{parts[part].name} and {path.name} are both for {part}; remove one", path.parent
            )
        parts[part] = path
    return {part: parts[part] for part in NAMES if part in parts} if {"train"} < set(parts) else {}


def holds_table(path: AnyPath) -> bool:
    """Whether a file is a table of features, and not sentences, which ``.txt`` files may be as well."""
    path = Path(path)
    if path.suffix.lower() == ".txt":
        return is_xc_header(next(stream_lines(path, "latin-1")))
    return path.suffix.lower() in TABLES


def read_like(
    path: AnyPath,
    train: Examples,
    labels: Any = None,
    resize: tuple[int, int] | None = None,
    encoding: str | None = None,
) -> Examples:
    """Read validation or test data as their training data were read: columns by name, the same labels.

    ``labels`` are the columns that were chosen for training.  A `DataError` says what does not fit.
    """
    source, target, text = train.source, train.target, encoding or "utf-8"
    names = getattr(target, "names", ())
    data: Examples
    if isinstance(source, FeatureTable):
        needed = _columns(labels, names)
        texts = source.columns if isinstance(source, TextTable) else ()
        data = read_inputs(path, source.names, names, needed, texts=texts, encoding=encoding)
    elif isinstance(source, Pictures):
        data = _read_pictures(path, names if is_labelled(path) else None, train, resize)
    elif isinstance(source, Sentences) and source.column is not None:
        data = concatenated(list(stream_labelled_texts(path, source.column, names, text)))
    else:
        columns = ["word", *train.source.columns, "tag"]  # type: ignore[attr-defined]
        data, _ = read_sentences([path], columns, text)
    if data.target is None or data.target.is_empty:
        raise DataError("no row has a label; data to validate or test need the labels of training", path)
    return data


def _columns(labels: Any, names: tuple[str, ...]) -> list[str]:
    """Return the labels that have columns of their own, none if one column lists them."""
    try:
        return [] if labels is None else select_names(labels, names)
    except ValueError:
        return []


def _read_pictures(
    path: AnyPath, names: tuple[str, ...] | None, train: Examples, resize: tuple[int, int] | None
) -> Examples:
    data: Examples
    if names is not None:
        data = read_labelled_images(path, resize=resize, names=names)
    else:
        data, own = read_images(path, resize)
        if own is not None:
            raise DataError(
                "is split itself; give a folder of images/ and masks/, or an archive of them", path
            )
    if type(data.target) is not type(train.target):
        raise DataError(
            f"has no {'labels.csv' if names is None else 'masks'}, which training data have", path
        )
    sizes = [(one.source.size, one.source.channels) for one in (data, train)]  # type: ignore[attr-defined]
    if sizes[0] != sizes[1]:
        what = "images of (height, width) {}, {} channel(s); those of training have {}, {}"
        raise DataError(f"{what.format(*sizes[0], *sizes[1])}; make them alike", path)
    return data


def split_beside(
    data: Examples, others: Mapping[str, Examples], seed: int
) -> tuple[tuple[Examples, ...], str]:
    """Return training, validation and test data, and the split's name.

    What no file is for is a stratified fifth of ``data``, the rest of which trains.
    """
    by = np.zeros((len(data), 0)) if data.target is None else data.target.stratify_by()
    lacking = [part for part in ("valid", "test") if part not in others]
    parts, name = {"train": data, **others}, "files"
    for part in lacking:
        train, held = hold_out(by, HELD_OUT, seed)
        parts |= {"train": data.take(train), part: data.take(held)}
        name += f", {part}: {'stratified' if by.shape[1] else 'random'}(seed={seed})"
    return tuple(parts[part] for part in NAMES), name
