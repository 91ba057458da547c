"""A working copy of a model in which every norm is a separate operator."""
