"""Segmentation: Weizmann horses (SEAL Table 4, UAI supplement Table 5) and digits pasted into photographs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.grid import Cell, models_are_there, publish, run_folder, run_grid
from benchmarks.seal import CONTROL
from lossnet.analysis import mask_pull
from lossnet.data import Crops, MaskData
from lossnet.files import write_json
from lossnet.loading import load
from lossnet.model import load as load_model
from lossnet.model import load_energy
from lossnet.prediction import Ensemble
from lossnet.run import find_device

__all__ = ["HORSES", "SCENES", "averaged", "draw", "run"]

COLUMNS = (("iou", "mean IoU"), ("pixel_accuracy", "pixel accuracy"))

BEST = Cell(
    "U-Net, enlarged, CE", "horses", "cross-entropy", recipe="horses/cross-entropy-none-unet-enlarged"
)
HORSES = (
    Cell("FCN, CE", "horses", "cross-entropy", published="77.80 (SEAL)"),
    Cell("FCN, CE + soft-IoU", "horses", "cross-entropy", "soft-f1"),
    Cell("FCN, Dice", "horses", "cross-entropy", "dice"),
    Cell("FCN, Lovász", "horses", "cross-entropy", "lovasz"),
    Cell("FCN, CE, distorted images", "horses", "cross-entropy", changes={"warp": 0.2, "colour": 0.2}),
    Cell("DVN + inference", "horses", "dvn", published="72.93 (SEAL), 83.9 (UAI)"),
    Cell("FCN, SEAL regression", "horses", "seal", "regression", published="79.23 (SEAL)"),
    Cell(
        "FCN, SEAL NCE, independent pixels",
        "horses",
        "seal",
        changes={"noise": "pixels"},
        published="76.78 (SEAL)",
    ),
    Cell("FCN, SEAL NCE, blocks", "horses", "seal", changes={"noise": "blocks"}),
    Cell("FCN, SEAL NCE, smooth", "horses", "seal"),
    Cell("FCN, SEAL NCE, smooth, U-Net as energy", "horses", "seal", changes={"image_energy": "unet"}),
    Cell(
        "FCN, SEAL NCE, smooth, U-Net as energy, weight 0",
        "horses",
        "seal",
        changes={**CONTROL, "image_energy": "unet"},
    ),
    Cell("FCN, implicit NCE, smooth", "horses", "implicit", published="89.4 (UAI, another network)"),
    Cell("U-Net, CE", "horses", "cross-entropy", recipe="horses/cross-entropy-none-unet"),
    Cell("U-Net, 64 channels, CE", "horses", "cross-entropy", recipe="horses/cross-entropy-none-unet-wide"),
    BEST,
    Cell("U-Net, SEAL NCE, smooth", "horses", "seal", recipe="horses/seal-nce-unet"),
    Cell(
        "U-Net, SEAL regression-s", "horses", "seal", "regression-s", recipe="horses/seal-regression-s-unet"
    ),
    Cell("cGLOW", "horses", "cglow", published="81.2 (UAI)"),
)
SCENES = (
    Cell("CE", "digits-scenes", "cross-entropy"),
    Cell("CE + soft-IoU", "digits-scenes", "cross-entropy", "soft-f1"),
    Cell("Dice", "digits-scenes", "cross-entropy", "dice"),
    Cell("cGLOW", "digits-scenes", "cglow"),
    Cell("SEAL-NCE", "digits-scenes", "seal"),
)
#: what the sheets of pictures show beside the truth; the last one's energy is looked at
SHEETS = {
    "horses": (HORSES[0], HORSES[9]),
    "digits-scenes": (SCENES[0], SCENES[-1]),
}


def run(name: str, output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Trains all cells of ``horses`` or ``digits-scenes``, writes table and picture."""
    cells = {"horses": HORSES, "digits-scenes": SCENES}[name]
    results = run_grid(cells, seeds, output, data_dir, device, jobs, keep_models=True, columns=COLUMNS)
    publish("test, in points", cells, results, output, COLUMNS)
    sheet = SHEETS[name]
    if name == "horses" and models_are_there([BEST], seeds, output):
        averaged(BEST, output, seeds, data_dir, device)
    if not models_are_there(sheet, 1, output):
        return
    picture = output / f"{name}.png"
    draw(picture, name, {cell.title: run_folder(output, cell, seed=0) for cell in sheet}, data_dir)
    Console().print(f"masks are drawn in {picture}")


def averaged(cell: Cell, output: Path, seeds: int, data_dir: Path | None, device: str) -> None:
    """Measures the networks of a cell's seeds together, and writes ``averaged.json``."""
    ensemble = Ensemble([load_model(run_folder(output, cell, seed)) for seed in range(seeds)])
    data = load(cell.data, data_dir=data_dir)
    metrics = {}
    for name, part in (("valid", data.valid), ("test", data.test)):
        relaxed, truth = ensemble.probabilities(part, find_device(device))
        assert truth is not None
        metrics[name] = ensemble.task.output.meter(ensemble.decision).measure(relaxed, truth)
    write_json(output / "averaged.json", {"title": cell.title, "seeds": seeds, "metrics": metrics})
    Console().print(f"{cell.title}, {seeds} seeds averaged: {100 * metrics['test']['iou']:.2f}")


def draw(path: Path, name: str, folders: dict[str, Path], data_dir: Path | None, count: int = 12) -> None:
    """A sheet of test images: image, truth, each model's mask, and what the last one's energy would change.

    The energy's pull ``−∂E/∂y`` is taken at the prediction of the first model: red pixels should be
    foreground, blue ones should not.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    data = load(name, data_dir=data_dir)
    assert isinstance(data.test, MaskData)
    rows = np.linspace(0, len(data.test) - 1, count).astype(int)
    shown = data.test.take(rows)
    images = shown.images.transpose(0, 2, 3, 1)
    models = {title: load_model(folder) for title, folder in folders.items()}
    masks = {title: model.predict_proba(images) for title, model in models.items()}
    first, *_, last = folders
    views = models[last].task.views(models[last].settings)
    assert views is None or isinstance(views, Crops)
    pull = mask_pull(
        load_energy(folders[last]),
        torch.from_numpy(shown.images),
        torch.from_numpy(masks[first]),
        views,
    ).numpy()
    sheet: dict[str, NDArray[Any]] = {"image": images, "truth": shown.masks}
    sheet.update({title: mask >= 0.5 for title, mask in masks.items()})
    figure, axes = pyplot.subplots(len(sheet) + 1, count, figsize=(0.95 * count + 2, len(sheet) + 1.5))
    for line, title in zip(axes[:-1], sheet, strict=True):
        for cell, picture in zip(line, sheet[title], strict=True):
            cell.imshow(picture, cmap="gray", vmin=0, vmax=1)
        line[0].set_ylabel(title.replace(", ", ",\n"), rotation=0, ha="right", va="center")
    for cell, image in zip(axes[-1], pull, strict=True):
        cell.imshow(image, cmap="RdBu_r", vmin=-np.abs(image).max(), vmax=np.abs(image).max())
    axes[-1][0].set_ylabel(f"energy's pull\non the mask\nof {first}", rotation=0, ha="right", va="center")
    for cell in axes.flat:
        cell.set(xticks=[], yticks=[])
    figure.suptitle(f"{name}: test images", fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
