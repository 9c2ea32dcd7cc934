"""Panels of a report on outputs that are masks."""

from __future__ import annotations

import torch

from lossnet.analysis import mask_pull
from lossnet.model import ModelError
from lossnet.outputs.panels.parts import calibration, cards, strip
from lossnet.report.draw import image, signed
from lossnet.report.evidence import Evidence, Section, Tell
from lossnet.report.markup import Markup, join, missing, tag
from lossnet.scores import IoU

EXAMPLES = 12


def sections(evidence: Evidence, tell: Tell) -> list[Section]:
    """Return the calibration, and examples with the energy's pull ``−∂E/∂y`` on each mask."""
    tell("asking the energy")
    numbers = evidence.spaced(EXAMPLES)
    model, truth, note = evidence.subject.model, evidence.truth[numbers], evidence.selection("images")
    # columns of captions and pictures
    columns = [
        [("image", evidence.picture(number) or Markup("")) for number in numbers.tolist()],
        [("truth", image(mask, "truth")) for mask in truth.numpy()],
    ]
    for title, output in reversed(evidence.first_seeds.items()):
        masks = output.decoded[numbers]
        scores = IoU()(masks.unsqueeze(1), truth)[:, 0].tolist()
        captions = [join(title, tag("br"), f"IoU {100 * score:.0f}") for score in scores]
        columns.append(
            [(text, image(mask, title)) for text, mask in zip(captions, masks.numpy(), strict=True)]
        )
    without = None
    try:
        energy, x = evidence.subject.energy(), evidence.rows.batch(numbers).x
        pull = mask_pull(energy, x, evidence.subject.relaxed[numbers], model.task.views(model.settings))
    except ModelError as error:
        without = missing(f"The energy’s pull is not shown: {error}.")
    else:
        title = "energy’s pull"
        columns.append([(title, image(signed(values), title)) for values in pull.numpy()])
        note += " The energy’s pull −∂E/∂y at the prediction is orange where it wants foreground, else blue."
        wanted = truth - evidence.subject.decoded[numbers]
        if wanted.any():
            share = float((torch.sign(pull) == wanted)[wanted != 0].float().mean())
            note += f" On these images it pulls {100 * share:.0f} % of the wrong pixels towards the truth."
    rows = zip(numbers.tolist(), zip(*columns, strict=True), strict=True)
    examples = cards(evidence, {number: strip(figures) for number, figures in rows})
    of_pixels = calibration(
        evidence, "of each pixel to be foreground", lambda output, relaxed: (relaxed, evidence.truth)
    )
    return [of_pixels, Section("Examples", join(tag("p", note), without, examples))]
