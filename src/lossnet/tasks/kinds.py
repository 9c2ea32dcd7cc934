"""Which task a data set or a model folder is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lossnet.data import Loaded, MaskData, Sentences
from lossnet.tasks.base import Arrays, Task
from lossnet.tasks.labels import LabelTask
from lossnet.tasks.masks import MaskTask
from lossnet.tasks.tags import TagTask

__all__ = ["restore", "task_of"]

KINDS: dict[str, type[Task]] = {task.kind: task for task in (LabelTask, MaskTask, TagTask)}


def task_of(data: Loaded) -> LabelTask | MaskTask | TagTask:
    """The task that a loaded data set poses.

    >>> from lossnet.data import load
    >>> task_of(load("digits-pairs")).units
    10
    """
    if isinstance(data.train, Sentences):
        return TagTask.of(data)
    return MaskTask.of(data) if isinstance(data.train, MaskData) else LabelTask.of(data)


def restore(content: Mapping[str, Any], arrays: Arrays) -> Task:
    """The task of a model folder, from what `Task.state` gave."""
    kind = content["kind"]
    if kind not in KINDS:
        raise ValueError(f"unknown kind of output {kind!r}; this version knows {', '.join(KINDS)}")
    return KINDS[kind].from_state(content, arrays)
