"""scikit-learn estimators over the same training as everywhere else.

======================  ==============================  =============================
`MultiLabelClassifier`  features, sentences or images   sets of labels, or classes
`SequenceTagger`        sentences of tokens             a tag for every token
`Segmenter`             images                          masks of foreground pixels
======================  ==============================  =============================
"""

from lossnet.estimators.labels import MultiLabelClassifier
from lossnet.estimators.masks import Segmenter
from lossnet.estimators.tags import SequenceTagger

__all__ = ["MultiLabelClassifier", "Segmenter", "SequenceTagger"]
