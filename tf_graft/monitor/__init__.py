"""What happens to each variable during training, as a callback."""

from tf_graft.monitor.monitor import Monitor

__all__ = ["Monitor"]
