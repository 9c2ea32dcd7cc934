"""Energies ``E(x, y)``: low is good.

An energy encodes ``x`` once and then scores any number of candidates.  `Sum` composes terms over one
shared encoder; a new term is one new file here.
"""

from lossnet.energies.base import Energy, Sum, Term
from lossnet.energies.image import FeatureEnergy, ImageEnergy
from lossnet.energies.labels import LabelInteraction
from lossnet.energies.local import Local

__all__ = ["Energy", "FeatureEnergy", "ImageEnergy", "LabelInteraction", "Local", "Sum", "Term"]
