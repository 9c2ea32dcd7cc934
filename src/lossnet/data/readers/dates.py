"""Dates in tables: how they are read, and the features that a column of them becomes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: what is kept of each date; a column ``released`` becomes ``released:year`` and so on
DATE_PARTS = (
    "year",
    "month_sin",
    "month_cos",
    "weekday_sin",
    "weekday_cos",
    "yearday_sin",
    "yearday_cos",
    "days",
)
#: what is kept of the time, where a column has times
TIME_PARTS = ("hour_sin", "hour_cos")

_MONTHS = tuple(
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)
_EPOCH = date(1970, 1, 1).toordinal()
_CLOCK = r"(?P<h>\d{1,2}):(?P<min>\d{2})(?::(?P<s>\d{2})(?:[.,]\d+)?)?(?: ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?"
_TIME = rf"(?:(?:T|,? +){_CLOCK})?"
_FORMS = [
    re.compile(form + _TIME, re.ASCII)
    for form in (
        r"(?P<y>\d{4})(?P<mark>[-/.])(?P<m>\d{1,2})(?P=mark)(?P<d>\d{1,2})",
        r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})",
        r"(?P<d>\d{1,2})(?:st|nd|rd|th)?[ -](?P<name>[A-Za-z]{3,9})\.?,?[ -](?P<y>\d{4})",
        r"(?P<name>[A-Za-z]{3,9})\.? (?P<d>\d{1,2})(?:st|nd|rd|th)?,? (?P<y>\d{4})",
    )
]
_AMBIGUOUS = re.compile(r"\d{1,2}[/-]\d{1,2}[/-](?:\d{2}|\d{4})", re.ASCII)


def read_date(cell: Any) -> datetime | None:
    """Return the date that a cell holds, None if it is none or may be read in two ways.

    ``2001-03-04``, ``2001/3/4`` and ``2001.3.4`` are dates, as are ``4.3.2001``, ``4 March 2001``,
    ``4-Mar-2001`` and ``March 4, 2001``; a time may follow, ``T10:30:00Z`` or `` 10:30``.  The time counts as
    it is written, in whatever zone.  ``03/04/2001`` is none: which one is the month differs by country.

    >>> read_date("2001-03-04T10:30:00+01:00"), read_date("4 March 2001"), read_date("03/04/2001")
    (datetime.datetime(2001, 3, 4, 10, 30), datetime.datetime(2001, 3, 4, 0, 0), None)
    """
    if isinstance(cell, datetime):
        return cell.replace(tzinfo=None) if cell == cell else None  # pandas' NaT equals nothing
    if isinstance(cell, date):
        return datetime(cell.year, cell.month, cell.day)
    if not isinstance(cell, str) or not 8 <= len(cell) <= 50:
        return None
    for form in _FORMS:
        if found := form.fullmatch(cell):
            parts = found.groupdict()
            month = _month(parts["name"]) if "name" in parts else int(parts["m"])
            hour, minute, second = (int(parts[part] or 0) for part in ("h", "min", "s"))
            try:
                return datetime(int(parts["y"]), month, int(parts["d"]), hour, minute, second)
            except ValueError:  # such as the 31st of June
                return None
    return None


def is_ambiguous(cell: Any) -> bool:
    """Whether a cell has a date whose day and month cannot be told apart.

    >>> is_ambiguous("03/04/2001"), is_ambiguous("2001-03-04")
    (True, False)
    """
    return isinstance(cell, str) and bool(_AMBIGUOUS.fullmatch(cell))


def date_names(column: str, timed: bool) -> list[str]:
    """Return the names of the features of a column of dates.

    >>> date_names("released", timed=False)[:3]
    ['released:year', 'released:month_sin', 'released:month_cos']
    """
    return [f"{column}:{part}" for part in (*DATE_PARTS, *(TIME_PARTS if timed else ()))]


def date_features(dates: Sequence[datetime | None], timed: bool) -> NDArray[np.float32]:
    """Return the features of dates, ``(n, 8)``, or ``(n, 10)`` with the time; NaN for None.

    The year; month, day of the week and day of the year as sine and cosine, so that December is beside
    January; days since 1970-01-01; and the hour as sine and cosine.

    >>> date_features([datetime(1970, 1, 4)], timed=False).round(2).tolist()
    [[1970.0, 0.0, 1.0, -0.7799999713897705, 0.6200000047683716, 0.05000000074505806, 1.0, 3.0]]
    """
    rows = np.full((len(dates), len(DATE_PARTS) + len(TIME_PARTS) * timed), np.nan, dtype=np.float32)
    for row, when in enumerate(dates):
        if when is not None:
            turns = [(when.month - 1) / 12, when.weekday() / 7, (when.timetuple().tm_yday - 1) / 365.25]
            cyclic = [part for turn in turns for part in _on_circle(turn)]
            time = _on_circle((when.hour + when.minute / 60 + when.second / 3600) / 24) if timed else ()
            rows[row] = [when.year, *cyclic, when.toordinal() - _EPOCH, *time]
    return rows


def has_time(dates: Sequence[datetime | None]) -> bool:
    """Whether any date has a time other than midnight."""
    return any(when is not None and (when.hour or when.minute or when.second) for when in dates)


def _on_circle(turn: float) -> tuple[float, float]:
    return math.sin(2 * math.pi * turn), math.cos(2 * math.pi * turn)


def _month(name: str) -> int:
    """Return the number of a month by its English name or the first three or four letters, else 0."""
    short = name.lower()
    matches = [place for place, month in enumerate(_MONTHS, start=1) if month.startswith(short)]
    return (
        matches[0] if len(matches) == 1 and (len(short) in (3, 4) or _MONTHS[matches[0] - 1] == short) else 0
    )
