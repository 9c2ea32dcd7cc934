"""A trained model as one ONNX file, for programs without Python or PyTorch.

The file maps raw inputs to probabilities, as `lossnet.Model.predict_proba` does: preprocessing and averaging
over crops are part of it.

============  =============================================================
input         shape and type
============  =============================================================
``features``  ``(batch, inputs)``, float32, NaN where missing
``tokens``    ``(batch, length, columns)``, int64, 0 on padding
``images``    ``(batch, height, width, channels)``, float32
============  =============================================================

``probabilities`` are ``(batch, labels)``, ``(batch, length, tags)`` or ``(batch, height, width)``.

Names of labels, tags and inputs, the threshold and the lexicon are in the file's metadata.
"""

from __future__ import annotations

import copy
import io
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import lossnet
from lossnet.files import write_bytes
from lossnet.methods import TaskNetMethod
from lossnet.model import Model
from lossnet.spaces import Batch

__all__ = ["OUTPUT", "TOLERANCE", "export"]

#: name of the output
OUTPUT = "probabilities"
#: how far a probability may be from PyTorch's, since float32 sums are taken in another order
TOLERANCE = 1e-4
#: batch sizes that an exported file is tried with
_BATCHES = (1, 2, 7)
_OPSET = 17


def export(model: Model, path: Path | str) -> float:
    """Write a model as an ONNX file and return the largest difference of a probability from PyTorch's.

    The file is run by ONNX Runtime on random inputs of several sizes before it is written: one that disagrees
    by more than `TOLERANCE` is refused.  Needs the ``[export]`` extra, and a model whose task net predicts:
    gradient-based inference and Viterbi's algorithm are loops, which cannot be exported.
    """
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        what = f"exporting needs ONNX ({error.name} is missing)"
        raise ImportError(f"{what}: pip install 'lossnet[export]'") from None
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file")
    if not isinstance(model.method, TaskNetMethod):
        what = f"{model.names[0]} predicts by a search, not by one forward pass"
        raise ValueError(
            f"{what}; train a task net to export it (cross-entropy, seal, implicit, infnet-plus)"
        )
    exported = _Exported(model)
    proto = onnx.load_from_string(_traced(exported))
    onnx.helper.set_model_props(proto, exported.metadata())
    onnx.checker.check_model(proto)
    content = proto.SerializeToString()
    difference = _largest_difference(onnxruntime, content, exported)
    if not difference <= TOLERANCE:
        what = f"ONNX Runtime's probabilities differ from PyTorch's by up to {difference:.2g}"
        raise ValueError(f"{what}, more than {TOLERANCE:g}: {path} is not written")
    write_bytes(path, content)
    return difference


def _traced(exported: _Exported) -> bytes:
    """Return the bytes of the ONNX file, by tracing.

    PyTorch's newer exporter unrolls an LSTM for sentences of one length; the traced one stays an LSTM.
    """
    stream = io.BytesIO()
    (example,) = (torch.from_numpy(inputs) for inputs in exported.inputs(2, 0))
    # Layers may store weights in another form than their parameters', so the file has them as constants.
    constant = copy.deepcopy(exported).eval().requires_grad_(False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            constant,
            (example,),
            stream,  # type: ignore[arg-type]
            input_names=[exported.name],
            output_names=[OUTPUT],
            dynamic_axes=exported.axes(),
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
            (output,) = session.run([OUTPUT], {exported.name: inputs})
            wanted = exported.expected(inputs)
            if output.shape != wanted.shape:
                raise ValueError(f"ONNX Runtime gives the shape {output.shape}, PyTorch {wanted.shape}")
            gap = np.abs(output - wanted).max(initial=0.0)
            largest = max(largest, float("inf") if np.isnan(gap) else float(gap))
    return largest


class _Exported(nn.Module):
    """The module that is exported: from raw inputs to probabilities."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.method = model.method.to("cpu").eval()
        self._model, self._task, self._settings = model, model.task, model.settings
        self._level, self.name = model.task.output.level, model.task.input.exported_name
        if not self.name:
            raise ValueError(f"models of {self._task.input.summary} cannot be exported")

    def forward(self, x: Tensor) -> Tensor:
        read, mask = self._task.exported(x)

        def predict(inputs: Tensor) -> Tensor:
            probabilities: Tensor = self.method.predict(inputs, mask)
            return probabilities

        return self._task.output.exported(predict, read, self._task.input, self._settings)

    def axes(self) -> dict[str, dict[int, str]]:
        """Return the names of axes that may have any size, of the input and of the output."""
        axes = self._task.input.exported_axes(self._settings, self._level)
        return {self.name: axes, OUTPUT: {0: "batch"} if self._level == "instance" else axes}

    def inputs(self, batch: int, seed: int) -> Iterator[NDArray[Any]]:
        """Yield random inputs of that batch size."""
        yield from self._task.input.examples(self._settings, self._level, batch, seed)

    def expected(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Return the model's own probabilities."""
        relaxed, _ = self._model.probabilities(_Raw(*self._task.exported(torch.from_numpy(inputs))))
        return np.asarray(relaxed.numpy(), dtype=np.float32)

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the file."""
        task, (method, loss) = self._task, self._model.names
        described = {**task.input.described(self._settings, self._level), **task.output.described()}
        return {
            "lossnet_version": lossnet.__version__,
            "kind": task.output.kind,
            "method": method,
            "loss": loss,
            "threshold": repr(self._model.threshold),
            "input": self.name,
            "output": OUTPUT,
            **{name: json.dumps(value) for name, value in described.items()},
        }


@dataclass(frozen=True)
class _Raw:
    """Network inputs without truth, as a data set."""

    x: Tensor
    mask: Tensor | None

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: Tensor) -> Batch:
        return Batch(self.x[indices], None, None if self.mask is None else self.mask[indices])
