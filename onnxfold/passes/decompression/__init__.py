"""Streams without their last channel get it back, and CRMSNorms are RMSNorms again."""
