"""The basis of a stream: times a power of two, or rotated, of which norms see nothing."""
