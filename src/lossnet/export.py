"""A trained model as one ONNX file, for programs without Python or PyTorch.

The file maps raw inputs to probabilities, as `lossnet.Model.predict_proba` does: preprocessing and averaging
over crops are part of it.

==========  =============================================================  =======================
kind        input                                                          ``probabilities``
==========  =============================================================  =======================
``labels``  ``features`` ``(batch, inputs)``, float32, NaN where missing   ``(batch, labels)``
``tags``    ``tokens`` ``(batch, length, columns)``, int64, 0 on padding   ``(batch, length, tags)``
``masks``   ``images`` ``(batch, height, width, channels)``, float32       ``(batch, height, width)``
==========  =============================================================  =======================

Names of labels, tags and inputs, the threshold and the lexicon are in the file's metadata.
"""

from __future__ import annotations

import copy
import io
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import lossnet
from lossnet.data import Crops, Preprocessor
from lossnet.files import write_bytes
from lossnet.methods import TaskNetMethod
from lossnet.model import Model
from lossnet.spaces import Batch
from lossnet.tasks import LabelTask, MaskTask, TagTask

__all__ = ["OUTPUT", "TOLERANCE", "export"]

#: what the output is called
OUTPUT = "probabilities"
#: how far a probability may be from PyTorch's, since float32 sums are taken in another order
TOLERANCE = 1e-4
#: batch sizes that an exported file is tried with
_BATCHES = (1, 2, 7)
_OPSET = 17


def export(model: Model, path: Path | str) -> float:
    """Writes a model as an ONNX file and returns the largest difference of a probability from PyTorch's.

    The file is run by ONNX Runtime on random inputs of several sizes before it is written: one that disagrees
    by more than `TOLERANCE` is refused.  Needs the ``[export]`` extra, and a model whose task net predicts:
    gradient-based inference and Viterbi's algorithm are loops that the format has no place for.
    """
    onnx, runtime = _packages()
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file")
    if not isinstance(model.method, TaskNetMethod):
        what = f"{model.names[0]} predicts by a search, not by one forward pass"
        raise ValueError(
            f"{what}; train a task net to export it (cross-entropy, seal, implicit, infnet-plus)"
        )
    exported = _kind(model)
    content = _traced(exported)
    proto = onnx.load_from_string(content)
    onnx.helper.set_model_props(proto, _metadata(model, exported))
    onnx.checker.check_model(proto)
    content = proto.SerializeToString()
    difference = _largest_difference(runtime, content, exported)
    if not difference <= TOLERANCE:
        what = f"ONNX Runtime's probabilities differ from PyTorch's by up to {difference:.2g}"
        raise ValueError(f"{what}, more than {TOLERANCE:g}: {path} is not written")
    write_bytes(path, content)
    return difference


def _packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        what = f"exporting needs ONNX ({error.name} is missing)"
        raise ImportError(f"{what}: pip install 'lossnet[export]'") from None
    return onnx, onnxruntime


def _traced(exported: _Exported) -> bytes:
    """The bytes of the ONNX file, by tracing.

    PyTorch's newer exporter unrolls an LSTM for sentences of one length; the traced one stays an LSTM.
    """
    stream = io.BytesIO()
    (example,) = (torch.from_numpy(inputs) for inputs in exported.inputs(2, 0))
    axes = exported.dynamic
    # Layers may hold weights otherwise than they name them, so that they are constants of the file.
    constant = copy.deepcopy(exported).eval().requires_grad_(False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            constant,
            (example,),
            stream,  # type: ignore[arg-type]
            input_names=[exported.name],
            output_names=[OUTPUT],
            dynamic_axes={exported.name: axes, OUTPUT: axes},
            opset_version=_OPSET,
            dynamo=False,
        )
    return stream.getvalue()


def _largest_difference(runtime: Any, content: bytes, exported: _Exported) -> float:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    largest = 0.0
    for seed, batch in enumerate(_BATCHES):
        for inputs in exported.inputs(batch, seed):
            (found,) = session.run([OUTPUT], {exported.name: inputs})
            wanted = exported.wanted(inputs)
            if found.shape != wanted.shape:
                raise ValueError(f"ONNX Runtime gives the shape {found.shape}, PyTorch {wanted.shape}")
            gap = np.abs(found - wanted).max(initial=0.0)
            largest = max(largest, float("inf") if np.isnan(gap) else float(gap))
    return largest


def _metadata(model: Model, exported: _Exported) -> dict[str, str]:
    described = {
        "lossnet_version": lossnet.__version__,
        "kind": model.task.kind,
        "method": model.names[0],
        "loss": model.names[1],
        "threshold": repr(model.threshold),
        "input": exported.name,
        "output": OUTPUT,
    }
    return described | {name: json.dumps(value) for name, value in exported.described().items()}


# ---------------------------------------------------------------- kinds of output


