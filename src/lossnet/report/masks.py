"""What there is to see where outputs are masks."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.analysis import mask_pull
from lossnet.model import ModelError, load_energy
from lossnet.report.draw import image, signed
from lossnet.report.evidence import Evidence, Output, Section, Tell
from lossnet.report.markup import join, tag
from lossnet.report.tables import missing
from lossnet.scores import IoU

__all__ = ["sections"]

EXAMPLES = 12


def sections(evidence: Evidence, tell: Tell) -> list[Section]:
    """Examples, with the energy's pull on each mask."""
    tell("asking the energy")
    numbers = evidence.spaced(EXAMPLES)
    without = ""
    try:
        pull: Tensor | None = _pull(evidence, numbers)
    except ModelError as error:
        pull, without = None, f"The energy’s pull is not shown: {error}."
    pictures = _pictures(evidence, numbers, pull)
    scores = {title: _iou(evidence, output, numbers) for title, output in _outputs(evidence).items()}
    cards = []
    for row, number in enumerate(numbers.tolist()):
        figures = []
        for title, images in pictures.items():
            score = join(tag("br"), f"IoU {100 * scores[title][row]:.0f}") if title in scores else None
            figures.append(tag("figure", image(images[row], title), tag("figcaption", title, score)))
        heading = tag("h3", f"{evidence.part} row {number}")
        cards.append(tag("article", heading, tag("div", *figures, class_="strip"), class_="card"))
    text = f"Evenly spaced {evidence.part} images, so that nobody has chosen them (first seed)."
    if pull is not None:
        text += " The energy’s pull −∂E/∂y at the prediction is orange where it wants foreground, else blue."
        text += _agreement(evidence, numbers, pull)
    body = join(tag("p", text), missing(without) if without else None, tag("div", *cards, class_="cards"))
    return [Section("Examples", body)]


def _outputs(evidence: Evidence) -> dict[str, Output]:
    """The first seeds of baseline and subject by their titles."""
    return {group.title: evidence.outputs[group.title][0] for group in reversed(evidence.comparison.shown)}


def _chosen(output: Output, numbers: Tensor) -> Tensor:
    return (output.relaxed[numbers] >= output.model.threshold).float()


def _iou(evidence: Evidence, output: Output, numbers: Tensor) -> list[float]:
    values: list[float] = IoU()(_chosen(output, numbers).unsqueeze(1), evidence.truth[numbers])[:, 0].tolist()
    return values


def _pull(evidence: Evidence, numbers: Tensor) -> Tensor:
    """``−∂E/∂y`` of the subject's energy at its own predictions, ``(images, height, width)``."""
    run, model, relaxed = evidence.subject
    crops = model.task.crops(model.settings)
    return mask_pull(load_energy(run.folder), evidence.batch(numbers).x, relaxed[numbers], crops)


def _agreement(evidence: Evidence, numbers: Tensor, pull: Tensor) -> str:
    """How often the pull on a wrong pixel is towards the truth."""
    error = evidence.truth[numbers] - _chosen(evidence.subject, numbers)
    wrong = error != 0
    if not wrong.any():
        return ""
    share = float((torch.sign(pull) == error)[wrong].float().mean())
    return f" On these images it pulls {100 * share:.0f} % of the wrong pixels towards the truth."


def _pictures(evidence: Evidence, numbers: Tensor, pull: Tensor | None) -> dict[str, list[NDArray[np.uint8]]]:
    """Columns of RGBA images by their titles: image, truth, each model, and the pull."""
    columns = {"image": [_colours(x) for x in evidence.batch(numbers).x.numpy()]}
    columns["truth"] = [_mask(mask) for mask in evidence.truth[numbers].numpy()]
    for title, output in _outputs(evidence).items():
        columns[title] = [_mask(mask) for mask in _chosen(output, numbers).numpy()]
    if pull is not None:
        columns["energy’s pull"] = [signed(values) for values in pull.numpy()]
    return columns


def _colours(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """RGBA of an image ``(channels, height, width)`` in [0, 1]; it is grey unless it has three channels."""
    if len(pixels) != 3:
        pixels = np.repeat(pixels.mean(0, keepdims=True), 3, axis=0)
    levels = np.concatenate([pixels, np.ones_like(pixels[:1])])
    return (levels.transpose(1, 2, 0) * 255).round().astype(np.uint8)


def _mask(mask: NDArray[np.float32]) -> NDArray[np.uint8]:
    return _colours(mask[None])
