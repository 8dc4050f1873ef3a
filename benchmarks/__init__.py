"""Benchmarks of user code: ours next to stock Keras', the machine's floor and other libraries.

`areas.py` lists the areas that can be measured, each area's module makes its cases, `turns.py`
measures a case, `results.py` keeps the figures, `sheets.py` and `chart.py` show them.
"""
