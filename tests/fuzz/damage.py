"""Damage to valid files, as a hypothesis strategy."""

from __future__ import annotations

import re

from hypothesis import strategies as st

#: what breaks readers: numbers at and beyond limits, quotes, separators, marks of encodings, things to expand
PIECES = [
    *b"0 1 -1 -0 nan NaN inf -inf .inf 1e39 1e999 1e-400 0x10 1_0 +5 ? ?? null true 2147483648".split(),
    *b"4294967296 9223372036854775807 9223372036854775808 -9223372036854775809 2001-99-99 1:60:60".split(),
    *b"' \" \\ \\' \\u0000 \\ud800 { } [ ] ( ) , : ; @ % # = / .. < > $ %s {0} | - *a &a &x; -C".split(),
    *(b"9" * digits for digits in (25, 400, 5000)),
    *(piece * 300 for piece in (b" ", b"[", b"{", b"(", b"',", b"1")),
    *(b"-" + b"9" * 5000, b"0." + b"0" * 400 + b"1", b"1" * 300 + b"a", b"a" * 3000),
    *(b"\n", b"\r", b"\r\n", b"\n\n", b"\t", b" ", b"\x00", b"\x1a", b"\x85", b"\xc2\x85", b"\xe2\x80\xa8"),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\xff", b"\x80", b"\xc0\x80", b"\xed\xa0\x80"),
    *(letter.encode() for letter in "٣éﬁİ💩"),
    *(
        b"<!ENTITY x 'y'>",
        b"<![CDATA[",
        b"-C 0",
        b"-C -9",
        b"<<: ",
        b"- ",
        b"---\n",
        b"!!python/object:os.system",
    ),
    *(b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PAR1"),
]
_NUMBER = re.compile(rb"\d+")
_ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "latin-1", "cp037", "utf-7")


@st.composite
def damaged(draw, seeds):
    """One of some valid contents after one to four mishaps."""
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        content = draw(st.sampled_from(_MISHAPS))(draw, content, seeds)
    return content[: 1 << 17]


def _span(draw, content, longest=64):
    start = draw(st.integers(0, len(content)))
    return start, draw(st.integers(start, min(len(content), start + longest)))


def _flip(draw, content, seeds):
    if not content:
        return content
    place, bit = draw(st.integers(0, len(content) - 1)), draw(st.integers(0, 7))
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


def _cut(draw, content, seeds):
    return content[: draw(st.integers(0, len(content)))]


def _remove(draw, content, seeds):
    start, end = _span(draw, content)
    return content[:start] + content[end:]


def _repeat(draw, content, seeds):
    start, end = _span(draw, content)
    times = draw(st.sampled_from([2, 3, 50, 1000]))
    return content[:start] + content[start:end] * times + content[end:]


def _insert(draw, content, seeds):
    place, piece = draw(st.integers(0, len(content))), draw(st.sampled_from(PIECES))
    return content[:place] + piece + content[place:]


def _overwrite(draw, content, seeds):
    place = draw(st.integers(0, len(content)))
    piece = draw(st.sampled_from(PIECES) | st.binary(max_size=8))
    return content[:place] + piece + content[place + len(piece) :]


def _splice(draw, content, seeds):
    start, _ = _span(draw, content)
    other = draw(st.sampled_from(seeds))
    first, last = _span(draw, other, 4096)
    return content[:start] + other[first:last] + content[draw(st.integers(start, len(content))) :]


def _renumber(draw, content, seeds):
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    number, piece = draw(st.sampled_from(found)), draw(st.sampled_from(PIECES))
    return content[: number.start()] + piece + content[number.end() :]


def _swap_lines(draw, content, seeds):
    lines = content.split(b"\n")
    one, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


def _recode(draw, content, seeds):
    return content.decode("utf-8", "replace").encode(draw(st.sampled_from(_ENCODINGS)), "replace")


_MISHAPS = [
    _flip,
    _cut,
    _remove,
    _repeat,
    _insert,
    _insert,
    _overwrite,
    _splice,
    _renumber,
    _swap_lines,
    _recode,
]
