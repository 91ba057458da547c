"""Weights before LayerNorms are shifted: what a LayerNorm does not see may be anything."""
