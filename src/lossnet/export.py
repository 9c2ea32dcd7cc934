"""A trained model as one ONNX file, for programs without Python or PyTorch.

The file maps raw inputs to probabilities, as `lossnet.Model.predict_proba` does: preprocessing and averaging
over crops are part of it.

============  =============================================================
input         what it is
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
    exported = _Exported(model)
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
            dynamic_axes={exported.name: exported.input_axes, OUTPUT: exported.output_axes},
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
        "kind": model.task.output.kind,
        "method": model.names[0],
        "loss": model.names[1],
        "threshold": repr(model.threshold),
        "input": exported.name,
        "output": OUTPUT,
    }
    return described | {name: json.dumps(value) for name, value in exported.described().items()}


class _Exported(nn.Module):
    """What is exported: from raw inputs to probabilities."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.method = model.method.to("cpu").eval()
        self._model, self._task, self._settings = model, model.task, model.settings
        if not self._task.input.exported_name:
            raise ValueError(f"models of {self._task.input.summary} cannot be exported")

    @property
    def name(self) -> str:
        """What the input is called."""
        return self._task.input.exported_name

    @property
    def input_axes(self) -> dict[int, str]:
        """Names of the input's axes that may have any size."""
        return self._task.input.exported_axes(self._settings, self._task.output.level)

    @property
    def output_axes(self) -> dict[int, str]:
        """Those of the output, which has the input's units or none."""
        return {0: "batch"} if self._task.output.level == "instance" else self.input_axes

    def forward(self, x: Tensor) -> Tensor:
        read, mask = self._task.exported(x)

        def predict(inputs: Tensor) -> Tensor:
            probabilities: Tensor = self.method.predict(inputs, mask)
            return probabilities

        return self._task.output.exported(predict, read, self._task.input, self._settings)

    def inputs(self, batch: int, seed: int) -> Iterator[NDArray[Any]]:
        """Yield random inputs of that batch size."""
        yield from self._task.input.examples(self._settings, self._task.output.level, batch, seed)

    def wanted(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Return what the model itself says of them."""
        x, mask = self._task.exported(torch.from_numpy(inputs))
        relaxed, _ = self._model.probabilities(_Raw(x, mask))
        return np.asarray(relaxed.numpy(), dtype=np.float32)

    def described(self) -> dict[str, Any]:
        """Return metadata, as JSON."""
        level = self._task.output.level
        return {**self._task.input.described(self._settings, level), **self._task.output.described()}


@dataclass(frozen=True)
class _Raw:
    """Network inputs without truth, as a data set."""

    x: Tensor
    mask: Tensor | None

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: Tensor) -> Batch:
        return Batch(self.x[indices], None, None if self.mask is None else self.mask[indices])
