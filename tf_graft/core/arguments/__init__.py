"""Arguments of optimizers: declared, checked, named, written into configs, and shown."""
