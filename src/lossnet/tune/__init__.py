"""Search for settings on validation data, by one worker or many; needs the ``[tune]`` extra."""

from lossnet.tune.space import Choice, Dimension, Range, default_space, parse
from lossnet.tune.study import Found, Search, search

__all__ = ["Choice", "Dimension", "Found", "Range", "Search", "default_space", "parse", "search"]
