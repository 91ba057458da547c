"""Models on disk: loading, writing and replacing them; all use of paths is in this package."""

from onnxfold.errors import show, shown_path
from onnxfold.model_io.data_homes import check_destination, check_sharing, file_to_write
from onnxfold.model_io.external import check_unchanged, read_ahead
from onnxfold.model_io.file_tensor import FileTensor
from onnxfold.model_io.load import HAS_EXTERNAL_DATA, data_files, from_proto, load
from onnxfold.model_io.report_files import (
    check_replaceable,
    check_reports_replaceable,
    mark_copy,
    signed,
    write_json,
    write_text,
)
from onnxfold.model_io.save import check_embeddable, materialise, stage, stage_copy
from onnxfold.model_io.staging import OutputFiles, StagedModel

__all__ = [
    "HAS_EXTERNAL_DATA",
    "FileTensor",
    "OutputFiles",
    "StagedModel",
    "check_destination",
    "check_embeddable",
    "check_replaceable",
    "check_reports_replaceable",
    "check_sharing",
    "check_unchanged",
    "data_files",
    "file_to_write",
    "from_proto",
    "load",
    "mark_copy",
    "materialise",
    "read_ahead",
    "show",
    "shown_path",
    "signed",
    "stage",
    "stage_copy",
    "write_json",
    "write_text",
]
