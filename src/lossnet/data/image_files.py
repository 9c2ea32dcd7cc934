"""Images and masks from files: NumPy archives, and folders of PNG and JPEG files."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples
from lossnet.data.images import MaskData, Pictures
from lossnet.data.readers.arrays import read_arrays
from lossnet.data.readers.table import read_texts
from lossnet.data.readers.text import Like, align_labels
from lossnet.data.splits import Split
from lossnet.data.tables import LabelTable

#: The parts of a set, and how their arrays and folders may be called.
_PARTS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}
_SUFFIXES = (".png", ".jpg", ".jpeg")
#: the table of a folder whose images have labels, and the column of the images' file names
_LABELS, _NAMES = "labels.csv", "image"
#: grey levels that may stand for classes, and the share of pixels that each then has at least
_MOST_CLASSES, _LEAST_SHARE = 30, 1e-3
#: how far from black or white a level may be and still be meant as such
_BESIDE = 32
_LAYOUT = "images/ and masks/ (or labels.csv), or train/, valid/ and test/ with those two in each"


def holds_images(path: AnyPath) -> bool:
    """Whether a path is for `read_images`: a folder, or an archive with its arrays."""
    path = Path(path)
    if path.is_dir():
        return True
    if path.suffix.lower() != ".npz" or not path.is_file():  # a pipe could not be read once more
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return False
    return not {"x", "y"} <= names and any(name.endswith(("images", "masks")) for name in names)


def read_images(path: AnyPath, resize: tuple[int, int] | None = None) -> tuple[MaskData, Split | None]:
    """Read images and masks, and which of them train, validate and test where the files say it.

    An ``.npz`` archive has ``images`` and ``masks``, as `MaskData.from_arrays` takes them.  One that is
    split has ``train_images``, ``train_masks``, the same with ``valid_`` (or ``val_``) and with ``test_``.

    A folder has ``images/NAME.png`` and its mask ``masks/NAME.png``, and so on; or JPEG files.  One that is
    split has these in each of ``train``, ``valid`` (or ``val``) and ``test``.  A mask's foreground is where
    it is lighter than mid-grey (above 127).  ``resize=(height, width)`` brings the images and masks of a
    folder to one size.  Folders need the ``[images]`` extra.

    >>> from tempfile import TemporaryDirectory
    >>> from PIL import Image
    >>> with TemporaryDirectory() as folder:
    ...     for kind in ("images", "masks"):
    ...         Path(folder, kind).mkdir()
    ...         Image.new("L", (40, 30), 255).save(Path(folder, kind, "cat.png"))
    ...     data, split = read_images(folder)
    >>> len(data), data.channels, data.size, float(data.masks.mean())
    (1, 1, (30, 40), 1.0)
    """
    if Path(path).is_dir():
        return _read_folder(Path(path), resize)
    if resize is not None:
        raise DataError("only folders of images can be resized; leave resize= out", path)
    return _read_archive(path)


def _read_archive(path: AnyPath) -> tuple[MaskData, Split | None]:
    arrays = read_arrays(path)

    def part(prefix: str) -> MaskData:
        kinds = [f"{prefix}images", f"{prefix}masks"]
        if lacking := [name for name in kinds if name not in arrays]:
            layout = "it must have images and masks, or train_images, train_masks, valid_images, …"
            raise DataError(f"has arrays {sorted(arrays)} but no {' and '.join(lacking)}; {layout}", path)
        try:
            return MaskData.from_arrays(*(arrays[name] for name in kinds))
        except DataError as error:
            where = f"in {' and '.join(kinds)}: " if prefix else ""
            raise DataError(where + error.message, path) from None

    if "images" in arrays or "masks" in arrays:
        return part(""), None
    prefixes = [next((n for n in s if f"{n}_images" in arrays), s[0]) for s in _PARTS.values()]
    return _join_parts([part(f"{prefix}_") for prefix in prefixes], path)


def _read_folder(folder: Path, resize: tuple[int, int] | None) -> tuple[MaskData, Split | None]:
    if resize is not None and min(resize) < 1:
        raise ValueError(f"resize must be a height and a width of at least 1, not {resize}")
    if (folder / "images").is_dir():
        return _read_part(folder, resize), None
    names = {part: next((n for n in s if (folder / n).is_dir()), None) for part, s in _PARTS.items()}
    absent = [f"{part}/" for part, name in names.items() if name is None]
    if absent:
        what = f"the folder has no images/ and no {', '.join(absent)}"
        tables = (
            "one of tables or sentences has files train.csv, valid.csv and test.csv (or another extension)"
        )
        raise DataError(f"{what}; a folder of images has {_LAYOUT}; {tables}", folder)
    return _join_parts([_read_part(folder / str(name), resize) for name in names.values()], folder)


def is_labelled(path: AnyPath) -> bool:
    """Whether a path is for `read_labelled_images`: a folder with ``images/`` and ``labels.csv``."""
    return (Path(path) / _LABELS).is_file() and (Path(path) / "images").is_dir()


def read_labelled_images(
    path: AnyPath,
    labels: Any = None,
    resize: tuple[int, int] | None = None,
    names: tuple[str, ...] | None = None,
) -> Examples:
    """Read ``DIR/images/NAME.png`` and so on, and the label sets of images from ``DIR/labels.csv``.

    The table has a column ``image`` with file names, with or without extension; the others are labels, as
    `read_csv` has them, unless ``labels`` names some.  Images that it does not name are left out.  Labels get
    the ``names`` of training data where those are given.

    >>> from tempfile import TemporaryDirectory
    >>> from PIL import Image
    >>> with TemporaryDirectory() as folder:
    ...     Path(folder, "images").mkdir()
    ...     Image.new("L", (4, 3)).save(Path(folder, "images", "a.png"))
    ...     _ = Path(folder, "labels.csv").write_text("image,cat,dog\\na.png,1,0\\n")
    ...     data = read_labelled_images(folder)
    >>> data.source.size, data.target.names
    ((3, 4), ('cat', 'dog'))
    """
    folder, table = Path(path) / "images", Path(path) / _LABELS
    if names is None:
        read = read_texts(table, _NAMES, "*" if labels is None else labels)
    else:
        read = read_texts(table, _NAMES, like=Like((), names))
    files, chosen = _files(folder), []
    for row, name in enumerate(read.texts, start=2):
        stem = name if name in files else Path(name).stem
        if stem not in files:
            raise DataError(f"there is no image {name!r} in {folder}; correct its name", table, row)
        chosen.append(files[stem])
    pictures = [_resized(_decoded(file), resize) for file in chosen]
    target = read.labels
    if names is not None and target is not None:
        target = LabelTable(align_labels(table, target, names), names)
    return Examples(Pictures.from_arrays(_stacked(pictures, chosen)), target)


def read_pictures(path: AnyPath, channels: int) -> dict[str, NDArray[np.uint8]]:
    """Return images without masks by name, ``(height, width, channels)``: one file, or those of a folder.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_mask(Path(folder, "cat.png"), np.ones((2, 3), np.uint8))
    ...     {name: picture.shape for name, picture in read_pictures(folder, channels=3).items()}
    {'cat': (2, 3, 3)}
    """
    return dict(stream_pictures(path, channels))


def stream_pictures(path: AnyPath, channels: int) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Yield what `read_pictures` reads, one picture at a time."""
    path = Path(path)
    files = _files(path) if path.is_dir() else {path.stem: path}
    for name, file in files.items():
        yield name, _with_channels(file, channels)


