"""MLServer as the host: its registry, health, metrics and gRPC, with our tensors and sessions.

Importing this package needs the extra `onnxfold[serve]`.
"""
