"""The stages through which a gradient reaches the variables; `engine` calls the others."""
