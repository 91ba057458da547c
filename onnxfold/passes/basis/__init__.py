"""The basis of a stream: scaled by a power of two, or rotated, which norms ignore."""
