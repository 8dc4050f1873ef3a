"""What an optimizer remembers of each variable, how it is shown to algorithms, and written."""
