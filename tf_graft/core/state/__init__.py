"""An optimizer's state: how it is created, shown to algorithms, and written."""
