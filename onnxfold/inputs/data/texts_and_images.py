"""Text as tokens, by the tokenizers library, and folders of images, by Pillow.

Text is lines, JSONL and columns of tables; images are preprocessed as in preprocessor_config.json.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from onnxfold.errors import DataError, UsageError
from onnxfold.inputs.data.shards import Batch, DataOptions, InputSignature, Shard, blocks, optional

_MADE: dict[str, Callable[[Any], Sequence[int]]] = {
    "input_ids": lambda encoding: encoding.ids,
    "attention_mask": lambda encoding: encoding.attention_mask,
    "token_type_ids": lambda encoding: encoding.type_ids,
    "position_ids": lambda encoding: range(len(encoding.ids)),
}


def find_tokenizer(options: DataOptions, model: Path | None, data: Path) -> Path:
    """Return the tokenizer.json: the given one, or one in the folder of the model or the data."""
    if (given := options.tokenizer) is not None:
        if not given.is_file():
            raise DataError(f"{given}: there is no such file; --tokenizer takes a tokenizer.json")
        return given
    folders = [path.parent for path in (model, data) if path is not None]
    places = [folder / "tokenizer.json" for folder in folders]
    for place in places:
        if place.is_file():
            return place
    raise UsageError(
        f"text needs a tokenizer, and there is no {places[0]}: put it there (measure: or "
        "give --tokenizer FILE)"
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """Makes batches of texts, padded to the longest of a batch or to the model's fixed length."""

    tokenizer: Path
    signature: InputSignature
    options: DataOptions

    def __post_init__(self) -> None:
        unknown = [name for name in self.signature.inputs if name not in _MADE]
        if unknown:
            raise UsageError(
                f"text gives {', '.join(_MADE)}, but the model has an input '{unknown[0]}': "
                "give its inputs as .npz"
            )

    def batches(self, texts: Sequence[str], shard: Shard) -> Iterator[Batch]:
        """Yield batches of the texts of a shard."""
        tokenizer = _tokenizer(self.tokenizer, self.options.length, self._fixed_length())
        for start in range(0, len(texts), self.options.batch):
            encoded = tokenizer.encode_batch(texts[start : start + self.options.batch])
            row = shard.start + start
            feeds = {
                name: np.array([list(_MADE[name](one)) for one in encoded], dtype=np.int64)
                for name in self.signature.inputs
            }
            mask = np.array([one.attention_mask for one in encoded], dtype=np.bool_)
            if not mask.any():
                raise DataError(f"{shard.label}: row {row} and its batch contain no tokens")
            yield Batch(self.signature.suited(feeds, shard.label, row), len(encoded), row, mask)

    def _fixed_length(self) -> int | None:
        sizes = {dims[1] for i in self.signature.inputs.values() if len(dims := i.dims or ()) == 2}
        fixed = [size for size in sizes if isinstance(size, int)]
        return fixed[0] if fixed else None


@lru_cache(maxsize=2)
def _tokenizer(file: Path, length: int, fixed: int | None) -> Any:
    library = optional("tokenizers", "tokenizers", "reading text")
    try:
        tokenizer = library.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise DataError(f"{file}: not a tokenizer ({error}); give a tokenizer.json") from error
    tokenizer.enable_truncation(fixed or length)
    tokenizer.enable_padding(length=fixed)
    return tokenizer


@dataclass(frozen=True, slots=True)
class TextFile:
    """A .txt file with a text per line, or a .jsonl file with an object per line."""

    kind: ClassVar[str] = "text"
    file: Path
    tokens: Tokens

    def shards(self) -> list[Shard]:
        """Cut the file at lines, and record the byte at which each shard begins."""
        options = self.tokens.options
        offsets = [0]
        with self.file.open("rb") as lines:
            offsets += [lines.tell() for _ in iter(lines.readline, b"")]
        found = blocks(str(self.file), len(offsets) - 1, options.rows, options.batch)
        return [Shard(s.file, s.start, s.stop, offsets[s.start]) for s in found]

    def batches(self, shard: Shard) -> Iterator[Batch]:
        with self.file.open("rb") as lines:
            lines.seek(shard.offset)
            raw = [lines.readline() for _ in range(shard.start, shard.stop)]
        texts = [
            self._text(line, f"{shard.file}, row {shard.start + i}") for i, line in enumerate(raw)
        ]
        yield from self.tokens.batches(texts, shard)

    def _text(self, line: bytes, where: str) -> str:
        try:
            text = line.decode("utf-8").rstrip("\r\n")
            if self.file.suffix != ".jsonl":
                return text
            text = json.loads(text)[self.tokens.options.column]
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: not UTF-8 ({error.reason}); convert the file") from error
        except (ValueError, TypeError, KeyError) as error:
            column = self.tokens.options.column
            raise DataError(
                f"{where}: no JSON object with a field '{column}'; name the field with --column"
            ) from error
        if not isinstance(text, str):
            raise DataError(f"{where}: field '{self.tokens.options.column}' is no text")
        return text


IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
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

    kind: ClassVar[str] = "images"
    files: tuple[Path, ...]
    preprocessor: Path
    signature: InputSignature
    options: DataOptions

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
