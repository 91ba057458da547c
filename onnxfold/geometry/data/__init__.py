"""Data to measure on: arrays, text, tables, images, or made-up inputs, as shards of rows."""

from onnxfold.geometry.data.choose import open_data
from onnxfold.geometry.data.input_signature import InputSignature
from onnxfold.geometry.data.shards import Batch, Data, DataOptions, Shard

__all__ = ["Batch", "Data", "DataOptions", "InputSignature", "Shard", "open_data"]
