"""Algebraic families of operators: each follows fibers back and forth through its members."""
