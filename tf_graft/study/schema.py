"""The schema of a study: its tasks, and the arms that it compares on each of them."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from tf_graft.training.schema import Name, Section, Seed

PartName = Annotated[str, Field(pattern=r"^\w[\w.\-]*$", max_length=100)]
OF_A_RUN = {"run.seed": "its seeds are those of the study", "run.dir": "its folder is the study's"}


def _settable(key: str) -> str:
    """Refuses a key of a config that a study gives each of its runs."""
    if key in OF_A_RUN:
        raise ValueError(f"{key} cannot be set for a run: {OF_A_RUN[key]}")
    return key


ConfigKey = Annotated[str, Field(pattern=r"^\w+(\.\w+)*$"), AfterValidator(_settable)]
Values = dict[ConfigKey, Any]  # checked by the configs that they are written into


def merged(*parts: Values) -> Values:
    """Joins values that are applied in order; a key that is given again moves to its last place."""
    joined: Values = {}
    for values in parts:
        for key, value in values.items():
            joined.pop(key, None)  # else it would come before a section that replaces it
            joined[key] = value
    return joined


class Task(Section):
    """What all arms train."""

    config: Name
    """a config, relative to this file"""
    set: Values = Field({})
    """values of it to change"""


class Arm(Section):
    """Runs that differ only in their seeds, and in the value of a sweep."""

    config: Name | None = None
    """another config than the task's, relative to this file"""
    set: Values = Field({})
    """values of the config: `optimizer.name: adam`; in a text, `{run}` is the folder of the run of
    `after` with the same seed, `{first_run}` that with the first seed, and `{value}` the value that
    the sweep of `after` chose"""
    sweep: Annotated[
        dict[ConfigKey, Annotated[list[Any], Field(min_length=1, max_length=1_000)]],
        Field(max_length=1),
    ] = Field({})
    """a key of the config, and the values to try; the first seed chooses the best of them"""
    after: PartName | None = None
    """an arm whose runs are made first"""
    like: PartName | None = None
    """an earlier arm, whose values this one has where it gives none; `set` adds to them"""

    def with_those_of(self, other: "Arm") -> "Arm":
        """Returns the arm, with the values of another arm where it gives none."""
        mine = {name: getattr(self, name) for name in self.model_fields_set}
        return other.model_copy(update=mine | {"set": merged(other.set, self.set)})


class Study(Section):
    """A whole study."""

    tasks: Annotated[dict[PartName, Task], Field(min_length=1, max_length=100)]
    """what is trained, by name"""
    set: Values = Field({})
    """values that all runs change"""
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=1_000)] = Field([0, 1, 2])
    """the seed of each run of an arm"""
    metric: Annotated[str, Field(pattern=r"^\w+$")] = "test_loss"
    """the number in a run's `summary.json` by which arms are compared"""
    higher_is_better: bool = False
    """whether larger numbers are better, as accuracies are"""
    arms: Annotated[dict[PartName, Arm], Field(min_length=1, max_length=1_000)]
    """what is compared, by name"""

    @field_validator("arms")
    @classmethod
    def _values_differ(cls, arms: dict[str, Arm]) -> dict[str, Arm]:
        for name, arm in arms.items():
            for values in arm.sweep.values():
                if len(values) == 1:
                    raise ValueError(f"arms: the sweep of '{name}' holds one value; use set")
                if repeated := [v for i, v in enumerate(values) if v in values[:i]]:
                    raise ValueError(f"arms: the sweep of '{name}' holds {repeated[0]!r} twice")
        return arms

    @field_validator("seeds")
    @classmethod
    def _differ(cls, seeds: list[int]) -> list[int]:
        if repeated := [seed for i, seed in enumerate(seeds) if seed in seeds[:i]]:
            raise ValueError(f"seeds holds {repeated[0]} twice")
        return seeds

    @model_validator(mode="after")
    def _arms_follow_earlier_ones(self) -> "Study":
        known: dict[str, Arm] = {}
        for name, arm in self.arms.items():
            for how, other in (("after", arm.after), ("like", arm.like)):
                if other is not None and other not in known:
                    raise ValueError(f"arms: '{name}' is {how} '{other}', which is no earlier arm")
            known[name] = arm.with_those_of(known[arm.like]) if arm.like else arm
        self.arms = known
        return self
