"""What there is to see where outputs are masks."""

from __future__ import annotations

import torch
from torch import Tensor

from lossnet.analysis import mask_pull
from lossnet.model import ModelError
from lossnet.report.draw import image, signed
from lossnet.report.evidence import Evidence, RunOutput, Section, Tell
from lossnet.report.markup import Markup, join, tag
from lossnet.report.tables import missing
from lossnet.scores import IoU

__all__ = ["sections"]

EXAMPLES = 12


def sections(evidence: Evidence, tell: Tell) -> list[Section]:
    """Return examples, with the energy's pull on each mask."""
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
        for title, column in pictures.items():
            score = join(tag("br"), f"IoU {100 * scores[title][row]:.0f}") if title in scores else None
            figures.append(tag("figure", column[row], tag("figcaption", title, score)))
        heading = tag("h3", f"{evidence.part} row {number}")
        cards.append(tag("article", heading, tag("div", *figures, class_="strip"), class_="card"))
    text = f"Evenly spaced {evidence.part} images, so that nobody has chosen them (first seed)."
    if pull is not None:
        text += " The energy’s pull −∂E/∂y at the prediction is orange where it wants foreground, else blue."
        text += _agreement(evidence, numbers, pull)
    body = join(tag("p", text), missing(without) if without else None, tag("div", *cards, class_="cards"))
    return [Section("Examples", body)]


def _outputs(evidence: Evidence) -> dict[str, RunOutput]:
    """The first seeds of baseline and subject by their titles."""
    return {group.title: evidence.outputs[group.title][0] for group in reversed(evidence.comparison.shown)}


def _iou(evidence: Evidence, output: RunOutput, numbers: Tensor) -> list[float]:
    values: list[float] = IoU()(output.chosen()[numbers].unsqueeze(1), evidence.truth[numbers])[:, 0].tolist()
    return values


def _pull(evidence: Evidence, numbers: Tensor) -> Tensor:
    """``−∂E/∂y`` of the subject's energy at its own predictions, ``(images, height, width)``."""
    model, relaxed = evidence.subject.model, evidence.subject.relaxed[numbers]
    views = model.task.views(model.settings)
    return mask_pull(evidence.subject.energy(), evidence.batch(numbers).x, relaxed, views)


def _agreement(evidence: Evidence, numbers: Tensor, pull: Tensor) -> str:
    """How often the pull on a wrong pixel is towards the truth."""
    error = evidence.truth[numbers] - evidence.subject.chosen()[numbers]
    wrong = error != 0
    if not wrong.any():
        return ""
    share = float((torch.sign(pull) == error)[wrong].float().mean())
    return f" On these images it pulls {100 * share:.0f} % of the wrong pixels towards the truth."


def _pictures(evidence: Evidence, numbers: Tensor, pull: Tensor | None) -> dict[str, list[Markup]]:
    """Columns of images by their titles: input, truth, each model, and the pull."""
    columns = {"image": [evidence.picture(number) or Markup("") for number in numbers.tolist()]}
    columns["truth"] = _masks(evidence.truth[numbers], "truth")
    for title, output in _outputs(evidence).items():
        columns[title] = _masks(output.chosen()[numbers], title)
    if pull is not None:
        title = "energy’s pull"
        columns[title] = [image(signed(values), title) for values in pull.numpy()]
    return columns


def _masks(masks: Tensor, title: str) -> list[Markup]:
    """White where masks ``(images, height, width)`` are 1, else black."""
    return [image(mask, title) for mask in masks.numpy()]
