"""Benchmarks of what users run: ours beside stock Keras', the machine's floor and other libraries.

`areas.py` says what there is to measure, each area's module makes its cases, `turns.py` measures a
case, `results.py` keeps the figures, `sheets.py` and `chart.py` show them.
"""
