"""A refusal: "no" as data, with a code for machines, a sentence for people and the nodes at fault.

Refusals are not errors.  Everything that decides (recognition, laws, planning, lowering) may
return one; the report, the Python API and the command line print the same sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class RefusalCode(StrEnum):
    """The reason why something was not changed."""

    ACTIVATION = "activation"
    AFFINE_NORM_OUTPUT = "affine_norm_output"
    ALREADY_LAYER = "already_layer"
    ALREADY_RMS = "already_rms"
    BODY_BORDER = "body_border"
    COMES_APART = "comes_apart"
    CONCAT_ALONG_FIBER = "concat_along_fiber"
    DYNAMIC_FIBER = "dynamic_fiber"
    DYNAMIC_WEIGHT = "dynamic_weight"
    EXACT_READER = "exact_reader"
    EXCLUDED = "excluded"
    FIBER_BROKEN = "fiber_broken"
    GRAPH_INPUT = "graph_input"
    GRAPH_OUTPUT = "graph_output"
    GROUPED_CONVOLUTION = "grouped_convolution"
    HAS_MEAN = "has_mean"
    NO_CHEAPER_FORM = "no_cheaper_form"
    NON_FINITE_WEIGHT = "non_finite_weight"
    NOT_CENTRED_NORM = "not_centred_norm"
    NOT_PROVED = "not_proved"
    NOT_WORTH = "not_worth"
    OUTLYING_GAMMA = "outlying_gamma"
    OVERRIDABLE_INITIALIZER = "overridable_initializer"
    QUANTISED = "quantised"
    ROUNDS_MORE = "rounds_more"
    SHARED_WEIGHT = "shared_weight"
    SHIFT_CANNOT_CROSS = "shift_cannot_cross"
    SPATIAL_NORM = "spatial_norm"
    STATISTICS_READ = "statistics_read"
    UNALIGNED = "unaligned"
    UNKNOWN_OP = "unknown_op"
    UNKNOWN_SHAPE = "unknown_shape"
    UNSUPPORTED_TYPE = "unsupported_type"
    VARIES_ALONG_FIBER = "varies_along_fiber"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason why a value is not centered or a norm is not folded, with the nodes at fault."""

    code: RefusalCode
    sentence: str
    nodes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the report's form: ``{"code", "sentence", "nodes"}``."""
        return {"code": self.code.value, "sentence": self.sentence, "nodes": list(self.nodes)}


@dataclass(frozen=True, slots=True)
class Explanation:
    """The meaning of a code, and the remedy."""

    meaning: str
    remedy: str


