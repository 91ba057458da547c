"""The end of a stop that exceeds its grace period."""

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

# Time after the grace period: for responses that the server is stopping, and the end of runs.
_AFTER_S = 5.0


class LastResort:
    """Ends this process some time after a stop began, whatever its threads are doing.

    Neither a run of a session nor a request that is being read can be interrupted.
    """

    def __init__(self, grace_s: float, folder: Path) -> None:
        self._seconds = min(grace_s + _AFTER_S, threading.TIMEOUT_MAX)
        self._folder = folder
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Start the timer; a second signal changes nothing."""
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._end)
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        """Stop the timer, because the process ends by itself."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        line = "onnxfold: what was under way did not end within the grace period (--grace)\n"
        with suppress(OSError):  # a log that cannot be written stops nothing
            os.write(2, line.encode())
        os._exit(0)
