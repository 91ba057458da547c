"""LayerNorms become RMSNorms: the means move out of the weights before them."""
