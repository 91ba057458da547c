"""The passes, in the order of the pipeline: prepare, scales, affine, centering, lower."""
