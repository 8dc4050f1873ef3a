"""The base of objects that hold their arguments and nothing else: schedules and loss scalers."""

import inspect
from typing import TYPE_CHECKING, Any

from tf_graft.core import checks
from tf_graft.core.arguments import declared, signatures
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.types import Config


class Holder:
    """An object that keeps each argument of its constructor in the attribute of the same name.

    A constructor declares the arguments with types such as `AtLeastZero`, calls
    `super().__init__()`, and then checks the arguments against one another. If you set such an
    attribute later, its value is checked as in the constructor.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        declared.declare(cls)
        signatures.document(cls)

    def __init__(self) -> None:
        declared.assign(self)

    def __setattr__(self, name: str, value: Any) -> None:
        cls, option = type(self), inspect.getattr_static(type(self), name, None)
        if vars(self).get(declared.CONSTRUCTED):
            names = inspect.signature(cls).parameters
            held = {n: getattr(self, n) for n in names if hasattr(self, n)}
            if name not in names:
                checks.refuse_misspelt(self, name, names)
            elif held.keys() == names.keys():  # the constructor judges it together with the others
                value = getattr(cls(**{**held, name: value}), name)
        if isinstance(option, Checked):
            vars(self)[name] = option.checked(cls.__name__, value, vars(self))
        else:
            super().__setattr__(name, value)

    def get_config(self) -> Config:
        """Returns the constructor's arguments as plain Python values, lists copied."""
        held = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return {n: list(value) if isinstance(value, list) else value for n, value in held.items()}
