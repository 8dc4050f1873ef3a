"""What tests share: samples, oracles, cells of the matrix, and how processes are run."""
