"""Targets: the operators that each has, their costs, and what runtimes fuse."""
