"""The command ``onnxfold``, also as ``python -m onnxfold``."""

import sys

from onnxfold.errors import CommandInterruptedError, OnnxfoldError


def run() -> None:
    """Run the command line in a separate process, except the server, which handles signals."""
    try:
        _run()
    except KeyboardInterrupt:  # before the command has started, as in an import
        sys.stderr.write(f"onnxfold: {CommandInterruptedError()}\n")
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
    # Imported here, so that the waiting process is small, and shares no memory that the work would
    # copy.
    from onnxfold.cli.application import main

    main()


if __name__ == "__main__":
    run()
