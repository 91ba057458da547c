"""Lowering: the standard operator, function or kernel that computes each norm."""