class _Exported(nn.Module, ABC):
    """What is exported: from raw inputs to probabilities."""

    #: the input's name
    name: str
    #: names of the axes that may have any size, in input and output
    dynamic: dict[int, str]

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model.method.to("cpu").eval()
        self._model = model

    @abstractmethod
    def inputs(self, batch: int, seed: int) -> Iterator[NDArray[Any]]:
        """Random inputs of that batch size, of several other sizes where they may vary; one for seed 0."""

    @abstractmethod
    def wanted(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """What `Model.probabilities` says of them."""

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Metadata, as JSON."""


class _Labels(_Exported):
    name = "features"
    dynamic = {0: "batch"}  # noqa: RUF012

    def __init__(self, model: Model, task: LabelTask) -> None:
        super().__init__(model)
        self.task = task
        preprocessor = task.preprocessor or Preprocessor(np.zeros(0))
        for name in ("impute", "mean", "scale"):
            values = preprocessor.state().get(name)
            values = values if values is not None and values.size else None
            self.register_buffer(name, None if values is None else torch.from_numpy(values))

    def forward(self, x: Tensor) -> Tensor:
        # In float64 until the network's own arithmetic begins, as the preprocessor does it.
        impute, mean, scale = self.impute, self.mean, self.scale
        if isinstance(impute, Tensor):
            x = torch.where(torch.isnan(x), impute, x.double())
        if isinstance(mean, Tensor) and isinstance(scale, Tensor):
            x = (x - mean) / scale
        probabilities: Tensor = self.model.predict(x.float())
        return probabilities

    def inputs(self, batch: int, seed: int) -> Iterator[NDArray[Any]]:
        random = np.random.default_rng(seed)
        x = random.normal(size=(batch, len(self.task.feature_names)))
        if isinstance(self.mean, Tensor) and isinstance(self.scale, Tensor):
            x = x * self.scale.numpy() + self.mean.numpy()
        if isinstance(self.impute, Tensor):
            x[random.random(x.shape) < 0.1] = np.nan
        yield x.astype(np.float32)

    def wanted(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        return self._model.predict_proba(inputs)

    def described(self) -> dict[str, Any]:
        return {"labels": self.task.label_names, "features": self.task.feature_names}


@dataclass(frozen=True)
class _Tokens:
    """Sentences as numbers ``(n, length, columns)``, without tags, as a data set."""

    numbers: Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    def batch(self, indices: Tensor) -> Batch:
        x = self.numbers[indices]
        return Batch(x, torch.zeros(*x.shape[:2], 1), (x[..., 0] != 0).float())


class _Tags(_Exported):
    name = "tokens"
    dynamic = {0: "batch", 1: "length"}  # noqa: RUF012

    def __init__(self, model: Model, task: TagTask) -> None:
        super().__init__(model)
        self.lexicon = task.lexicon

    def forward(self, x: Tensor) -> Tensor:
        probabilities: Tensor = self.model.predict(x, x[..., 0] != 0)
        return probabilities

    def inputs(self, batch: int, seed: int) -> Iterator[NDArray[Any]]:
        lexicon, random = self.lexicon, np.random.default_rng(seed)
        sizes = [len(lexicon.words), *map(len, lexicon.features.values())]
        sizes += [len(lexicon.characters)] * lexicon.word_length
        for length in (5,) if seed == 0 else (1, 4, 23):
            x = np.stack([random.integers(1, size, (batch, length)) for size in sizes], -1)
            lengths = random.integers(1, length + 1, batch)
            lengths[0] = length
            x[np.arange(length) >= lengths[:, None]] = 0
            yield x.astype(np.int64)

    def wanted(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        relaxed, _ = self._model.probabilities(_Tokens(torch.from_numpy(inputs)))
        return np.asarray(relaxed.numpy(), dtype=np.float32)

    def described(self) -> dict[str, Any]:
        return {"tags": self.lexicon.tags, "lexicon": self.lexicon.state()}


class _Masks(_Exported):
    name = "images"

    def __init__(self, model: Model, task: MaskTask) -> None:
        super().__init__(model)
        self.task, self.views = task, task.crops(model.settings)
        self.dynamic = {0: "batch"} if self.views else {0: "batch", 1: "height", 2: "width"}
        # The transposed convolutions of the papers' network are told the size of their output when traced.
        self.multiple = 4 if model.settings.image_net == "fcn" else 1
        if self.views is None and any(side % self.multiple for side in task.size):
            self.dynamic, self.multiple = {0: "batch"}, 1

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2)
        if self.views is None:
            return self._predicted(x)
        mean = self._mean(self.views, x)
        return (mean + self._mean(self.views, x.flip(-1)).flip(-1)) / 2 if self.views.flips else mean

    def inputs(self, batch: int, seed: int) -> Iterator[NDArray[Any]]:
        height, width = self.task.size
        sizes = [(height, width)]
        if seed and len(self.dynamic) > 1:
            sizes += [(height + 2 * self.multiple, width), (height, width + self.multiple)]
        random = np.random.default_rng(seed)
        for size in sizes:
            yield random.random((batch, *size, self.task.channels), dtype=np.float32)

    def wanted(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        return self._model.predict_proba(inputs)

    def described(self) -> dict[str, Any]:
        any_size = len(self.dynamic) > 1
        size = {"size_multiple": self.multiple} if any_size else {"size": self.task.size}
        return {"channels": self.task.channels, **size}

    def _predicted(self, x: Tensor) -> Tensor:
        probabilities: Tensor = self.model.predict(x)
        return probabilities

    def _mean(self, views: Crops, x: Tensor) -> Tensor:
        """`Crops.averaged` for images of the one size that the file is for, without writing into slices."""
        (height, width), (rows, columns) = self.task.size, views.shape
        positions = views.positions(height, width)
        seen = torch.zeros(height, width)
        crops = []
        for top, left in positions:
            seen[top : top + rows, left : left + columns] += 1
            crops.append(x[:, :, top : top + rows, left : left + columns])
        outputs = self._predicted(torch.cat(crops)).reshape(len(positions), -1, rows, columns)
        total: Tensor | float = 0.0
        for place, (top, left) in enumerate(positions):
            around = [left, width - left - columns, top, height - top - rows]
            total = total + F.pad(outputs[place], around)
        assert isinstance(total, Tensor)
        return total / seen


def _kind(model: Model) -> _Exported:
    task = model.task
    if isinstance(task, LabelTask):
        return _Labels(model, task)
    if isinstance(task, TagTask):
        return _Tags(model, task)
    assert isinstance(task, MaskTask)
    return _Masks(model, task)
