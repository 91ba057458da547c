"""Messages of two Triton extensions that MLServer's gRPC service lacks.

They are built in a pool of their own, because the generated modules of other packages register
messages of the same names, which a process may have only once. Source: grpc_service.proto and
model_config.proto (triton-inference-server/common), the fields that this server fills.
"""

from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
)

SERVICE = "inference.GRPCInferenceService"
_DURATIONS = (
    *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"),
    *("cache_hit", "cache_miss"),
)
# Each field: its name, number and type; '*' for a list. Enums have their own table.
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "ModelConfigRequest": (("name", 1, "string"), ("version", 2, "string")),
    "ModelConfigResponse": (("config", 1, "ModelConfig"),),
    "ModelConfig": (
        ("name", 1, "string"),
        ("platform", 2, "string"),
        ("max_batch_size", 4, "int32"),
        ("input", 5, "*ModelInput"),
        ("output", 6, "*ModelOutput"),
        ("instance_group", 7, "*ModelInstanceGroup"),
        ("dynamic_batching", 11, "ModelDynamicBatching"),
        ("backend", 17, "string"),
    ),
    "ModelInput": (
        ("name", 1, "string"),
        ("data_type", 2, "DataType"),
        ("dims", 4, "*int64"),
        ("reshape", 5, "ModelTensorReshape"),
    ),
    "ModelOutput": (
        ("name", 1, "string"),
        ("data_type", 2, "DataType"),
        ("dims", 3, "*int64"),
        ("reshape", 5, "ModelTensorReshape"),
    ),
    "ModelTensorReshape": (("shape", 1, "*int64"),),
    "ModelInstanceGroup": (("count", 2, "int32"), ("kind", 4, "Kind")),
    "ModelDynamicBatching": (("max_queue_delay_microseconds", 2, "uint64"),),
    "ModelStatisticsRequest": (("name", 1, "string"), ("version", 2, "string")),
    "ModelStatisticsResponse": (("model_stats", 1, "*ModelStatistics"),),
    "ModelStatistics": (
        ("name", 1, "string"),
        ("version", 2, "string"),
        ("last_inference", 3, "uint64"),
        ("inference_count", 4, "uint64"),
        ("execution_count", 5, "uint64"),
        ("inference_stats", 6, "InferStatistics"),
    ),
    "InferStatistics": tuple(
        (name, number, "StatisticDuration") for number, name in enumerate(_DURATIONS, 1)
    ),
    "StatisticDuration": (("count", 1, "uint64"), ("ns", 2, "uint64")),
}
_ENUMS = {
    "DataType": (
        *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"),
        *("TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32"),
        *("TYPE_FP64", "TYPE_STRING", "TYPE_BF16"),
    ),
    "Kind": ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"),
}
_Field = descriptor_pb2.FieldDescriptorProto


def message(name: str) -> Any:
    """Return the class of a message."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"inference.{name}"))


def config_response(document: dict[str, Any]) -> Any:
    """Return a ModelConfigResponse from a JSON document, with the fields that it has."""
    filled = message("ModelConfigResponse")()
    json_format.ParseDict({"config": document}, filled, ignore_unknown_fields=True)
    return filled


def statistics_response(document: dict[str, Any]) -> Any:
    """Return a ModelStatisticsResponse of a JSON document."""
    filled = message("ModelStatisticsResponse")()
    json_format.ParseDict(document, filled, ignore_unknown_fields=True)
    return filled


def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="extensions.proto", package="inference", syntax="proto3"
    )
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for field in fields:
            described.field.append(_field(*field))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _field(name: str, number: int, kind: str) -> Any:
    listed, kind = kind.startswith("*"), kind.removeprefix("*")
    field = _Field(name=name, number=number)
    field.label = _Field.LABEL_REPEATED if listed else _Field.LABEL_OPTIONAL
    if kind in _MESSAGES or kind in _ENUMS:
        field.type = _Field.TYPE_MESSAGE if kind in _MESSAGES else _Field.TYPE_ENUM
        field.type_name = f".inference.{kind}"
    else:
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
    return field


_POOL = _pool()
