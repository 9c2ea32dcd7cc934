"""Multi-label data: reading, splitting, preprocessing, and the sets known by name.

>>> from lossnet.data import load
>>> loaded = load("digits-completion")
>>> loaded.train.inputs, loaded.train.labels
(32, 32)
"""

from lossnet.data.dataset import MultiLabelData, ResidentData
from lossnet.data.embedded import digits_completion, digits_pairs
from lossnet.data.errors import DataError
from lossnet.data.preprocess import Preprocessor
from lossnet.data.readers import read, read_inputs
from lossnet.data.registry import Description, Entry, Loaded, describe, entry, find, load, names
from lossnet.data.splits import Split, stratified_split

__all__ = [
    "DataError",
    "Description",
    "Entry",
    "Loaded",
    "MultiLabelData",
    "Preprocessor",
    "ResidentData",
    "Split",
    "describe",
    "digits_completion",
    "digits_pairs",
    "entry",
    "find",
    "load",
    "names",
    "read",
    "read_inputs",
    "stratified_split",
]
