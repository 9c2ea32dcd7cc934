"""Checks of values read back from JSON."""

from __future__ import annotations

from typing import Any

from lossnet.data.errors import DataError


def stored_strings(value: Any, what: str, least: int = 0) -> tuple[str, ...]:
    """Return a list of different strings as a tuple; there must be ``least`` or more."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{what} must be a list of strings")
    if len(value) < least:
        raise DataError(f"{what} must be at least {least}, not {len(value)}")
    if len(set(value)) != len(value):
        raise DataError(f"{what} has a string twice")
    return tuple(value)


def stored_number(value: Any, what: str, least: int, most: int) -> int:
    """Return a whole number, which must be in a range."""
    if type(value) is not int or not least <= value <= most:
        raise DataError(f"{what} must be a whole number from {least} to {most}, not {str(value)[:40]}")
    return value
