"""The dependencies of the values that norms read, and the readers that see a shift of them."""
