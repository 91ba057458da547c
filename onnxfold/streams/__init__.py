"""What the values that norms read follow from, and who sees a shift or a missing mean of them."""
