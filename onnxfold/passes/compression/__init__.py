"""Streams of mean 0 are stored without their last channel, and their norms are CRMSNorms."""
