"""What every optimizer stands on; imports nothing of tf_graft above it."""
