"""The known architectures: which linear layers read a norm, and which write the stream.

A name is a module path below the base model; ``*`` is a number. Every tensor of a checkpoint must
be named here, and its configuration must meet ``demands``: an unknown architecture or variant is
refused as a whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm with gamma (and beta), and the linear layers that are its only readers.

    ``*`` in ``name`` is the number of the layer, equal to the first one in each reader.
    """

    name: str
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Architecture:
    """Architectures with the same modules.

    ``base``: the prefix of the base model's tensors in a model with a head. ``norms`` read the
    stream, to which only ``writers`` (linear layers) and ``tables`` add; ``last`` is the norm that
    the ``head`` reads. ``embedding`` is the table that a tied head shares, ``tied`` whether it is
    tied by default. ``subtracts_mean``: LayerNorm, otherwise RMSNorm; ``bare``: the norms lack
    tensors. ``opening``: the norm, if any, whose output begins the stream. ``inputs_first``:
    weights are [in, out], as GPT-2's Conv1D has them. ``kept``: further modules, with the reason
    why they are not changed; ``others``: modules without remarks; ``buffers``: tensors that are not
    weights. ``demands``: the required values of the configuration, if present.
    """

    base: str
    norms: tuple[Norm, ...]
    last: str
    head: str
    embedding: str
    writers: tuple[str, ...]
    tables: tuple[str, ...] = ()
    tied: bool = False
    subtracts_mean: bool = False
    bare: bool = False
    opening: str = ""
    inputs_first: bool = False
    kept: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    demands: Mapping[str, object] = field(default_factory=dict)


_QK_NORM = "its gamma acts on each head before the rotation, and no linear layer reads it"
_ATTENTION = tuple(f"layers.*.self_attn.{name}_proj" for name in "qkv")
_GATED = ("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj")
_INV_FREQ = ("layers.*.self_attn.rotary_emb.inv_freq",)


def _decoder(
    attention: tuple[str, ...] = _ATTENTION,
    mlp: tuple[str, ...] = _GATED,
    writers: tuple[str, ...] = ("layers.*.self_attn.o_proj", "layers.*.mlp.down_proj"),
    **others: object,
) -> Architecture:
    """Return a family with the structure of Llama."""
    norms = (
        Norm("layers.*.input_layernorm", attention),
        Norm("layers.*.post_attention_layernorm", mlp),
    )
    parts: dict[str, object] = {
        "base": "model",
        "norms": norms,
        "last": "norm",
        "head": "lm_head",
        "embedding": "embed_tokens",
        "writers": writers,
        "buffers": _INV_FREQ,
    }
    return Architecture(**{**parts, **others})  # type: ignore[arg-type]  # the fields of Family


