"""The evidence for what the package claims: long checks, in parts that are made one by one.

`suites.py` lists the checks and their parts. `running.py` makes a part in a process, `ledger.py`
keeps how it ended, with commit, version and date, and `changes.py` says whether the part's code has
changed since. `python tests/evidence` shows the state of all, and goes on where it was.
"""
