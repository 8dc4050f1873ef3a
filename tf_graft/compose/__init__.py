"""Optimizers that are made of other optimizers: of this package, or of Keras."""
