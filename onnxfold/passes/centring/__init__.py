"""LayerNorms become RMSNorms: the means move out of the upstream weights."""
