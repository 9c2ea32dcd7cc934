"""Kinds of output: space, score, energy terms, decoding, measures, what a model keeps, how it is shown.

A new kind is one new file with a subclass of `Output`; see ``docs/extend.md``.
"""

from lossnet.outputs.base import Output, Predicted
from lossnet.outputs.labels import Labels
from lossnet.outputs.masks import Masks
from lossnet.outputs.roles import Roles
from lossnet.outputs.tags import Tags
from lossnet.outputs.trees import Trees

__all__ = ["Labels", "Masks", "Output", "Predicted", "Roles", "Tags", "Trees"]
