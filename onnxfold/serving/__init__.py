"""A server for the Open Inference Protocol (KServe V2) over REST and gRPC.

The protocol's tensors, batching and the ONNX Runtime session are here and know of no server; the
subpackage ``host`` puts them into MLServer and is the only part that imports it.
"""

from onnxfold.serving.settings import NamedModel, ServeSettings

__all__ = ["NamedModel", "ServeSettings"]
