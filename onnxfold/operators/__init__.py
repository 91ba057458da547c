"""The operator table: the effect of each operator on means, channels and factors."""
