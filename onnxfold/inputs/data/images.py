"""A folder of images, preprocessed as in the model's preprocessor_config.json, by Pillow."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfold.errors import DataError, UsageError
from onnxfold.inputs.data.shards import Batch, DataOptions, InputSignature, Shard, blocks, optional

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
_IMAGE_RANK = 4
Array = npt.NDArray[np.float32]


def find_preprocessor(model: Path | None, data: Path) -> Path:
    """Return the preprocessor_config.json of the model's folder or of the folder of images."""
    folders = [data] if model is None else [model.parent, data]
    for folder in folders:
        if (folder / "preprocessor_config.json").is_file():
            return folder / "preprocessor_config.json"
    raise UsageError(
        f"images need the model's preprocessing, and there is no {folders[0]}/"
        "preprocessor_config.json: put it there, or give the images as .npz"
    )


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """Images in the order of names: resized, cropped, scaled and normalized, [N, C, H, W]."""

    files: tuple[Path, ...]
    preprocessor: Path
    signature: InputSignature
    options: DataOptions

    @property
    def kind(self) -> str:
        return "images"

    def __post_init__(self) -> None:
        if [len(i.dims or ()) for i in self.signature.inputs.values()] != [_IMAGE_RANK]:
            raise UsageError(
                "images suit a model with one input of [batch, channels, height, width]"
            )

    def shards(self) -> list[Shard]:
        folder = str(self.files[0].parent)
        return blocks(folder, len(self.files), self.options.rows, self.options.batch)

    def batches(self, shard: Shard) -> Iterator[Batch]:
        config = json.loads(self.preprocessor.read_text(encoding="utf-8"))
        (name,) = self.signature.inputs
        for start in range(shard.start, shard.stop, self.options.batch):
            stop = min(start + self.options.batch, shard.stop)
            images = [_prepared(self.files[row], config, row) for row in range(start, stop)]
            if len({image.shape for image in images}) > 1:
                raise DataError(
                    f"{shard.label}: images of different sizes; run them one by one (--batch 1)"
                )
            feeds = self.signature.suited({name: np.stack(images)}, shard.label, start)
            yield Batch(feeds, stop - start, start)


def _prepared(file: Path, config: Mapping[str, Any], row: int) -> Array:
    pillow = optional("PIL.Image", "pillow", "reading images")
    try:
        with pillow.open(file) as opened:
            image = opened.convert("RGB")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} (row {row}): not an image ({error}); remove it (measure --skip-bad skips it)"
        ) from error
    if config.get("do_resize", True) and "size" in config:
        image = image.resize(_target(image.size, config["size"]), config.get("resample", 2))
    if config.get("do_center_crop", False):
        image = _cropped(image, config["crop_size"])
    pixels = np.asarray(image, dtype=np.float32)
    if config.get("do_rescale", True):
        pixels = pixels * np.float32(config.get("rescale_factor", 1 / 255))
    if config.get("do_normalize", True) and "image_mean" in config:
        mean, std = (np.asarray(config[key], np.float32) for key in ("image_mean", "image_std"))
        pixels = (pixels - mean) / std
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _target(size: tuple[int, int], wanted: int | Mapping[str, int]) -> tuple[int, int]:
    """Return width and height: both given, or the shortest edge with the aspect ratio kept."""
    if isinstance(wanted, Mapping) and "height" in wanted:
        return wanted["width"], wanted["height"]
    edge = wanted if isinstance(wanted, int) else wanted["shortest_edge"]
    scale = edge / min(size)
    return round(size[0] * scale), round(size[1] * scale)


def _cropped(image: Any, wanted: int | Mapping[str, int]) -> Any:
    sides = (wanted, wanted) if isinstance(wanted, int) else (wanted["width"], wanted["height"])
    left, top = ((have - want) // 2 for have, want in zip(image.size, sides, strict=True))
    return image.crop((left, top, left + sides[0], top + sides[1]))
