"""Generate with onnxruntime-genai and onnxfold's kernels: python genai.py FOLDER NEW_FOLDER.

genai loads a custom-op library that genai_config.json names; it must lie in the model's folder (or
in the working directory), so a copy goes there.
"""

import json
import shutil
import sys
from pathlib import Path

import onnxruntime_genai as genai

import onnxfold

source, target = Path(sys.argv[1]), Path(sys.argv[2])
shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.onnx", "*.onnx.data"))
config = json.loads((target / "genai_config.json").read_text())
decoder = config["model"]["decoder"]
file = decoder["filename"]
result = onnxfold.optimize(source / file, target / file, target="kernels")
print(result.report["inspect"]["summary"]["foldable"], "norms folded")
library = shutil.copy(onnxfold.get_library_path(), target)
decoder.setdefault("session_options", {})["custom_ops_library"] = Path(library).name
(target / "genai_config.json").write_text(json.dumps(config, indent=2))


def generated(folder: Path) -> list[int]:
    model = genai.Model(str(folder))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=16)
    generator = genai.Generator(model, parameters)
    generator.append_tokens([1, 2, 3])
    while not generator.is_done():
        generator.generate_next_token()
    return list(generator.get_sequence(0))


print("same tokens:", generated(source) == generated(target))
