"""A server for the Open Inference Protocol (KServe V2) over REST and gRPC.

This package has the protocol's tensors, batching and the ONNX Runtime session, independent of a
server; the subpackage ``host`` connects them to MLServer and is the only one that imports it.
"""

from onnxfold.serving.settings import NamedModel, ServeSettings

__all__ = ["NamedModel", "ServeSettings"]
