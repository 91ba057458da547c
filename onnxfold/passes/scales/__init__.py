"""Per-channel scales and shifts move into the linear layer before them."""
