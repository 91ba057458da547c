"""The command line: `application` registers the commands, each in a module of its name.

Nothing heavy is imported before a command needs it.
"""

from onnxfold.cli.application import app, main

__all__ = ["app", "main"]
