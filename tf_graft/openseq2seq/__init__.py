"""OpenSeq2Seq's interface: `optimize_loss`, its optimizers by name, and its summaries."""
