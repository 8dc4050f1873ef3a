"""Training runs from a config: `tf-graft train configs/digits_adagrad.yaml`."""
