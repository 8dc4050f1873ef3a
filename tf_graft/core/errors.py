"""The errors of this package other than plain `TypeError` and `ValueError`."""


class CheckpointError(ValueError):
    """Saved state does not fit the optimizer that it is loaded into. Nothing was changed."""
