"""Programs that tests run in processes of their own: `python -m programs.NAME` in `tests`."""
