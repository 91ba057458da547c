"""What docs/generate.py writes, page by page."""
