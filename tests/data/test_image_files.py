from __future__ import annotations

import contextlib
import struct
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from lossnet.data import DataError, read_images
from lossnet.data.image_files import holds_images

PARTS = ("train", "valid", "test")
few = settings(max_examples=30, deadline=None)
LEVELS = hnp.arrays(np.uint8, st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.just(3)))


def save(array, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(array)).save(path)
    return path


def pair(folder: Path, name: str, size: tuple[int, int] = (6, 8), image=None, mask=None) -> None:
    """An image and its mask; ``name`` has no extension."""
    image = np.full((*size, 3), 90, np.uint8) if image is None else image
    mask = np.full(size, 255, np.uint8) if mask is None else mask
    save(image, folder / "images" / f"{name}.png")
    save(mask, folder / "masks" / f"{name}.png")


# ------------------------------------------------------------------ archives


@few
@given(LEVELS, st.sampled_from(["valid", "val"]), st.booleans())
def test_split_archives_are_read_back(levels, valid, compressed):
    masks = levels[..., 0] > 99
    arrays = {"train_idx": np.arange(3)}
    for part in ("train", valid, "test"):
        arrays |= {f"{part}_images": levels, f"{part}_masks": masks}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.npz")
        (np.savez_compressed if compressed else np.savez)(path, **arrays)
        assert holds_images(path)
        data, split = read_images(path)
    count = len(levels)
    np.testing.assert_array_equal(split.valid, np.arange(count, 2 * count))
    for rows in (split.train, split.valid, split.test):
        np.testing.assert_allclose(data.images[rows].transpose(0, 2, 3, 1) * 255, levels, rtol=1e-6)
        np.testing.assert_array_equal(data.masks[rows], masks)


def test_archives_without_parts(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 5, 6)), masks=np.ones((4, 5, 6)))
    data, split = read_images(tmp_path / "a.npz")
    assert split is None
    assert (len(data), data.channels, data.size) == (4, 1, (5, 6))


def test_which_archives_hold_images(tmp_path):
    np.savez(tmp_path / "labels.npz", x=np.eye(2), y=np.eye(2), images=np.eye(2))
    np.savez(tmp_path / "other.npz", z=np.eye(2))
    np.savez(tmp_path / "half.npz", train_masks=np.eye(2))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 cut")
    assert [holds_images(tmp_path / f"{name}.npz") for name in ("labels", "other", "half", "broken")] == [
        False,
        False,
        True,
        False,
    ]
    assert not holds_images(tmp_path / "absent.npz")
    assert holds_images(tmp_path)


