"""How names are written and compared; needs no TensorFlow."""

import re

PACKAGE = "tf_graft>"  # Keras' prefix for the registered name of a class of this package


def plain(name: str) -> str:
    """Returns the form in which names are compared.

    Case, underscores and Keras' prefix for this package do not matter.

    Example:
        >>> plain("tf_graft>LogMaxScaler") == plain("log_max_scaler")
        True
    """
    return name.removeprefix(PACKAGE).replace("_", "").lower()


def snake_case(name: str) -> str:
    """Returns a class's name as configs write it.

    Example:
        >>> [snake_case(name) for name in ("AdaGraft", "FixedLR", "AdamW", "SGD")]
        ['ada_graft', 'fixed_lr', 'adamw', 'sgd']
    """
    return re.sub(r"(?<=[a-z])([A-Z])(?=[A-Za-z])", r"_\1", name).lower()
