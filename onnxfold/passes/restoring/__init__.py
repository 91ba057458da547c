"""RMSNorms become LayerNorms: where their inputs have mean 0 the two are one function."""
