"""Random optimizers on random problems in random places, each held against float64 NumPy.

A draw is a tree of up to three wrappers, common options on either side of each, variables of one
precision with rows that no gradient touches, an execution, and a way of saving in mid-run. It comes
from one number, so that a draw that was wrong is made again by `python tests/draws --first N`.
"""
