"""The sampler of every line of the law table."""

from __future__ import annotations

from typing import Any

from tests.operators.sampled_attention import ATTENTION
from tests.operators.sampled_elementwise import ELEMENTWISE
from tests.operators.sampled_experts import EXPERTS
from tests.operators.sampled_layout import LAYOUT
from tests.operators.sampled_linear import LINEAR

__all__ = ["SAMPLERS"]

SAMPLERS: dict[tuple[str, str], Any] = {
    **ATTENTION, **ELEMENTWISE, **EXPERTS, **LINEAR, **LAYOUT
}  # fmt: skip
