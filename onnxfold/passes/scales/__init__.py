"""Per-channel scales and shifts move into the upstream linear layer."""
