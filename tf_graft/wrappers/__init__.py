"""Optimizers made of optimizers."""

from tf_graft.wrappers.adagraft import AdaGraft

__all__ = ["AdaGraft"]
