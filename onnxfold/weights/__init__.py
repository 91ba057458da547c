"""Edits of weights as arrays: centring, scaling, shifting, computed while they are written."""
