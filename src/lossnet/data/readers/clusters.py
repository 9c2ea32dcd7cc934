"""Brown clusters: each word's path of bits in a tree of words."""

from __future__ import annotations

import re

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.text import read_lines

_LINE = re.compile(r"([01]+)\t([^\t]+)\t([0-9]{1,18})")


def read_clusters(path: AnyPath) -> dict[str, str]:
    """Read lines ``bits TAB word TAB count`` as the bits of each word.

    What ark-tweet-nlp writes for mentions and links, ``<@MENTION>`` and ``<URL-host>``, becomes ``<user>``
    and ``<url>``, as in `lossnet.data.embeddings`; of the links, the most frequent host counts.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "paths.txt")
    ...     _ = path.write_text("0010\\t<@MENTION>\\t9\\n0100\\tthe\\t8\\n")
    ...     read_clusters(path)
    {'<user>': '0010', 'the': '0100'}
    """
    clusters: dict[str, str] = {}
    most = -1
    for number, line in enumerate(read_lines(path), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            what = "not bits, a word and a count, separated by tabs"
            raise DataError(f"{what}; is this a file of Brown clusters?", path, number)
        bits, word, count = match.groups()
        if word == "<@MENTION>":
            word = "<user>"
        elif word.startswith("<URL-"):
            if int(count) <= most:
                continue
            word, most = "<url>", int(count)
        clusters[word] = bits
    return clusters
