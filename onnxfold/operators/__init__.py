"""The operator table: what each operator does to means, channels and factors."""