EXPLANATIONS: dict[RefusalCode, Explanation] = {
    RefusalCode.ACTIVATION: Explanation(
        "A nonlinear function (GELU, ReLU, Softmax and so on) is between the norm and the weights "
        "upstream, so no change of a weight removes the mean.",
        "Nothing in the file; the norm needs its mean. A linear layer after the function, as in a "
        "pre-norm residual stream, would make it foldable.",
    ),
    RefusalCode.AFFINE_NORM_OUTPUT: Explanation(
        "The input of the norm is, or contains, the output of another norm with a varying gamma "
        "or a beta: a post-norm model. Gamma and beta add a mean to that output.",
        "Exact folding is not possible. Only a model trained in pre-norm form, or with uniform "
        "gamma and zero beta there, folds.",
    ),
    RefusalCode.ALREADY_LAYER: Explanation(
        "The norm is a LayerNorm: `convert --to layer` has nothing to restore.", "Nothing to do."
    ),
    RefusalCode.ALREADY_RMS: Explanation(
        "The norm is an RMSNorm: it does not subtract a mean.",
        "Nothing to do.",
    ),
    RefusalCode.BODY_BORDER: Explanation(
        "The norm and the weights upstream are on different sides of the border of an If, Loop or "
        "Scan body; a change must be within one body.",
        "Export the model without control flow, or simplify it so that constant conditions "
        "disappear.",
    ),
    RefusalCode.COMES_APART: Explanation(
        "The norm could fold, but spelled as operators, as `--target onnx` writes an RMSNorm, "
        "other tools would break it up, and a session would run it in pieces; as "
        "LayerNormalization it stays one operator after all of them.",
        "`--target ort` or `--norm-form op` fold it into one operator, `--norm-form decomposed` "
        "or `--fold always` if the named tool is not run afterwards.",
    ),
    RefusalCode.CONCAT_ALONG_FIBER: Explanation(
        "Tensors are concatenated along the normalized axis, so one mean covers several of them "
        "and no part can be centered alone (Swin's patch merging).",
        "Layers of one input, alike but for their channels, are joined to one if nothing but the "
        "Concat reads them and their weights; otherwise the norm stays a LayerNorm.",
    ),
    RefusalCode.DYNAMIC_FIBER: Explanation(
        "The size of the normalized axes is known only at run time.",
        "Export with a fixed feature size, or run shape inference first.",
    ),
    RefusalCode.DYNAMIC_WEIGHT: Explanation(
        "The tensor to change is computed at run time and not stored as a constant.",
        "Fold constants first (onnxslim, onnxsim), or export with constant folding.",
    ),
    RefusalCode.EXACT_READER: Explanation(
        "Another operator reads the stream and depends on its mean (a shift-sensitive use): an "
        "activation, a depthwise convolution, a product with another tensor.",
        "Allow a second copy of the weights with --allow-split if both read them.",
    ),
    RefusalCode.EXCLUDED: Explanation(
        "The name of the norm matches --exclude.", "Drop or narrow the pattern."
    ),
    RefusalCode.FIBER_BROKEN: Explanation(
        "An operator mixes or splits the normalized elements, so they cannot be traced back to "
        "one axis of a weight.",
        "Nothing in the file; report the pattern if the operator does keep the elements apart.",
    ),
    RefusalCode.GRAPH_INPUT: Explanation(
        "The norm reads an input of the graph, whose mean does not depend on a weight.",
        "Nothing, unless the layer that computes the input is merged into the same model.",
    ),
    RefusalCode.GRAPH_OUTPUT: Explanation(
        "The stream is an output of the graph, and outputs keep their values.",
        "Remove the output (hidden states, for example) if nobody needs it, and run again.",
    ),
    RefusalCode.GROUPED_CONVOLUTION: Explanation(
        "A grouped convolution has separate weights for each group of channels, so no weight "
        "determines the mean over all channels (ConvNeXt's depthwise convolutions).",
        "Nothing in the file; the norm stays a LayerNorm.",
    ),
    RefusalCode.HAS_MEAN: Explanation(
        "The input of an RMSNorm may have a mean, because a weight upstream has one (Llama, every "
        "model trained with RMSNorm), so a LayerNorm would compute a different result.",
        "Nothing in the file: centering the weight would change the model. Only RMSNorms that "
        "were originally LayerNorms can be restored.",
    ),
    RefusalCode.NO_CHEAPER_FORM: Explanation(
        "The norm could fold, but the target, the opset or the spelling has no RMS form for it.",
        "Raise the opset, or choose another --target; the sentence names the obstacle.",
    ),
    RefusalCode.NON_FINITE_WEIGHT: Explanation(
        "A weight contains inf or NaN, or would after the change, so it has no finite mean.",
        "Repair the weight, or export in a wider type.",
    ),
    RefusalCode.NOT_CENTRED_NORM: Explanation(
        "The norm does not subtract a mean (L2 norm, DyT), or another norm of the same stream "
        "does not and depends on the mean.",
        "Nothing to do.",
    ),
    RefusalCode.NOT_PROVED: Explanation(
        "The norm could fold or its gamma move, but the proof failed, so it was left unchanged. "
        "The model is right; the proof or the plan is not.",
        "Report the model: a correct plan that cannot be proved is a defect.",
    ),
    RefusalCode.NOT_WORTH: Explanation(
        "The norm could fold, but its replacement, or a tensor that must be inserted or stored "
        "twice, costs more than it saves, or the fold would remove a fusion that is as fast.",
        "Fold it anyway with --fold always, allow larger copies of weights with --allow-split, "
        "fold more norms of the same stream, or choose another --target if a fusion is named.",
    ),
    RefusalCode.OUTLYING_GAMMA: Explanation(
        "A few elements of gamma are far larger than the others. In the next weights they would "
        "widen the range that quantization to int8 with one scale per tensor divides into 255 "
        "steps, while the norm multiplies by a scale anyway (`--target onnx` and `ort`).",
        "`--fuse-affine always` moves it: right if weights are not quantized, or have one scale "
        "per channel, which makes the error smaller than before the move.",
    ),
    RefusalCode.OVERRIDABLE_INITIALIZER: Explanation(
        "A weight is listed among the inputs of the graph, so a caller may replace it.",
        "Remove the weight from the inputs (onnxruntime's remove_initializer_from_input does).",
    ),
    RefusalCode.QUANTISED: Explanation(
        "A weight or a layer is quantized; moving a mean or a scale through integers is not exact.",
        "Fold first, then quantize.",
    ),
    RefusalCode.ROUNDS_MORE: Explanation(
        "The change is exact except for roundings, and rounds more than the operators that it "
        "replaces: a LayerNorm that would keep the mean of its rows, or a 16-bit weight that "
        "would become too small to keep its precision.",
        "Means: allow their rounding with --defer-means. Weights: store the model in float32, or "
        "nothing.",
    ),
    RefusalCode.SHARED_WEIGHT: Explanation(
        "Other nodes read the same weight and need it unchanged (a tied embedding, for example), "
        "and it is too large to store twice.",
        "Raise --allow-split to the size of the weight.",
    ),
    RefusalCode.SHIFT_CANNOT_CROSS: Explanation(
        "Gamma can move into the next layer but beta cannot: the operator between them pads with "
        "zeros, has no bias input, or does not sum equally everywhere.",
        "Nothing; beta stays in the norm.",
    ),
    RefusalCode.SPATIAL_NORM: Explanation(
        "GroupNorm and InstanceNorm over spatial axes ignore one shift per sample and group, but "
        "not a shift per position, which is the effect of centered weights.",
        "Nothing; the fold is exact only for grouped norms of vectors.",
    ),
    RefusalCode.STATISTICS_READ: Explanation(
        "Another node reads the mean or deviation that the norm computes, so the norm must stay.",
        "Remove the output if nobody needs it.",
    ),
    RefusalCode.UNALIGNED: Explanation(
        "Without its last channel the stream is not a multiple of `--multiple-of`. Padding to the "
        "next multiple would restore the original count and save nothing.",
        "Use a smaller number or none, and measure the result (`onnxfold bench`).",
    ),
    RefusalCode.UNKNOWN_OP: Explanation(
        "An operator on the path is not in the operator table, or is used in a way that the table "
        "does not cover. Unknown means unchanged.",
        "Inline custom functions, or add a row for the operator (docs/adding_an_op.md).",
    ),
    RefusalCode.UNKNOWN_SHAPE: Explanation(
        "A rank or a size that the decision needs is unknown.",
        "Run shape inference, or export with static feature sizes.",
    ),
    RefusalCode.UNSUPPORTED_TYPE: Explanation(
        "The element type has no operator, or no change of it is exact (integers, float8).",
        "Fold in float32 or float16 first, then convert.",
    ),
    RefusalCode.VARIES_ALONG_FIBER: Explanation(
        "The stream is multiplied by a value that varies along the normalized axis, so its mean "
        "is not the mean of the operand.",
        "If it is a constant scale per channel, place it directly after a linear layer.",
    ),
}


def refuse_overridable(names: Sequence[str]) -> Refusal:
    """Refuse initializers that are graph inputs as well, because callers may replace them."""
    listed = ", ".join(f"'{name}'" for name in names)
    one = len(names) == 1
    subject = f"initializer {listed} is also a graph input"
    many = f"initializers {listed} are also graph inputs"
    it = "it" if one else "them"
    return Refusal(
        RefusalCode.OVERRIDABLE_INITIALIZER,
        f"{subject if one else many}, so callers may override {it}; remove {it} from the inputs",
        tuple(names),
    )
