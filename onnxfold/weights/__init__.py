"""Edits of weights as arrays: centering, scaling, shifting, computed while they are written."""
