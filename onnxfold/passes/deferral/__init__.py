"""The scale of an RMSNorm waits behind linear layers, or cancels in the next norm."""
