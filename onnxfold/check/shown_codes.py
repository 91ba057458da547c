"""Values that a model stores only as integer codes, computed as the numbers they represent.

ONNX Runtime's quantizers name the codes of a value NAME "NAME_quantized", with "NAME_scale" and
"NAME_zero_point" to decode them. Dequantizing and quantizing again does not change them.
"""

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference import Array
from onnxfold.graph.edit import splice_behind

_MARK = "/shown"


def show_codes(model: ir.Model, names: Collection[str]) -> ir.Model:
    """Return a copy that computes values of these names, if the model stores their codes."""
    copy = model.clone()
    values = {str(v.name): v for node in copy.graph for v in node.outputs if v.name}
    weights = copy.graph.initializers
    for name in names:
        codes, scale = values.get(f"{name}_quantized"), weights.get(f"{name}_scale")
        zero = weights.get(f"{name}_zero_point")
        if name in values or codes is None or scale is None or zero is None:
            continue
        number = ir.node("DequantizeLinear", [codes, scale, zero], name=f"{name}{_MARK}")
        number.outputs[0].name = name
        number.outputs[0].type = ir.TensorType(scale.dtype or ir.DataType.FLOAT)
        again = ir.node("QuantizeLinear", [number.outputs[0], scale, zero], name=f"{name}{_MARK}/2")
        again.outputs[0].name = f"{name}{_MARK}"
        splice_behind(codes, [number, again])
    return copy


def is_of_file(node: ir.Node) -> bool:
    """Whether a node is in the model itself."""
    return _MARK not in str(node.name)


def stored_weights(
    model: ir.Model, original: ir.Model, node: ir.Node
) -> Iterator[tuple[Array, Array]]:
    """Yield weights of the original whose codes a node reads, and the decoded numbers."""
    weights = model.graph.initializers
    for codes in node.inputs:
        name = "" if codes is None else str(codes.name).removesuffix("_quantized")
        known = (
            original.graph.initializers.get(name),
            weights.get(f"{name}_quantized"),
            weights.get(f"{name}_scale"),
            weights.get(f"{name}_zero_point"),
        )
        arrays = [v.const_value.numpy() for v in known if v is not None and v.const_value]
        if len(arrays) == len(known) and arrays[2].size in (1, arrays[1].shape[-1]):
            right, stored, scale, zero = (np.asarray(a).astype(np.float64) for a in arrays)
            yield right, (stored - zero) * scale
