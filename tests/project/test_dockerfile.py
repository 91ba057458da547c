"""The base images are named by their digests, not by a tag that moves."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_default_bases_are_one_image_by_its_digest() -> None:
    defaults = dict(re.findall(r"^ARG (\w+_BASE)=(\S+)$", DOCKERFILE, re.MULTILINE))
    assert defaults.keys() == {"BUILDER_BASE", "RUNTIME_BASE"}
    assert len(set(defaults.values())) == 1
    assert re.fullmatch(r"[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}", defaults["BUILDER_BASE"])


def test_every_stage_begins_with_a_base_that_can_be_named() -> None:
    stages = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert stages == ["${BUILDER_BASE}", "${RUNTIME_BASE}"]
    script = (ROOT / "docker" / "build.sh").read_text(encoding="utf-8")
    for name in ("BUILDER_BASE", "RUNTIME_BASE"):
        assert f"{name}   base image" in script
    assert '--build-arg "$base=$value"' in script
