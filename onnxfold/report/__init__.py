"""What optimize and inspect tell: JSON, the table on the terminal, the HTML page."""

from __future__ import annotations

__all__: list[str] = []
