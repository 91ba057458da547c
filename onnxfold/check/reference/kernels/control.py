"""If, Loop and Scan: operators whose bodies capture values of the outer graph."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference.kernel import Array, Call, Datum, kernel


@kernel("If", raw=True)
def if_kernel(call: Call, condition: Array) -> tuple[Datum, ...]:
    branch = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    return tuple(call.run_graph(call.graph(branch), []))


def _empty(value: ir.Value) -> Array:
    """Return a scan output of zero steps: [0, *shape of one step]."""
    dims = [d if isinstance(d, int) else 0 for d in value.shape] if value.shape else []
    dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
    return np.zeros((0, *dims), dtype=dtype)


def _stacked(rows: Sequence[Datum], value: ir.Value) -> Array:
    return np.stack(cast("Sequence[Array]", rows)) if rows else _empty(value)


def _keep(call: Call, rows: list[Datum], row: Datum) -> None:
    """Add a step's row of a scan output, as long as the rows together are not too large."""
    if isinstance(row, np.ndarray):
        call.check_size([len(rows) + 1, row.size])
    rows.append(row)


@kernel("Loop", raw=True)
def loop(
    call: Call, limit: Array | None, condition: Array | None, *carried: Datum
) -> tuple[Datum, ...]:
    """Run the body while its condition is true, at most `limit` times."""
    body = call.graph("body")
    most = None if limit is None else int(limit.reshape(-1)[0])
    going = condition is None or bool(condition.reshape(-1)[0])
    states: list[Datum] = list(carried)
    scans: list[list[Datum]] = [[] for _ in body.outputs[1 + len(states) :]]
    step = 0
    while going and (most is None or step < most):
        number = np.asarray(step, dtype=np.int64)
        results = call.run_graph(body, [number, np.asarray(going), *states])
        going = bool(np.asarray(results[0]).reshape(-1)[0])
        states = results[1 : 1 + len(states)]
        for rows, row in zip(scans, results[1 + len(states) :], strict=True):
            _keep(call, rows, row)
        step += 1
    outputs = body.outputs[1 + len(states) :]
    return (*states, *(_stacked(rows, v) for rows, v in zip(scans, outputs, strict=True)))


@kernel("Scan", raw=True)
def scan(call: Call, *inputs: Array) -> tuple[Datum, ...]:
    """Opset 9 and later: states, then sequences along `scan_input_axes`."""
    if call.version < 9:
        raise call.unsupported("Scan of opset 8")
    body = call.graph("body")
    count = call.integer("num_scan_inputs", 0)
    split = len(inputs) - count
    states: list[Datum] = list(inputs[:split])
    axes = call.integers("scan_input_axes") or (0,) * count
    backwards = call.integers("scan_input_directions") or (0,) * count
    sequences = [
        np.moveaxis(x, axis, 0)[::-1] if back else np.moveaxis(x, axis, 0)
        for x, axis, back in zip(inputs[split:], axes, backwards, strict=True)
    ]
    rows: list[list[Datum]] = [[] for _ in body.outputs[split:]]
    for step in range(sequences[0].shape[0]):
        results = call.run_graph(body, [*states, *(s[step] for s in sequences)])
        states = results[:split]
        for kept, row in zip(rows, results[split:], strict=True):
            _keep(call, kept, row)
    out_axes = call.integers("scan_output_axes") or (0,) * len(rows)
    out_back = call.integers("scan_output_directions") or (0,) * len(rows)
    stacked = [_stacked(kept, v) for kept, v in zip(rows, body.outputs[split:], strict=True)]
    ordered = [s[::-1] if back else s for s, back in zip(stacked, out_back, strict=True)]
    return (*states, *(np.moveaxis(s, 0, a) for s, a in zip(ordered, out_axes, strict=True)))
