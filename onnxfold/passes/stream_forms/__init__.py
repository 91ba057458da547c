"""Other forms of the norms of a stream: CRMSNorm of d - 1 channels, LayerNorm for mean 0."""
