"""Arithmetic on tensors and on the rows of row-sparse gradients."""
