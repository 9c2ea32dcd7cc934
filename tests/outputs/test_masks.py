"""Segmentation from files to predictions, small."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image

from lossnet.build import METHODS, build
from lossnet.cli import main
from lossnet.data import Distortion
from lossnet.energies import FeatureEnergy, ImageEnergy
from lossnet.inputs import Images
from lossnet.loading import load
from lossnet.model import ModelError
from lossnet.model import load as load_model
from lossnet.outputs import Masks
from lossnet.run import Run, train
from lossnet.scores import IoU
from lossnet.settings import Settings
from lossnet.spaces import Blocks, Mask, Smooth
from lossnet.task import Task

QUICK = Settings(
    epochs=1, batch_size=4, crop=8, samples=2, inference_steps=2, image_net="unet", image_width=4,
    implicit_weight=1.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Bright squares on dark ground."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 12), ("val", 4), ("test", 5)):
        masks = np.zeros((count, 12, 10), np.uint8)
        for mask, (top, left) in zip(masks, random.integers(0, 5, (count, 2)), strict=True):
            mask[top : top + 5, left : left + 5] = 1
        noise = random.integers(0, 60, (count, 12, 10, 3))
        arrays[f"{part}_images"] = (noise + 150 * masks[..., None]).astype(np.uint8)
        arrays[f"{part}_masks"] = masks
    path = tmp_path_factory.mktemp("data") / "squares.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("method", "loss"),
    [
        (name, loss)
        for name, spec in METHODS.items()
        for loss in spec.losses
        if spec.suits(loss, Mask()) and not spec.rules  # which needs some
    ],
)
def test_every_method_trains_on_masks(archive, method, loss):
    result = train(Run(str(archive), method, loss, QUICK, device="cpu", progress=False))
    assert set(result["metrics"]["test"]) == {"iou", "pixel_accuracy"}
    assert 0 <= result["metrics"]["test"]["iou"] <= 1


def test_a_trained_model_beats_guessing_and_comes_back_from_its_folder(archive, tmp_path):
    settings = dataclasses.replace(QUICK, epochs=15, task_lr=1e-2, flips=True)
    result = train(
        Run(str(archive), "cross-entropy", settings=settings, output=tmp_path, device="cpu", progress=False)
    )
    assert result["metrics"]["test"]["iou"] > 0.6
    model, data = load_model(tmp_path), load(archive)
    images = np.moveaxis(data.test.images, 1, -1)
    predicted = torch.from_numpy(model.predict(images)).float()
    truth = torch.from_numpy(data.test.masks).float()
    assert float(IoU()(predicted.unsqueeze(1), truth).mean()) == pytest.approx(
        result["metrics"]["test"]["iou"], abs=1e-6
    )
    assert model.label_names == ()


def test_the_command_line_trains_evaluates_and_writes_masks(archive, tmp_path, capsys):
    run, out, answer = tmp_path / "run", tmp_path / "out", tmp_path / "answer.json"
    flags = [
        "--crop",
        "8",
        "--image-net",
        "unet",
        "--image-width",
        "4",
        "--epochs",
        "1",
        "--quiet",
        "--no-report",
    ]
    command = ["train", str(archive), "--method", "cross-entropy", "--loss", "dice", "--output", str(run)]
    assert main([*command, *flags, "--device", "cpu"]) == 0
    assert main(["evaluate", str(run), str(archive), "--output", str(answer)]) == 0
    reported = json.loads((run / "result.json").read_text())["metrics"]["test"]
    assert json.loads(answer.read_text())["metrics"]["test"] == pytest.approx(reported)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for name, mode in (("colour", "RGB"), ("grey", "L")):
        Image.new(mode, (10, 12), 200 if mode == "L" else (9, 99, 199)).save(pictures / f"{name}.png")
    assert main(["predict", str(run), str(pictures), "-o", str(out)]) == 0
    assert sorted(file.name for file in out.iterdir()) == ["colour.png", "grey.png"]
    with Image.open(out / "grey.png") as mask:
        assert mask.size == (10, 12)
        assert set(np.unique(np.asarray(mask))) <= {0, 255}
    capsys.readouterr()
    assert main(["predict", str(run), str(pictures)]) == 2
    assert "give a folder with -o" in capsys.readouterr().err
    before = {path.name: path.read_bytes() for path in pictures.iterdir()}
    for source in (pictures, next(pictures.glob("*.png"))):
        assert main(["predict", str(run), str(source), "-o", str(pictures)]) == 2
        assert "is the input file; choose another --output" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in pictures.iterdir()} == before


def test_settings_choose_space_networks_and_views():
    task = Task(Images(3, (12, 10), mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0)), Masks())
    assert task.space(Settings()).noise is None
    assert task.space(Settings(noise="blocks", noise_scale=3)).noise == Blocks(3)
    assert task.space(Settings(noise="smooth", noise_scale=1.5)).noise == Smooth(1.5)
    assert task.views(Settings()) is None
    assert task.views(Settings(crop=8, flips=True)).flips
    assert task.views(Settings(flips=True)).positions(12, 10) == ((0, 0),)
    assert task.views(Settings(crop=8, flips=True)).distortion is None
    assert task.views(Settings(crop=8, warp=0.1)).distortion == Distortion(warp=0.1)
    assert task.views(Settings(colour=0.2)).distortion == Distortion(colour=0.2)
    assert task.views(Settings(patches=0.5)).distortion == Distortion(patches=0.5)
    assert isinstance(task.energy(Settings(crop=8)), ImageEnergy)
    assert isinstance(task.energy(Settings(image_energy="unet")), FeatureEnergy)
    assert task.energy(Settings(crop=8)).size == (8, 8)
    unet = Settings(image_net="unet", image_width=4)
    assert isinstance(task.energy(unet), FeatureEnergy)
    assert task.energy(unet).local is not None
    assert task.energy(unet, bounded=True).local is None
    assert task.task_net(Settings(image_net="unet", image_width=4, image_enlarge=2)).enlarge == 2
    net = task.task_net(unet)
    assert net.normalise.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert net.normalise.std.flatten().tolist() == [1.0, 2.0, 3.0]


def test_pixels_are_normalised_by_the_training_part(archive):
    data = load(archive)
    task = data.task
    assert task.input.mean == pytest.approx(tuple(data.train.images.mean((0, 2, 3))), rel=1e-5)
    assert (task.input.channels, task.input.size, task.units) == (3, (12, 10), 120)
    assert task.matches(data.train)
    assert not Task(Images(1, (12, 10)), Masks()).matches(data.train)


def test_restoring_refuses_unknown_kinds():
    task = Task(Images(3, (12, 10)), Masks())
    content, arrays = task.state()
    again = Task.from_state(content, arrays)
    assert (again.input, again.output) == (task.input, task.output)
    for side in ("input", "output"):
        with pytest.raises(
            ValueError, match=f"unknown kind of {side} 'songs'; known are .*; import the module"
        ):
            Task.from_state({**content, side: {"kind": "songs"}}, {})


def test_a_model_folder_with_another_kind_is_refused(archive, tmp_path, seal):
    train(Run(str(archive), "cross-entropy", settings=QUICK, output=tmp_path, device="cpu", progress=False))
    file = tmp_path / "model" / "model.json"
    file.write_text(file.read_text().replace('"masks"', '"songs"'))
    seal(file.parent)
    with pytest.raises(ModelError, match="songs"):
        load_model(tmp_path)


def test_score_and_units_follow_the_task():
    method = build("cross-entropy", "soft-f1", QUICK, Task(Images(3, (12, 10)), Masks()))
    assert method.task_loss.score_weight == pytest.approx(0.3 * 120)
    assert isinstance(method.task_loss.score, IoU)
    assert isinstance(build("seal", "margin", QUICK, Task(Images(3, (12, 10)), Masks())).loss.score, IoU)
