"""Linear layers behind CRMSNorms read d - 1 channels, and again d."""
