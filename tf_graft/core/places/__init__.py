"""Where variables live: replicas, TPUs, meshes, and what is read and summed there."""
