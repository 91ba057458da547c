"""Lowering: which standard op, function or kernel computes each norm of a planned graph."""
