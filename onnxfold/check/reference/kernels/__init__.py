"""The kernels, by family; the row of an operator names the module of its kernel."""
