"""Norms whose scales wait behind linear layers get them back: what deferral does, undone."""
