"""Search for settings on validation data, by one worker or many; needs the ``[tune]`` extra.

===============  ==================================================================
`Search`         a run to start from, a space, a number of trials
`search`         train trials until all are done, and write the best settings
`Found`          the trials and where they are written
`default_space`  the settings of a method that are searched unless told otherwise
===============  ==================================================================
"""

from lossnet.tune.space import Choice, Dimension, Range, default_space, parse
from lossnet.tune.study import Found, Search, search

__all__ = ["Choice", "Dimension", "Found", "Range", "Search", "default_space", "parse", "search"]
