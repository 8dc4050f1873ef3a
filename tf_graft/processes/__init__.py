"""Several processes: a cluster of them on this machine, and `fit` with several workers."""
