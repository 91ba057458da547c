"""A refusal: "no" as data, with a code for machines, a sentence for people and the nodes at fault.

Refusals are not errors.  Everything that decides (recognition, laws, planning, lowering) may
return one; the report, the Python API and the command line print the same sentence.
"""

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
        "A function that is not linear (GELU, ReLU, Softmax and so on) stands between the norm and "
        "the weights before it, so no change of a weight removes the mean.",
        "Nothing in the file; the norm needs its mean. A linear layer behind the function, as in a "
        "pre-norm residual stream, would make it foldable.",
    ),
    RefusalCode.AFFINE_NORM_OUTPUT: Explanation(
        "The input of the norm is, or contains, the output of another norm with a gamma that "
        "varies or a beta: a post-norm model. Gamma and beta give that output a mean again.",
        "Exact folding is not possible. Only a model trained in pre-norm form, or with uniform "
        "gamma and zero beta there, folds.",
    ),
    RefusalCode.ALREADY_LAYER: Explanation(
        "The norm is a LayerNorm: `convert --to layer` has nothing to restore.", "Nothing to do."
    ),
    RefusalCode.ALREADY_RMS: Explanation(
        "The norm is an RMSNorm: there is no mean to take out.", "Nothing to do."
    ),
    RefusalCode.BODY_BORDER: Explanation(
        "The norm and the weights before it are on different sides of the border of an If, Loop or "
        "Scan body; only what lies in one body is changed.",
        "Export the model without control flow, or simplify it so that constant conditions go.",
    ),
    RefusalCode.COMES_APART: Explanation(
        "The norm could fold, but spelled in operators, as `--target onnx` writes an RMSNorm, "
        "other tools would take it apart, and a session would run it in pieces; as "
        "LayerNormalization it stays one operator behind all of them ([in a "
        "pipeline](pipeline.md)).",
        "`--target ort` or `--norm-form op` fold it into one operator, `--norm-form decomposed` or "
        "`--fold always` where the tool that the sentence names does not follow.",
    ),
    RefusalCode.CONCAT_ALONG_FIBER: Explanation(
        "Tensors are joined along the normalised axis, so one mean runs over several of them and "
        "no part can be centred alone (Swin's patch merging).",
        "Nothing in the file; the norm stays a LayerNorm.",
    ),
    RefusalCode.DYNAMIC_FIBER: Explanation(
        "The size of the normalised axes is known only at run time.",
        "Export with a fixed feature size, or run shape inference before.",
    ),
    RefusalCode.DYNAMIC_WEIGHT: Explanation(
        "What would have to be changed is computed at run time and not stored as a constant.",
        "Fold constants first (onnxslim, onnxsim), or export with constant folding.",
    ),
    RefusalCode.EXACT_READER: Explanation(
        "Another operator reads the stream and would notice if its mean went away (a "
        "shift-sensitive use): an activation, a depthwise convolution, another tensor's product.",
        "Allow a second copy of the weights with --allow-split where the weights are read by both.",
    ),
    RefusalCode.EXCLUDED: Explanation(
        "The name of the norm matches --exclude.", "Drop or narrow the pattern."
    ),
    RefusalCode.FIBER_BROKEN: Explanation(
        "An operator mixes or cuts the normalised elements, so that they cannot be followed back "
        "to one axis of a weight.",
        "Nothing in the file; report the pattern if the operator does keep the elements apart.",
    ),
    RefusalCode.GRAPH_INPUT: Explanation(
        "The norm reads an input of the graph, whose mean no weight decides.",
        "Nothing, unless the layer that makes the input is merged into the same model.",
    ),
    RefusalCode.GRAPH_OUTPUT: Explanation(
        "The stream is an output of the graph, and outputs keep their values.",
        "Remove the output (hidden states, for example) if nobody needs it, and run again.",
    ),
    RefusalCode.GROUPED_CONVOLUTION: Explanation(
        "A convolution with groups gives each group of channels its own weights, so the mean over "
        "channels is none of theirs (ConvNeXt's depthwise convolutions).",
        "Nothing in the file; the norm stays a LayerNorm.",
    ),
    RefusalCode.HAS_MEAN: Explanation(
        "The input of an RMSNorm may have a mean, because a weight before it has one (Llama, "
        "every model trained with RMSNorm), so a LayerNorm would compute something else.",
        "Nothing in the file: centring the weight would change the model. Only RMSNorms that were "
        "LayerNorms once become LayerNorms again.",
    ),
    RefusalCode.NO_CHEAPER_FORM: Explanation(
        "The norm could fold, but the target, the opset or the spelling has no RMS form for it.",
        "Raise the opset, or choose another --target; the sentence says what is missing.",
    ),
    RefusalCode.NON_FINITE_WEIGHT: Explanation(
        "A weight holds inf or NaN, or would after the change, so its mean is no number.",
        "Repair the weight, or export in a wider type.",
    ),
    RefusalCode.NOT_CENTRED_NORM: Explanation(
        "The norm does not subtract a mean (L2 norm, DyT), or another one that reads the same "
        "stream does not and would see the change.",
        "Nothing to do.",
    ),
    RefusalCode.NOT_PROVED: Explanation(
        "The norm could fold or its gamma move, but the proof of it failed, so it was left as it "
        "was. The model is right; the proof or the plan is not.",
        "Report the model: a plan that is right and cannot be proved is a defect.",
    ),
    RefusalCode.NOT_WORTH: Explanation(
        "The norm could fold, but what stands in its place, or must be inserted or stored twice, "
        "costs more than it saves, or the fold would take away a fusion that is as fast.",
        "Fold it all the same with --fold always, allow larger copies of weights with "
        "--allow-split, fold more norms of the same stream, or choose another --target where a "
        "fusion is named.",
    ),
    RefusalCode.OUTLYING_GAMMA: Explanation(
        "Few elements of gamma are far larger than the others. In the next weights they would "
        "widen the range that a quantisation to int8 with one scale for each tensor divides into "
        "255 steps, while the norm multiplies by a scale anyway (`--target onnx` and `ort`).",
        "`--fuse-affine always` moves it: right where weights are not quantised, or with a scale "
        "for each channel, which makes the error smaller than before the move.",
    ),
    RefusalCode.OVERRIDABLE_INITIALIZER: Explanation(
        "A weight is listed among the inputs of the graph, so a caller may replace it.",
        "Remove the weight from the inputs (onnxruntime's remove_initializer_from_input does).",
    ),
    RefusalCode.QUANTISED: Explanation(
        "A weight or a layer is quantised; moving a mean or a scale through integers is not exact.",
        "Fold first, then quantise.",
    ),
    RefusalCode.ROUNDS_MORE: Explanation(
        "The change is exact but for roundings, and rounds more than the operators that it "
        "replaces: a LayerNorm that would keep the mean of its rows, or a weight of 16 bits that "
        "would become so small that few bits are left of it.",
        "Means: allow their rounding with --defer-means. Weights: store the model in float32, or "
        "nothing.",
    ),
    RefusalCode.SHARED_WEIGHT: Explanation(
        "Others read the same weight and need it as it is (a tied embedding, for example), and it "
        "is too large to store twice.",
        "Raise --allow-split to the size of the weight.",
    ),
    RefusalCode.SHIFT_CANNOT_CROSS: Explanation(
        "Gamma can move into the next layer but beta cannot: the operator between them pads with "
        "zeros, has no place for a bias, or does not sum alike everywhere.",
        "Nothing; beta stays where it is.",
    ),
    RefusalCode.SPATIAL_NORM: Explanation(
        "GroupNorm and InstanceNorm over spatial axes do not see one shift per sample and group, "
        "but they do see a shift per position, which is what centred weights would change.",
        "Nothing; the fold is exact only for grouped norms on vectors.",
    ),
    RefusalCode.STATISTICS_READ: Explanation(
        "Something reads the mean or deviation that the norm computes, so the norm must stay.",
        "Remove the output if nobody needs it.",
    ),
    RefusalCode.UNALIGNED: Explanation(
        "Without its last channel the stream is no multiple of what `--multiple-of` asks for. "
        "Padding up to the next multiple gives as many channels as before, and saves nothing.",
        "Give a smaller number or none, and measure the result (`onnxfold bench`).",
    ),
    RefusalCode.UNKNOWN_OP: Explanation(
        "An operator on the way is not in the operator table, or is used in a way that the table "
        "does not follow. Unknown means untouched.",
        "Inline custom functions, or add a row for the operator (docs/adding_an_op.md).",
    ),
    RefusalCode.UNKNOWN_SHAPE: Explanation(
        "A rank or a size that the decision needs is not known.",
        "Run shape inference, or export with static feature sizes.",
    ),
    RefusalCode.UNSUPPORTED_TYPE: Explanation(
        "The element type has no operator or no exact change (integers, float8).",
        "Fold in float32 or float16 first, then convert.",
    ),
    RefusalCode.VARIES_ALONG_FIBER: Explanation(
        "The stream is multiplied by something that differs along the normalised axis, so its mean "
        "is not the mean of what came before.",
        "If it is a constant scale per channel, place it directly behind a linear layer.",
    ),
}