_LLAMA = _decoder()
_QWEN3 = _decoder(
    kept={"layers.*.self_attn.q_norm": _QK_NORM, "layers.*.self_attn.k_norm": _QK_NORM}
)
_PHI3 = _decoder(("layers.*.self_attn.qkv_proj",), ("layers.*.mlp.gate_up_proj",))
_MIXTRAL = _decoder(
    mlp=(
        "layers.*.block_sparse_moe.gate",
        "layers.*.block_sparse_moe.experts.*.w1",
        "layers.*.block_sparse_moe.experts.*.w3",
    ),
    writers=("layers.*.self_attn.o_proj", "layers.*.block_sparse_moe.experts.*.w2"),
)
_ADDED = "its output is added to the stream, and no linear layer reads it"
_HEAD_NORMS = {f"layers.*.self_attn.{name}_norm": _QK_NORM for name in "qk"}
_ARCEE = _decoder(mlp=("layers.*.mlp.up_proj",))
_GLM = _decoder(mlp=("layers.*.mlp.gate_up_proj",))
_GLM4 = _decoder(
    mlp=("layers.*.mlp.gate_up_proj",),
    kept={f"layers.*.post_{name}_layernorm": _ADDED for name in ("self_attn", "mlp")},
)
# Their layers read the stream itself, and norm what they add to it.
_OLMO2 = _decoder(
    norms=(),
    kept={
        **{f"layers.*.post_{name}_layernorm": _ADDED for name in ("attention", "feedforward")},
        **_HEAD_NORMS,
    },
    others=(*_ATTENTION, *_GATED),
)
_OLMO = _decoder(subtracts_mean=True, bare=True)
_COHERE = _decoder(
    norms=(Norm("layers.*.input_layernorm", (*_ATTENTION, *_GATED)),),
    subtracts_mean=True,
    tied=True,
    demands={"use_qk_norm": False},
)
_EXPERTS = (
    "layers.*.mlp.gate",
    *(f"layers.*.mlp.experts.*.{name}_proj" for name in ("gate", "up")),
)
_ALL_SPARSE = {"mlp_only_layers": [], "decoder_sparse_step": 1}
_OLMOE = _decoder(
    mlp=_EXPERTS,
    writers=("layers.*.self_attn.o_proj", "layers.*.mlp.experts.*.down_proj"),
    kept=_HEAD_NORMS,
)
_QWEN3_MOE = replace(_OLMOE, demands=_ALL_SPARSE)
_SHARED = tuple(f"layers.*.mlp.shared_expert.{name}_proj" for name in ("gate", "up"))
_QWEN2_MOE = _decoder(
    mlp=(*_EXPERTS, *_SHARED, "layers.*.mlp.shared_expert_gate"),
    writers=(
        "layers.*.self_attn.o_proj",
        "layers.*.mlp.experts.*.down_proj",
        "layers.*.mlp.shared_expert.down_proj",
    ),
    demands=_ALL_SPARSE,
)
_GPT_OSS = _decoder(
    norms=(Norm("layers.*.input_layernorm", _ATTENTION),),
    writers=("layers.*.self_attn.o_proj",),
    kept={
        "layers.*.post_attention_layernorm": "its experts are one tensor, which holds no layer each"
    },
    others=("layers.*.mlp.router",),
    buffers=(
        "layers.*.self_attn.sinks",
        *(
            f"layers.*.mlp.experts.{name}_proj{part}"
            for name in ("gate_up", "down")
            for part in ("", "_bias")
        ),
    ),
)
_STABLELM = _decoder(
    subtracts_mean=True, demands={"use_parallel_residual": False, "qk_layernorm": False}
)
_STARCODER2 = _decoder(
    mlp=("layers.*.mlp.c_fc",),
    writers=("layers.*.self_attn.o_proj", "layers.*.mlp.c_proj"),
    subtracts_mean=True,
    tied=True,
)
_GPT2 = Architecture(
    base="transformer",
    norms=(Norm("h.*.ln_1", ("h.*.attn.c_attn",)), Norm("h.*.ln_2", ("h.*.mlp.c_fc",))),
    last="ln_f",
    head="lm_head",
    embedding="wte",
    writers=("h.*.attn.c_proj", "h.*.mlp.c_proj"),
    tables=("wpe",),
    tied=True,
    subtracts_mean=True,
    inputs_first=True,
    buffers=("h.*.attn.bias", "h.*.attn.masked_bias"),
)
_GPTJ = Architecture(
    base="transformer",
    norms=(Norm("h.*.ln_1", (*(f"h.*.attn.{name}_proj" for name in "qkv"), "h.*.mlp.fc_in")),),
    last="ln_f",
    head="lm_head",
    embedding="wte",
    writers=("h.*.attn.out_proj", "h.*.mlp.fc_out"),
    subtracts_mean=True,
    buffers=("h.*.attn.bias", "h.*.attn.masked_bias", "h.*.attn.embed_positions"),
)
_GPT_NEOX = Architecture(
    base="gpt_neox",
    norms=(
        Norm("layers.*.input_layernorm", ("layers.*.attention.query_key_value",)),
        Norm("layers.*.post_attention_layernorm", ("layers.*.mlp.dense_h_to_4h",)),
    ),
    last="final_layer_norm",
    head="embed_out",
    embedding="embed_in",
    writers=("layers.*.attention.dense", "layers.*.mlp.dense_4h_to_h"),
    subtracts_mean=True,
    buffers=tuple(
        f"layers.*.attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")
    ),
)
_BLOOM = Architecture(
    base="transformer",
    norms=(
        Norm("h.*.input_layernorm", ("h.*.self_attention.query_key_value",)),
        Norm("h.*.post_attention_layernorm", ("h.*.mlp.dense_h_to_4h",)),
    ),
    last="ln_f",
    head="lm_head",
    embedding="word_embeddings",
    writers=("h.*.self_attention.dense", "h.*.mlp.dense_4h_to_h"),
    tied=True,
    subtracts_mean=True,
    opening="word_embeddings_layernorm",
    kept={"word_embeddings_layernorm": "its output is the stream"},
    demands={"apply_residual_connection_post_layernorm": False},
)
_FALCON = Architecture(
    base="transformer",
    norms=(
        Norm(
            "h.*.input_layernorm", ("h.*.self_attention.query_key_value", "h.*.mlp.dense_h_to_4h")
        ),
    ),
    last="ln_f",
    head="lm_head",
    embedding="word_embeddings",
    writers=("h.*.self_attention.dense", "h.*.mlp.dense_4h_to_h"),
    tied=True,
    subtracts_mean=True,
    demands={"new_decoder_architecture": False, "parallel_attn": True},
)
_PHI = Architecture(
    base="model",
    norms=(Norm("layers.*.input_layernorm", (*_ATTENTION, "layers.*.mlp.fc1")),),
    last="final_layernorm",
    head="lm_head",
    embedding="embed_tokens",
    writers=("layers.*.self_attn.dense", "layers.*.mlp.fc2"),
    subtracts_mean=True,
    buffers=_INV_FREQ,
    demands={"qk_layernorm": False},
)
_OPT = Architecture(
    base="model",
    norms=(
        Norm(
            "decoder.layers.*.self_attn_layer_norm",
            tuple(f"decoder.layers.*.self_attn.{name}_proj" for name in "qkv"),
        ),
        Norm("decoder.layers.*.final_layer_norm", ("decoder.layers.*.fc1",)),
    ),
    last="decoder.final_layer_norm",
    head="lm_head",
    embedding="decoder.embed_tokens",
    writers=("decoder.layers.*.self_attn.out_proj", "decoder.layers.*.fc2"),
    tables=("decoder.embed_positions",),
    tied=True,
    subtracts_mean=True,
    demands={
        "do_layer_norm_before": True,
        "layer_norm_elementwise_affine": True,
        "_remove_final_layer_norm": False,
    },
)
_ONE_PLUS = (
    "Gemma's norms multiply by 1 + g, and runtimes differ in whether a file holds g or 1 + g: "
    "what is 1 for one is 2 for another"
)
_POST_NORMS = tuple(
    f"layers.*.{name}_layernorm" for name in ("pre_feedforward", "post_feedforward")
)
_GEMMA = _decoder(
    (),
    (),
    tied=True,
    kept={
        **dict.fromkeys(
            ("layers.*.input_layernorm", "layers.*.post_attention_layernorm"), _ONE_PLUS
        ),
        **dict.fromkeys((*_POST_NORMS, "norm"), _ONE_PLUS),
        "layers.*.self_attn.q_norm": _QK_NORM,
        "layers.*.self_attn.k_norm": _QK_NORM,
    },
    norms=(),
    last="",
    others=(*_ATTENTION, *_GATED),
)
FAMILIES: Mapping[str, Architecture] = {
    "arcee": _ARCEE,
    "bloom": _BLOOM,
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "ernie4_5": _LLAMA,
    "exaone4": _OLMO2,
    "falcon": _FALCON,
    "gemma": _GEMMA,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "glm": _GLM,
    "glm4": _GLM4,
    "gpt2": _GPT2,
    "gpt_neox": _GPT_NEOX,
    "gpt_oss": _GPT_OSS,
    "gptj": _GPTJ,
    "granite": _LLAMA,
    "helium": _LLAMA,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _MIXTRAL,
    "olmo": _OLMO,
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "olmoe": _OLMOE,
    "opt": _OPT,
    "phi": _PHI,
    "phi3": _PHI3,
    "qwen2": _LLAMA,
    "qwen2_moe": _QWEN2_MOE,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "seed_oss": _LLAMA,
    "smollm3": _LLAMA,
    "stablelm": _STABLELM,
    "starcoder2": _STARCODER2,
}
