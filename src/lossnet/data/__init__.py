"""Labels, images with masks, tagged sentences: reading, splitting, preprocessing, and the sets known by name.

>>> from lossnet.data import load
>>> loaded = load("digits-completion")
>>> loaded.train.inputs, loaded.train.labels
(32, 32)
"""

from lossnet.data.crops import Crops
from lossnet.data.dataset import MultiLabelData, ResidentData, SparseData, Weighted
from lossnet.data.distortion import Distortion
from lossnet.data.embedded import digits_completion, digits_pairs, digits_scenes
from lossnet.data.embeddings import Coverage, Embeddings, read_embeddings
from lossnet.data.errors import DataError
from lossnet.data.image_files import decode_picture, read_images, read_pictures, stream_pictures, write_mask
from lossnet.data.images import MaskData
from lossnet.data.preprocess import Preprocessor
from lossnet.data.readers import read, read_inputs, stream_inputs
from lossnet.data.registry import (
    Description,
    Entry,
    Loaded,
    MaskDescription,
    TagDescription,
    describe,
    entry,
    find,
    load,
    names,
)
from lossnet.data.sentence_files import find_parts, read_sentences
from lossnet.data.sentences import Lexicon, ResidentSentences, Sentences, Vocabulary, encode_parts
from lossnet.data.splits import Split, hold_out, stratified_split

__all__ = [
    "Coverage",
    "Crops",
    "DataError",
    "Description",
    "Distortion",
    "Embeddings",
    "Entry",
    "Lexicon",
    "Loaded",
    "MaskData",
    "MaskDescription",
    "MultiLabelData",
    "Preprocessor",
    "ResidentData",
    "ResidentSentences",
    "Sentences",
    "SparseData",
    "Split",
    "TagDescription",
    "Vocabulary",
    "Weighted",
    "decode_picture",
    "describe",
    "digits_completion",
    "digits_pairs",
    "digits_scenes",
    "encode_parts",
    "entry",
    "find",
    "find_parts",
    "hold_out",
    "load",
    "names",
    "read",
    "read_embeddings",
    "read_images",
    "read_inputs",
    "read_pictures",
    "read_sentences",
    "stratified_split",
    "stream_inputs",
    "stream_pictures",
    "write_mask",
]
