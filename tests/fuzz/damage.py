"""Damage to valid files, as a hypothesis strategy."""

from __future__ import annotations

import re
from random import Random

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


def damaged(seeds, count, salt):
    """So many valid contents, each after one to four mishaps.

    Mishaps are made by a generator of our own, and many contents at a time: hypothesis takes longer to choose
    than readers to read.
    """

    def make(number, mishaps):
        random = Random(f"{salt}/{number}")
        return [_damage(random, seeds, mishaps) for _ in range(count)]

    return st.builds(make, st.integers(0, 1 << 62), st.integers(1, 4))


def _damage(random, seeds, mishaps):
    content = random.choice(seeds)
    for _ in range(mishaps):
        content = random.choice(_MISHAPS)(random, content, seeds)
    return content[: 1 << 17]


def _span(random, content, longest=64):
    start = random.randint(0, len(content))
    return start, random.randint(start, min(len(content), start + longest))


def _flip(random, content, seeds):
    if not content:
        return content
    place = random.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << random.randrange(8))]) + content[place + 1 :]


def _cut(random, content, seeds):
    return content[: random.randint(0, len(content))]


def _remove(random, content, seeds):
    start, end = _span(random, content)
    return content[:start] + content[end:]


def _repeat(random, content, seeds):
    start, end = _span(random, content)
    return content[:start] + content[start:end] * random.choice([2, 3, 50, 1000]) + content[end:]


def _insert(random, content, seeds):
    place = random.randint(0, len(content))
    return content[:place] + random.choice(PIECES) + content[place:]


def _overwrite(random, content, seeds):
    place = random.randint(0, len(content))
    piece = random.choice([random.choice(PIECES), random.randbytes(random.randint(1, 8))])
    return content[:place] + piece + content[place + len(piece) :]


def _splice(random, content, seeds):
    start, _ = _span(random, content)
    other = random.choice(seeds)
    first, last = _span(random, other, 4096)
    return content[:start] + other[first:last] + content[random.randint(start, len(content)) :]


def _renumber(random, content, seeds):
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    number = random.choice(found)
    return content[: number.start()] + random.choice(PIECES) + content[number.end() :]


def _swap_lines(random, content, seeds):
    lines = content.split(b"\n")
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


def _recode(random, content, seeds):
    return content.decode("utf-8", "replace").encode(random.choice(_ENCODINGS), "replace")


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