ARRAY = np.zeros((2, 3, 4))
WHOLE = {f"{part}_{kind}": ARRAY for part in PARTS for kind in ("images", "masks")}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": ARRAY}, r"arrays \['images'\] but no masks; it must have images and masks, or train_"),
        ({"masks": ARRAY}, "no images"),
        ({"z": ARRAY}, "no train_images and train_masks"),
        ({k: v for k, v in WHOLE.items() if k != "test_masks"}, "no test_masks"),
        ({k: v for k, v in WHOLE.items() if "valid" not in k}, "no valid_images and valid_masks"),
        ({**WHOLE, "test_masks": ARRAY + 3}, "in test_images and test_masks: masks have the value 3;"),
        ({**WHOLE, "test_images": ARRAY + 3.0}, "in test_images and test_masks: images have values from 3"),
        (
            {**WHOLE, "valid_images": ARRAY[:, 1:], "valid_masks": ARRAY[:, 1:]},
            r"valid .* \(2, 4, 1\), train",
        ),
        ({**WHOLE, "test_images": np.zeros((2, 3, 4, 3))}, r"test .* \(3, 4, 3\), train of \(3, 4, 1\)"),
        ({**WHOLE, "test_images": ARRAY[:0], "test_masks": ARRAY[:0]}, "test has no images"),
        ({"images": ARRAY, "masks": ARRAY[0]}, "masks have 2 dimension"),
        ({"images": np.array([{}]), "masks": ARRAY}, "plain arrays"),
    ],
)
def test_bad_archives(tmp_path, arrays, message):
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message) as caught:
        read_images(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_unreadable_archives(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(DataError, match="no such file"):
        read_images(path)
    np.savez_compressed(path, images=np.random.default_rng(0).random((4, 9, 9)), masks=np.zeros((4, 9, 9)))
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[80:200] = bytes(120)
    np.save(tmp_path / "one.npy", ARRAY)
    for broken in (content[:100], content[:-30], bytes(damaged), (tmp_path / "one.npy").read_bytes(), b"x"):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"not a readable \.npz"):
            read_images(path)


# ------------------------------------------------------------------ folders


@few
@given(LEVELS, st.booleans(), st.sampled_from([".png", ".PNG"]))
def test_folders_are_read_back(levels, split, suffix):
    masks = levels[..., 0]
    with tempfile.TemporaryDirectory() as folder:
        for part in PARTS if split else (".",):
            for row, (image, mask) in enumerate(zip(levels, masks, strict=True)):
                save(image, Path(folder, part, "images", f"{row}{suffix}"))
                save(np.where(mask > 127, 255, 0).astype(np.uint8), Path(folder, part, "masks", f"{row}.png"))
        data, parts = read_images(folder)
    assert (parts is not None) == split
    for rows in (parts.train, parts.valid, parts.test) if split else (slice(None),):
        np.testing.assert_allclose(data.images[rows].transpose(0, 2, 3, 1) * 255, levels, rtol=1e-6)
        np.testing.assert_array_equal(data.masks[rows], masks > 127)


def test_kinds_of_files(tmp_path):
    """Grey among colour, transparency, palettes, 16 bits, bilevel, JPEG, and what is no image by its name."""
    grey = np.full((8, 8), 100, np.uint8)
    halves = np.repeat([[0, 255]], 8, 0).repeat(4, 1).astype(np.uint8)
    pictures = {
        "a.png": Image.fromarray(grey),
        "b.png": Image.fromarray(np.dstack([grey] * 3 + [grey])),  # with transparency
        "c.png": Image.fromarray(grey).convert("P"),
        "d.png": Image.fromarray(grey.astype(np.uint16) * 256),
        "e.jpg": Image.fromarray(grey),
        "f.jpeg": Image.fromarray(np.dstack([grey] * 3)),
        "g.JPG": Image.fromarray(np.dstack([grey] * 3)).convert("CMYK"),
        "h.png": Image.fromarray(np.dstack([grey, grey])),  # grey with transparency
    }
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for row, (name, picture) in enumerate(pictures.items()):
        picture.save(tmp_path / "images" / name)
        mask = Image.fromarray(halves)
        mask = [mask, mask.convert("1"), mask.convert("RGB"), mask.convert("P")][row % 4]
        mask.save(tmp_path / "masks" / f"{Path(name).stem}.png")
    Image.fromarray(halves).save(tmp_path / "masks" / "a.jpg", quality=60)
    (tmp_path / "masks" / "a.png").unlink()
    for name in ("Thumbs.db", ".hidden.png", "notes.txt"):
        (tmp_path / "images" / name).write_text("nothing")
    data, split = read_images(tmp_path)
    assert split is None
    assert (len(data), data.channels) == (len(pictures), 3)
    np.testing.assert_allclose(data.images * 255, 100, atol=1)
    np.testing.assert_array_equal(data.masks, np.broadcast_to(halves > 0, data.masks.shape))


def test_grey_images_have_one_channel_and_their_names_give_the_order(tmp_path):
    for level, name in ((30, "c"), (10, "a"), (20, "b")):
        pair(tmp_path, name, image=np.full((6, 8), level, np.uint8))
    data, _ = read_images(tmp_path)
    assert data.channels == 1
    np.testing.assert_allclose(data.images[:, 0, 0, 0] * 255, [10, 20, 30], rtol=1e-6)


def test_photographs_are_turned_as_viewers_turn_them(tmp_path):
    pair(tmp_path, "a", (6, 8))
    (tmp_path / "images" / "a.png").unlink()
    turned = Image.fromarray(np.full((8, 6, 3), 90, np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "images" / "a.jpg", exif=exif)
    assert read_images(tmp_path)[0].size == (6, 8)


def test_resizing(tmp_path):
    left = np.repeat(np.repeat([[255, 0]], 16, 0), 8, 1).astype(np.uint8)  # 16×16
    pair(tmp_path, "a", image=left, mask=left)
    pair(tmp_path, "b", image=left[:8, 4:12], mask=left[:8, 4:12])
    with pytest.raises(DataError, match=r"b\.png: the image is 8×8 but a\.png is 16×16.*resize=\(height, w"):
        read_images(tmp_path)
    data, _ = read_images(tmp_path, resize=(4, 6))
    assert data.size == (4, 6)
    assert data.masks[0].tolist() == data.masks[1].tolist() == [[1, 1, 1, 0, 0, 0]] * 4
    assert data.images[0, 0, 0, [0, -1]].tolist() == [1, 0]
    with pytest.raises(ValueError, match="at least 1"):
        read_images(tmp_path, resize=(0, 4))
    np.savez(tmp_path / "a.npz", images=ARRAY, masks=ARRAY)
    with pytest.raises(DataError, match="only folders"):
        read_images(tmp_path / "a.npz", resize=(4, 4))


def test_parts_of_other_sizes(tmp_path):
    for part in PARTS:
        pair(tmp_path / part, "a", (6, 8) if part != "test" else (6, 9))
    with pytest.raises(DataError, match=r"test has images .* \(6, 9, 3\), train of \(6, 8, 3\)"):
        read_images(tmp_path)
    assert read_images(tmp_path, resize=(6, 8))[1] is not None


def test_what_is_missing(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_images(tmp_path / "none")
    with pytest.raises(
        DataError, match=r"no images/ and no train/, valid/, test/; a folder of images has im"
    ):
        read_images(tmp_path)
    for part in ("train", "val"):
        pair(tmp_path / part, "a")
    with pytest.raises(DataError, match="no images/ and no test/"):
        read_images(tmp_path)
    folder = tmp_path / "test"
    (folder / "images").mkdir(parents=True)
    with pytest.raises(DataError, match=r"images: no files \.png, \.jpg, \.jpeg"):
        read_images(tmp_path)
    save(np.zeros((6, 8), np.uint8), folder / "images" / "a.png")
    with pytest.raises(DataError, match="masks: no such folder"):
        read_images(tmp_path)
    pair(folder, "b")
    with pytest.raises(DataError, match=r"a\.png: there is no a\.png \(or \.jpg\) in .*masks; add its mask"):
        read_images(tmp_path)
    pair(folder, "a")
    (folder / "images" / "b.png").unlink()
    with pytest.raises(DataError, match=r"masks.b\.png: there is no image b\.png"):
        read_images(tmp_path)
    save(np.zeros((6, 8), np.uint8), folder / "images" / "b.jpg")
    assert len(read_images(tmp_path)[0]) == 4


def test_pairs_that_do_not_fit(tmp_path):
    pair(tmp_path, "a", mask=np.full((6, 9), 255, np.uint8))
    with pytest.raises(DataError, match=r"masks.a\.png: the mask is 6×9 but its image 6×8"):
        read_images(tmp_path)
    pair(tmp_path, "a")
    save(np.zeros((6, 8), np.uint8), tmp_path / "masks" / "a.jpg")
    with pytest.raises(DataError, match=r"a\.png: a\.jpg has the same name"):
        read_images(tmp_path)


def test_masks_of_zero_and_one_are_not_taken_for_empty_ones(tmp_path):
    pair(tmp_path, "a", mask=np.ones((6, 8), np.uint8))
    with pytest.raises(DataError, match=r"lightest pixel of all is 1.*black and white"):
        read_images(tmp_path)
    pair(tmp_path, "a", mask=np.zeros((6, 8), np.uint8))
    assert read_images(tmp_path)[0].masks.max() == 0


@pytest.mark.parametrize("step", [1, 85])
def test_masks_of_several_classes_are_refused_with_the_reason(tmp_path, step):
    classes = np.arange(48).reshape(6, 8) // 12
    for name in ("a", "b"):
        pair(tmp_path, name, mask=(classes * step).astype(np.uint8))
    with pytest.raises(DataError, match=rf"masks have 4 levels \(0, {step}, .*as of several classes"):
        read_images(tmp_path)
    np.savez(tmp_path / "classes.npz", images=np.zeros((1, 6, 8)), masks=classes[None])
    with pytest.raises(DataError, match="where they number classes, train on one of them"):
        read_images(tmp_path / "classes.npz")


def test_edges_of_masks_may_be_grey(tmp_path):
    mask = np.zeros((64, 64), np.uint8)
    mask[20:40, 20:40] = 255
    mask[19, 30], mask[40, 30] = 100, 180
    pair(tmp_path, "a", (64, 64), mask=mask)
    data, _ = read_images(tmp_path)
    assert data.masks.sum() == 401


def bomb(side: int) -> bytes:
    """A PNG that claims to be ``side``×``side`` and has no pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def unreadable() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        noise = np.random.default_rng(0).integers(256, size=(40, 40, 3), dtype=np.uint8)
        png = save(noise, Path(folder, "a.png")).read_bytes()
        jpeg = save(noise, Path(folder, "a.jpg")).read_bytes()
        gif = save(noise[..., 0], Path(folder, "a.gif")).read_bytes()
    return {
        "empty": b"",
        "text": b"no image at all",
        "cut png": png[: len(png) // 2],
        "cut header": png[:20],
        "damaged png": png[:100] + bytes(200) + png[300:],
        "cut jpeg": jpeg[: len(jpeg) // 2],
        "gif": gif,
        "bomb": bomb(30000),
        "small bomb": bomb(11000),
    }


@pytest.mark.parametrize(("name", "content"), unreadable().items(), ids=unreadable())
@pytest.mark.parametrize("kind", ["images", "masks"])
def test_unreadable_images(tmp_path, name, content, kind):
    pair(tmp_path, "a", (40, 40))
    pair(tmp_path, "b", (40, 40))
    (tmp_path / kind / "b.png").write_bytes(content)
    message = "suspiciously large" if "bomb" in name else "not a readable PNG or JPEG image"
    with pytest.raises(DataError, match=message) as caught:
        read_images(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / kind / 'b.png'}: ")


@few
@given(st.data())
def test_damaged_images_are_read_or_refused(draw):
    """Whatever bytes of an image are changed, there is no other error than a `DataError`."""
    suffix = draw.draw(st.sampled_from([".png", ".jpg"]))
    with tempfile.TemporaryDirectory() as folder:
        pair(Path(folder), "a")
        (Path(folder, "images", "a.png")).unlink()
        path = save(np.full((6, 8, 3), 90, np.uint8), Path(folder, "images", f"a{suffix}"))
        content = bytearray(path.read_bytes())
        for _ in range(draw.draw(st.integers(1, 4))):
            content[draw.draw(st.integers(0, len(content) - 1))] = draw.draw(st.integers(0, 255))
        path.write_bytes(content)
        with contextlib.suppress(DataError):
            assert len(read_images(folder)[0]) == 1


def test_without_pillow(tmp_path, monkeypatch):
    pair(tmp_path, "a")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"install lossnet\[images\]"):
        read_images(tmp_path)
