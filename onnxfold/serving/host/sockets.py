"""The kernel's view of the connections of a port, and how many it allows."""

import sys
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_OPEN = ("01", "08")  # ESTABLISHED and CLOSE_WAIT


def allow_connections() -> None:
    """Allow this process as many open files as its user may have; each connection is one.

    Shells allow 1024 for select(2), which nothing here uses.
    """
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def unsent(port: int) -> bool:
    """Return whether a connection to a local port has bytes that its peer has not yet received.

    Known on Linux (proc(5), /proc/net/tcp); False elsewhere.
    """
    return any(_sends(line.split(), port) for table in _TABLES for line in _lines(table))


def _lines(table: Path) -> list[str]:
    return table.read_text().splitlines()[1:] if table.exists() else []


def _sends(fields: list[str], port: int) -> bool:
    """Read a row: its number, local address, remote address, state, both queues, ..."""
    _, local, _, state, queues, *_ = fields
    return (
        int(local.rpartition(":")[2], 16) == port
        and state in _OPEN
        and int(queues.partition(":")[0], 16) > 0
    )
