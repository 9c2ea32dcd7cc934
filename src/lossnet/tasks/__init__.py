"""Kinds of output: what a run must know of its data to build networks, measure, and predict for a user.

==========  ===================================================
``labels``  sets of labels from feature vectors
``masks``   foreground pixels of images
``tags``    a tag for every token of sentences
==========  ===================================================

A new kind is one new file here.
"""

from lossnet.tasks.base import Task
from lossnet.tasks.kinds import restore, task_of
from lossnet.tasks.labels import LabelTask
from lossnet.tasks.masks import MaskTask
from lossnet.tasks.tags import TagTask

__all__ = ["LabelTask", "MaskTask", "TagTask", "Task", "restore", "task_of"]
