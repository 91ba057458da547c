"""A working copy of a model in which every norm stands alone."""
