"""Gamma and beta of a norm move into the downstream linear layers."""
