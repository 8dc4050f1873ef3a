"""Optimizers that contain other optimizers, of this package or of Keras."""
