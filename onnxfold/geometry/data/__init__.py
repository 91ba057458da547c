"""Data to measure on: arrays, text, tables, images, or made-up inputs, as shards of rows."""

from __future__ import annotations

from onnxfold.geometry.data.base import Batch, Data, DataOptions, Shard
from onnxfold.geometry.data.choose import open_data
from onnxfold.geometry.data.signature import Signature

__all__ = ["Batch", "Data", "DataOptions", "Shard", "Signature", "open_data"]