def decode_picture(content: bytes, channels: int, most_pixels: int) -> NDArray[np.uint8]:
    """Return the image in the bytes of a PNG or JPEG file, ``(height, width, channels)``, unless too large.

    >>> import io
    >>> from PIL import Image
    >>> Image.new("L", (40, 30)).save(stream := io.BytesIO(), "PNG")
    >>> decode_picture(stream.getvalue(), channels=3, most_pixels=1200).shape
    (30, 40, 3)
    """
    return _with_channels(io.BytesIO(content), channels, most_pixels)


def write_mask(path: AnyPath, mask: NDArray[np.uint8]) -> None:
    """Write a mask ``(height, width)`` of 0 and 1 as a black and white PNG."""
    pillow, _ = _pillow()
    pillow.fromarray(np.where(mask > 0, np.uint8(255), np.uint8(0))).save(path)


def _join_parts(parts: list[MaskData], path: AnyPath) -> tuple[MaskData, Split]:
    """Return the training, validation and test part as one set, and the split that separates them."""
    first = (*parts[0].size, parts[0].channels)
    for name, part in zip(_PARTS, parts, strict=True):
        if not len(part):
            raise DataError(f"{name} has no images; each part needs some", path)
        if (own := (*part.size, part.channels)) != first:
            what = f"{name} has images of height, width and channels {own}, train of {first}"
            raise DataError(f"{what}; all images must be alike", path)
    joined = (np.concatenate([getattr(part, kind) for part in parts]) for kind in ("images", "masks"))
    return MaskData(*joined), Split.consecutive([len(part) for part in parts])


def _read_part(folder: Path, resize: tuple[int, int] | None) -> MaskData:
    """Return the images of one folder, in the order of their names."""
    images, masks = _files(folder / "images"), _files(folder / "masks")
    for stem, file in images.items():
        if stem not in masks:
            what = f"there is no {stem}.png (or .jpg) in {folder / 'masks'}"
            raise DataError(f"{what}; add its mask or remove the image", file)
    for stem, file in masks.items():
        if stem not in images:
            what = f"there is no image {stem}.png (or .jpg) in {folder / 'images'}"
            raise DataError(f"{what}; add it or remove the mask", file)
    pictures: list[NDArray[np.uint8]] = []
    shapes: list[NDArray[np.uint8]] = []
    for stem, file in images.items():
        picture, mask = _decoded(file), _decoded(masks[stem], grey=True)
        if mask.shape != picture.shape[:2]:
            what = f"the mask is {_size(mask)} but its image {_size(picture)} (height × width)"
            raise DataError(f"{what}; they must cover each other", masks[stem])
        if resize is not None:
            mask = _resized(np.where(mask > 127, np.uint8(255), np.uint8(0)), resize)
        pictures.append(_resized(picture, resize))
        shapes.append(mask)
    stacked = _stacked(pictures, list(images.values()))
    if resize is None:  # which makes soft edges
        _check_classes(shapes, folder / "masks")
    lightest = max(int(mask.max()) for mask in shapes)
    if 0 < lightest <= 127:
        what = f"no mask has foreground: the lightest pixel of all is {lightest}, and foreground is above 127"
        raise DataError(f"{what}; write masks as black and white", folder / "masks")
    return MaskData.from_arrays(stacked, np.stack(shapes) > 127)


