"""Measurements: each module prints a table and keeps its rows in benchmarks/results."""
