"""The places where variables live: replicas, TPUs and meshes."""
