"""The core that every optimizer is built on; it imports nothing of tf_graft outside of itself."""
