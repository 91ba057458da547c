"""The command ``onnxfold``, also as ``python -m onnxfold``."""

import sys

from onnxfold.errors import CommandInterruptedError, OnnxfoldError


def run() -> None:
    """Run the command line in a process of its own, but for the server, which has its signals."""
    try:
        _run()
    except KeyboardInterrupt:  # before the command has begun, as in an import
        sys.exit(CommandInterruptedError.exit_code)


def _run() -> None:
    from onnxfold.cli.guard import guarded

    if "serve" in sys.argv[1:]:
        _command_line()
        return
    try:
        guarded(_command_line)
    except OnnxfoldError as error:
        from onnxfold.cli.application import fail

        fail(error)


def _command_line() -> None:
    # Here, so that what waits is small, and shares no memory that the work would have to copy.
    from onnxfold.cli.application import main

    main()


if __name__ == "__main__":
    run()