def _check_classes(masks: list[NDArray[np.uint8]], folder: Path) -> None:
    """Raise a DataError for masks of several classes: few levels, none of which is a mere edge."""
    counts = np.sum([np.bincount(mask.ravel(), minlength=256) for mask in masks], axis=0)
    levels = np.flatnonzero(counts)
    # Lossy files have levels beside black and white.
    pure = (levels < _BESIDE) | (levels > 255 - _BESIDE) if levels[-1] > 127 else levels == 0
    own = counts[levels[~pure]]
    if 2 < len(levels) <= _MOST_CLASSES and len(own) and own.min() >= _LEAST_SHARE * counts.sum():
        what = f"masks have {len(levels)} levels ({', '.join(map(str, levels))}), as of several classes"
        advice = (
            "a mask here says of each pixel whether it is foreground; write black and white ones of one class"
        )
        raise DataError(f"{what}; {advice}", folder)


def _stacked(pictures: list[NDArray[np.uint8]], files: list[Path]) -> NDArray[np.uint8]:
    """Return pictures as one array; they must be of one size, and are coloured if any is."""
    for picture, file in zip(pictures, files, strict=True):
        if picture.shape[:2] != pictures[0].shape[:2]:
            sizes = f"the image is {_size(picture)} but {files[0].name} is {_size(pictures[0])}"
            advice = "make them one size, or pass resize=(height, width)"
            raise DataError(f"{sizes} (height × width); {advice}", file)
    if len({picture.ndim for picture in pictures}) > 1:  # grey among colour
        pictures = [_coloured(picture) for picture in pictures]
    return np.stack(pictures)


def _files(folder: Path) -> dict[str, Path]:
    """Return the images of a folder by the stem of their names."""
    if not folder.is_dir():
        raise DataError(f"no such folder; a folder of images has {_LAYOUT}", folder)
    files: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() not in _SUFFIXES or file.name.startswith("."):
            continue
        if file.stem in files:
            what = f"{files[file.stem].name} has the same name but for the extension"
            raise DataError(f"{what}; images and masks are matched by it, so remove one", file)
        files[file.stem] = file
    if not files:
        raise DataError(f"no files {', '.join(_SUFFIXES)} here; put them in", folder)
    return files


def _decoded(
    source: Path | BinaryIO, grey: bool = False, most_pixels: int | None = None
) -> NDArray[np.uint8]:
    """Return grey levels ``(height, width)``, or ``(height, width, 3)`` of colours unless ``grey``."""
    file = source if isinstance(source, Path) else None
    pillow, operations = _pillow()
    try:
        with warnings.catch_warnings():
            # Pillow only warns of images that would take gigabytes, and raises for larger ones still.
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(source, formats=("PNG", "JPEG")) as opened:
                if most_pixels is not None and opened.width * opened.height > most_pixels:
                    raise pillow.DecompressionBombError(f"{opened.height}×{opened.width} pixels")
                picture = operations.exif_transpose(opened)
                picture.load()
    except FileNotFoundError:
        raise DataError("no such file; check the path", file) from None
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as error:
        raise DataError(f"the image is suspiciously large ({error}); make it smaller", file) from None
    except Exception as error:  # decoders of damaged files raise almost anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"not a readable PNG or JPEG image ({reason}); save it again", file) from None
    if picture.mode.startswith("I"):  # 16 bits a pixel
        return (np.asarray(picture).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
    no_colour = picture.mode in ("1", "L", "LA", "La")
    return np.array(picture.convert("L" if grey or no_colour else "RGB"))


def _resized(picture: NDArray[np.uint8], size: tuple[int, int] | None) -> NDArray[np.uint8]:
    if size is None:
        return picture
    pillow, _ = _pillow()
    return np.array(pillow.fromarray(picture).resize(size[::-1], pillow.Resampling.BILINEAR))


def _with_channels(
    source: Path | BinaryIO, channels: int, most_pixels: int | None = None
) -> NDArray[np.uint8]:
    if channels not in (1, 3):
        file = source if isinstance(source, Path) else None
        raise DataError(f"image files have 1 or 3 channels, this model wants {channels}", file)
    picture = _decoded(source, channels == 1, most_pixels)
    return picture[..., None] if channels == 1 else _coloured(picture)


def _coloured(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, axis=2)


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("reading images needs Pillow; install lossnet[images]") from error
    return Image, ImageOps


def _size(picture: NDArray[np.uint8]) -> str:
    return f"{picture.shape[0]}×{picture.shape[1]}"
