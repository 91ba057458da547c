"""The geometry of normalization over real data: what every norm reads and writes, streamed."""
