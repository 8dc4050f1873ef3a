"""The errors of this package that are no plain `TypeError` or `ValueError`."""


class CheckpointError(ValueError):
    """Saved state does not fit the optimizer that it is loaded into. Nothing was changed."""
