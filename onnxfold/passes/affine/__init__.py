"""Gamma and beta of a norm move into the linear layers behind it."""
