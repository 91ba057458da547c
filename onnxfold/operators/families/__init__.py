"""Algebraic families of operators, which follow fibers through them in both directions."""
