"""A tiny trained vision transformer that is shipped with its held-out data."""
