"""The page of a schedule shows its example, drawn."""

import doctest
import inspect
import re
import sys
from pathlib import Path

import keras
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = "api/schedules/drawn"
NUMBER = re.compile(r"\d+")


def schedule_of(cls):
    """Returns the schedule that the example in a class' docstring makes, and its last step."""
    *made, shown = doctest.DocTestParser().get_examples(inspect.getdoc(cls))
    names = dict(vars(sys.modules[cls.__module__]))
    for example in made:
        exec(example.source, names)
    schedules = [value for value in names.values() if isinstance(value, cls)]
    steps = shown.source.partition(" for step in ")[2]
    return schedules[-1:], max(map(int, NUMBER.findall(steps)), default=0)


def draw(app, what, name, cls, options, lines):
    """Puts the picture of a schedule before the first section of its docstring."""
    if what != "class" or not issubclass(cls, keras.optimizers.schedules.LearningRateSchedule):
        return
    found, last = schedule_of(cls)
    if not last:
        return
    (schedule,) = found
    figure, axis = plt.subplots(figsize=(5, 2))
    steps = range(last + 1)
    axis.plot(steps, [float(schedule(step)) for step in steps], marker="o", ms=3, lw=1)
    axis.set(xlabel="step", ylim=(0, None))
    file = Path(app.srcdir) / FOLDER / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, bbox_inches="tight", dpi=120)
    plt.close(figure)
    section = next(i for i, line in enumerate(lines) if re.fullmatch(r"(Args|Example):", line))
    image = f".. image:: /{FOLDER}/{file.name}"
    said = f"   :alt: The schedule of the example, from step 0 to step {last}."
    lines[section:section] = [image, said, "   :width: 420px", ""]


def setup(app):
    app.connect("autodoc-process-docstring", draw, priority=300)  # before code is set off
    return {"parallel_read_safe": True}
