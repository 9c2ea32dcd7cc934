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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import lossnet
from lossnet.files import write_bytes
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
    if not model.method.feed_forward:
        what = f"{model.names[0]} predicts by a search, not by one forward pass"
        raise ValueError(
            f"{what}; train a task net to export it (cross-entropy, stack, seal, implicit, infnet-plus)"
        )
    if not model.task.input.exported_name:
        raise ValueError(f"models of {model.task.input.summary} cannot be exported")
    model.method.to("cpu").eval()
    proto = onnx.load_from_string(_traced(model))
    onnx.helper.set_model_props(proto, _metadata(model))
    onnx.checker.check_model(proto)
    content = proto.SerializeToString()
    difference = _largest_difference(onnxruntime, content, model)
    if not difference <= TOLERANCE:
        what = f"ONNX Runtime's probabilities differ from PyTorch's by up to {difference:.2g}"
        raise ValueError(f"{what}, more than {TOLERANCE:g}: {path} is not written")
    write_bytes(path, content)
    return difference


def _traced(model: Model) -> bytes:
    """Return the bytes of the ONNX file, by tracing.

    PyTorch's newer exporter unrolls an LSTM for sentences of one length; the traced one stays an LSTM.
    """
    stream, source, level = io.BytesIO(), model.task.input, model.task.output.level
    (example,) = map(torch.from_numpy, source.examples(model.settings, level, 2, 0))
    axes = source.exported_axes(model.settings, level)
    # Layers may store weights in another form than their parameters', so the file has them as constants.
    constant = copy.deepcopy(_Exported(model)).eval().requires_grad_(False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            constant,
            (example,),
            stream,  # type: ignore[arg-type]
            input_names=[source.exported_name],
            output_names=[OUTPUT],
            dynamic_axes={source.exported_name: axes, OUTPUT: {0: "batch"} if level == "instance" else axes},
            opset_version=_OPSET,
            dynamo=False,
        )
    return stream.getvalue()


def _largest_difference(runtime: Any, content: bytes, model: Model) -> float:
    task, options = model.task, runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    largest = 0.0
    for seed, batch in enumerate(_BATCHES):
        for inputs in task.input.examples(model.settings, task.output.level, batch, seed):
            (output,) = session.run([OUTPUT], {task.input.exported_name: inputs})
            relaxed, _ = model.probabilities(_Raw(*task.exported(torch.from_numpy(inputs))))
            wanted = relaxed.float().numpy()
            if output.shape != wanted.shape:
                raise ValueError(f"ONNX Runtime gives the shape {output.shape}, PyTorch {wanted.shape}")
            gap = np.abs(output - wanted).max(initial=0.0)
            largest = max(largest, float("inf") if np.isnan(gap) else float(gap))
    return largest


def _metadata(model: Model) -> dict[str, str]:
    task, (method, loss) = model.task, model.names
    described = {**task.input.described(model.settings, task.output.level), **task.output.described()}
    return {
        "lossnet_version": lossnet.__version__,
        "kind": task.output.kind,
        "method": method,
        "loss": loss,
        "threshold": repr(model.threshold),
        "input": task.input.exported_name,
        "output": OUTPUT,
        **{name: json.dumps(value) for name, value in described.items()},
    }


class _Exported(nn.Module):
    """The module that is exported: from raw inputs to probabilities."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.method, self._task, self._settings = model.method, model.task, model.settings
        self._calibration = model.calibration

    def forward(self, x: Tensor) -> Tensor:
        read, mask = self._task.exported(x)

        def predict(inputs: Tensor) -> Tensor:
            return self.method.predict(inputs, mask)

        relaxed = self._task.output.exported(predict, read, self._task.input, self._settings)
        return self._calibration(self.method.space, relaxed)


@dataclass(frozen=True)
class _Raw:
    """Network inputs without truth, as a data set."""

    x: Tensor
    mask: Tensor | None

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: Tensor) -> Batch:
        return Batch(self.x[indices], None, None if self.mask is None else self.mask[indices])
