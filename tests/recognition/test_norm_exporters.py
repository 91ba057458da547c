"""Output of real exporters: the fixtures, made by the scripts in the same folder.

Each row lists the expected result for one source module, for any exporter and opset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfold.norms import EpsilonMode, NormForm, NormKind
from onnxfold.refusal import RefusalCode
from tests.recognition.replay import FLOAT32_BOUND, random_feeds, replay, sites_of, values_of

FIXTURES = Path(__file__).parent / "fixtures"
# Half precision: 2^-11 per rounding, about four of them on results of up to 4.
HALF_BOUND = 4 * 4 * 2.0**-11

LN, RMS, L2 = NormKind.LAYER_NORM, NormKind.RMS_NORM, NormKind.L2_NORM
GN, IN, DYT = NormKind.GROUP_NORM, NormKind.INSTANCE_NORM, NormKind.DYT
INSIDE, OUTSIDE = EpsilonMode.INSIDE, EpsilonMode.OUTSIDE
MAX_INSIDE, MAX_OUTSIDE = EpsilonMode.MAX_INSIDE, EpsilonMode.MAX_OUTSIDE


@dataclass(frozen=True)
class Row:
    kind: NormKind
    axes: tuple[int, ...]
    gamma: bool = True
    beta: bool = True
    epsilon: tuple[float, ...] = (1e-5,)
    mode: tuple[EpsilonMode, ...] = (INSIDE,)
    factor: float = 1.0
    spatial: bool = False


ROWS = {
    "torch_layer_norm": Row(LN, (2,)),
    "torch_layer_norm_half": Row(LN, (2,)),
    "torch_layer_norm_no_affine": Row(LN, (2,), False, False),
    "torch_layer_norm_no_bias": Row(LN, (2,), True, False),
    "torch_layer_norm_two_axes": Row(LN, (1, 2)),
    "torch_rms_norm": Row(RMS, (2,), True, False, (1.1920929e-07,)),
    "torch_llama_norm": Row(RMS, (2,), True, False, (1e-6,)),
    "torch_llama_norm_half": Row(RMS, (2,), True, False, (1e-6,)),
    "torch_gemma_norm": Row(RMS, (2,), True, False, (1e-6,)),
    "torch_gemma_norm_half": Row(RMS, (2,), True, False, (1e-6,)),
    "torch_annotated_norm": Row(LN, (2,), True, True, (1e-6,), (OUTSIDE,), 8 / 7),
    "torch_var_mean_norm": Row(LN, (2,), True, True, (1e-6,)),
    "torch_channels_first_norm": Row(LN, (1,), True, True, (1e-6,)),
    "torch_channels_first_norm_half": Row(LN, (1,), True, True, (1.0133e-6,)),
    "torch_permuted_norm": Row(LN, (3,)),
    # The dynamo exporter drops additions of up to 1e-8.
    "torch_cohere_norm": Row(LN, (2,), True, False, (0.0, 1e-12)),
    "torch_normalize": Row(L2, (2,), False, False, (1e-12,), (MAX_OUTSIDE,), 8.0),
    "torch_bare_normalize": Row(L2, (2,), False, False, (0.0,), (INSIDE,), 8.0),
    "torch_scaled_normalize": Row(RMS, (2,), True, False, (1e-12 / 8**0.5,), (MAX_OUTSIDE,)),
    "torch_root_rms_norm": Row(RMS, (2,), True, False, (0.0, 1e-8), (INSIDE, OUTSIDE)),
    "torch_group_norm_image": Row(GN, (1, 2, 3), spatial=True),
    "torch_group_norm_maps": Row(GN, (1, 2), spatial=True),
    "torch_group_norm_vectors": Row(GN, (1,)),
    "torch_group_norm_no_affine": Row(GN, (1, 2, 3), False, False, spatial=True),
    "torch_group_norm_of_one": Row(GN, (1, 2, 3), spatial=True),
    "torch_instance_norm": Row(IN, (2, 3), spatial=True),
    "torch_dyt": Row(DYT, (2,), epsilon=(0.0,), factor=float(np.float32(0.7))),
    "torch_modulated": Row(LN, (2,), False, False),
    "jax_layer_norm": Row(LN, (2,), epsilon=(1e-6,)),
    "jax_layer_norm_two_pass": Row(LN, (2,), epsilon=(1e-6,)),
    "jax_layer_norm_no_affine": Row(LN, (2,), False, False, (1e-6,)),
    "jax_rms_norm": Row(RMS, (2,), True, False, (1e-6,)),
    "jax_group_norm": Row(GN, (1, 2, 3), epsilon=(1e-6,), spatial=True),
    "jax_group_norm_vectors": Row(GN, (1,), epsilon=(1e-6,)),
    "jax_jnp_layer_norm": Row(LN, (2,)),
    "jax_jnp_rms_norm": Row(RMS, (2,), True, False, (1e-6,)),
    "jax_jnp_two_axes": Row(LN, (1, 2), False, False),
    "jax_l2_normalize": Row(L2, (2,), False, False, (1e-12,), (MAX_INSIDE,), 8.0),
    "jax_norm_division": Row(L2, (2,), False, False, (1.4012985e-45,), (MAX_OUTSIDE,), 8.0),
    "jax_standardize": Row(LN, (2,), True, False),
    "tf_keras3_layer_norm": Row(LN, (2,), epsilon=(1e-3,)),
    "tf_keras3_layer_norm_small_epsilon": Row(LN, (2,), epsilon=(1e-6,)),
    "tf_keras3_layer_norm_no_affine": Row(LN, (2,), False, False, (1e-3,)),
    "tf_keras3_layer_norm_axis_1": Row(LN, (1,), epsilon=(1e-3,)),
    "tf_keras3_rms_norm": Row(RMS, (2,), True, False, (1e-6,)),
    "tf_keras3_unit_norm": Row(L2, (2,), False, False, (1e-12,), (MAX_OUTSIDE,), 8.0),
    "tf_keras3_group_norm": Row(GN, (1, 2, 3), epsilon=(1e-3,), spatial=True),
    "tf_keras2_layer_norm": Row(LN, (2,), epsilon=(1e-3,)),
    "tf_keras2_layer_norm_small_epsilon": Row(LN, (2,), epsilon=(1e-6,)),
    "tf_keras2_unit_norm": Row(L2, (2,), False, False, (1e-12,), (MAX_INSIDE,), 8.0),
    "tf_keras2_group_norm": Row(GN, (1, 2, 3), epsilon=(1e-3,), spatial=True),
    "tf_keras2_group_norm_vectors": Row(GN, (1,), epsilon=(1e-3,)),
    "tf_conditional_layer_norm": Row(LN, (2,), epsilon=(1e-6,)),
    "tf_conditional_rms_norm": Row(RMS, (2,), True, False, (1e-6,)),
    "tf_batch_normalization": Row(LN, (2,), epsilon=(1e-6,)),
    "tf_rms_norm": Row(RMS, (2,), True, False, (1e-6,)),
    "tf_layer_norm": Row(LN, (2,)),
    "tf_instance_norm": Row(IN, (1, 2), spatial=True),
    "tf_l2_normalize": Row(L2, (2,), False, False, (1e-12,), (MAX_INSIDE,), 8.0),
    "paddle_layer_norm": Row(LN, (2,)),
    "paddle_layer_norm_two_axes": Row(LN, (1, 2)),
    "paddle_rms_norm": Row(RMS, (2,), True, False, (1e-6,)),
    "paddle_l2_norm": Row(L2, (2,), False, False, (1e-12,), (MAX_OUTSIDE,), 8.0),
    "paddle_group_norm": Row(GN, (1, 2, 3), epsilon=(0.0,), spatial=True),  # its exporter's zero
    "paddle_instance_norm": Row(IN, (2, 3), spatial=True),
}
# Groups of one channel: InstanceNormalization up to opset 20, GroupNormalization after.
OF_CHANNELS = "torch_group_norm_of_channels"
REFUSED = {"paddle_layer_norm_two_axes_17"}  # scale of shape [24] for axes of sizes 3 and 8


def source(path: Path) -> str:
    """The row of a file: its name without exporter mode, opset and dynamic batch."""
    return re.sub(r"(_script|_dynamo)?(_dynamic|_\d+)?$", "", path.stem)


FILES = sorted(FIXTURES.glob("*.onnx"))


def test_every_row_has_files_and_every_file_a_row():
    assert {source(path) for path in FILES} == {*ROWS, OF_CHANNELS}


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_one_site_that_says_what_the_module_is(path):
    model = onnx.load(path)
    sites = sites_of(model)
    assert len(sites) == 1
    (site,) = sites
    _owns_its_nodes_and_leaks_nothing(site)
    if path.stem in REFUSED:
        assert site.refusal.code is RefusalCode.UNKNOWN_SHAPE
        return
    if source(path) != OF_CHANNELS:
        row = ROWS[source(path)]
        assert site.kind is row.kind
        assert site.fiber.axes == row.axes
        assert (site.gamma is not None, site.beta is not None) == (row.gamma, row.beta)
        assert any(np.isclose(site.epsilon, value, rtol=1e-4, atol=0) for value in row.epsilon)
        assert site.epsilon_mode in row.mode
        assert np.isclose(site.factor, row.factor, rtol=1e-6, atol=0)
        code = RefusalCode.SPATIAL_NORM if row.spatial else None
        assert (site.refusal.code if site.refusal else None) is code
    feeds = random_feeds(model)
    values = values_of(model, feeds)
    error = np.max(np.abs(replay(site, values) - values[site.output.name].astype(np.float64)))
    assert error < (HALF_BOUND if "_half" in path.stem else FLOAT32_BOUND)


def _owns_its_nodes_and_leaks_nothing(site):
    assert site.escaping == ()
    assert site.output in site.nodes[-1].outputs
    if site.form is NormForm.DECOMPOSED:
        assert len(site.nodes) > 1
        inner = {value for node in site.nodes for value in node.outputs}
        assert site.input not in inner
    made = {value for node in site.nodes for value in node.outputs}
    assert made.issuperset(site.centred)
