"""The scale of an RMSNorm is deferred past linear layers, or cancels in the next norm."""
