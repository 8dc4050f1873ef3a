"""State in files: saving it, checking it, and refusing state that does not fit."""
