"""Data to run models on: arrays, text, tables, images, or synthetic inputs, as shards of rows."""

from onnxfold.inputs.data.samples import DataSamples, open_data, read_samples
from onnxfold.inputs.data.shards import Batch, Data, DataOptions, InputSignature, Shard

__all__ = [
    "Batch",
    "Data",
    "DataOptions",
    "DataSamples",
    "InputSignature",
    "Shard",
    "open_data",
    "read_samples",
]
