"""Kinds of input: how raw inputs are read, prepared, batched and encoded.

===================  ===================  ======================================
`Features`           feature vectors      features of whole instances
`Text`               texts                features of whole texts
`Words`              sentences            features of tokens, or of sentences
`WordPieces`         sentences            the same, by a pretrained encoder
`Predicates`         their predicates     features of tokens, or of sentences
`EncodedPredicates`  their predicates     the same, by a pretrained encoder
`Images`             images               features of pixels, or of images
===================  ===================  ======================================

A new kind is one new file with a subclass of `Input`; see ``docs/extend.md``.
"""

from lossnet.inputs.base import (
    Arrays,
    Fitting,
    Input,
    Level,
    Part,
    Question,
    Role,
    Schema,
    State,
    TooLarge,
)
from lossnet.inputs.encoded_predicates import EncodedPredicates
from lossnet.inputs.features import Features
from lossnet.inputs.images import Images, Picture
from lossnet.inputs.predicates import Predicates
from lossnet.inputs.text import Text
from lossnet.inputs.word_pieces import WordPieces
from lossnet.inputs.words import Words

__all__ = [
    "Arrays",
    "EncodedPredicates",
    "Features",
    "Fitting",
    "Images",
    "Input",
    "Level",
    "Part",
    "Picture",
    "Predicates",
    "Question",
    "Role",
    "Schema",
    "State",
    "Text",
    "TooLarge",
    "WordPieces",
    "Words",
]
