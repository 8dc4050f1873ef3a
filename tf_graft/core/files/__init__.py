"""State in files: what is saved, how it is looked through, and what is refused."""
