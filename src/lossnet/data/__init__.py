"""Data in memory, readers of files, and the sets known by name.

>>> from lossnet.data import MultiLabelData
>>> MultiLabelData.from_arrays([[0.5, 1.0]], [[1, 0, 1]]).label_names
('label_0', 'label_1', 'label_2')
"""

from lossnet.data.crops import Crops
from lossnet.data.digest import digest
from lossnet.data.distortion import Distortion
from lossnet.data.embedded import digits_completion, digits_pairs, digits_scenes
from lossnet.data.embeddings import Coverage, Embeddings, read_embeddings
from lossnet.data.errors import DataError
from lossnet.data.examples import Dataset, Examples, Facts, Source, Target, Weighted
from lossnet.data.image_files import (
    decode_picture,
    read_images,
    read_labelled_images,
    read_pictures,
    stream_pictures,
    write_mask,
)
from lossnet.data.images import MaskData, MaskStack, Pictures
from lossnet.data.preprocess import Preprocessor
from lossnet.data.propbank import find_frames
from lossnet.data.readers import read, read_inputs, stream_inputs
from lossnet.data.readers.frames import read_frames
from lossnet.data.registry import Entry, entry, find, names
from lossnet.data.sentence_files import find_parts, read_labelled_texts, read_sentences, tokenise
from lossnet.data.sentences import Lexicon, Sentences, TagColumn, TaggedSentences, TagSet, Vocabulary
from lossnet.data.splits import Split, hold_out, stratified_split
from lossnet.data.tables import FeatureTable, LabelTable, MultiLabelData
from lossnet.data.texts import TextTable
from lossnet.data.treebank import TreeColumn, read_treebank
from lossnet.data.unlabelled import WithUnlabelled, labelled_rows, rows_of

__all__ = [
    "Coverage",
    "Crops",
    "DataError",
    "Dataset",
    "Distortion",
    "Embeddings",
    "Entry",
    "Examples",
    "Facts",
    "FeatureTable",
    "LabelTable",
    "Lexicon",
    "MaskData",
    "MaskStack",
    "MultiLabelData",
    "Pictures",
    "Preprocessor",
    "Sentences",
    "Source",
    "Split",
    "TagColumn",
    "TagSet",
    "TaggedSentences",
    "Target",
    "TextTable",
    "TreeColumn",
    "Vocabulary",
    "Weighted",
    "WithUnlabelled",
    "decode_picture",
    "digest",
    "digits_completion",
    "digits_pairs",
    "digits_scenes",
    "entry",
    "find",
    "find_frames",
    "find_parts",
    "hold_out",
    "labelled_rows",
    "names",
    "read",
    "read_embeddings",
    "read_frames",
    "read_images",
    "read_inputs",
    "read_labelled_images",
    "read_labelled_texts",
    "read_pictures",
    "read_sentences",
    "read_treebank",
    "rows_of",
    "stratified_split",
    "stream_inputs",
    "stream_pictures",
    "tokenise",
    "write_mask",
]
