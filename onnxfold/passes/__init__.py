"""The passes, in the order of the pipeline: prepare, affine, scales, centring, lower."""
