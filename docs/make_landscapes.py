"""Makes the numbers of the toy landscapes: the path of each optimizer at its best learning rate.

    python docs/make_landscapes.py

`data/landscapes.json` has, for each landscape and optimizer, the learning rate whose last ten
points lie lowest on average, the value at the end, and the points of the path.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tf_graft as tg

NUMBERS = Path(__file__).parent / "data" / "landscapes.json"
RATES = [10.0**power for power in np.arange(-4, 1.25, 0.5)]
FIND_THEIR_OWN = ("Prodigy", "COCOB")  # their learning rate is a factor, 1


def rosenbrock(x, y):
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def rastrigin(x, y):
    waves = tf.cos(2 * math.pi * x) + tf.cos(2 * math.pi * y)
    return 20 + x**2 + y**2 - 10 * waves


def quadratic(x, y):
    return (x**2 + 100 * y**2) / 2


LANDSCAPES = {  # function, start, steps
    "rosenbrock": (rosenbrock, (-1.5, 2.0), 200),
    "rastrigin": (rastrigin, (-2.3, 3.4), 200),
    "quadratic": (quadratic, (-2.0, 1.0), 100),
}

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "SGD": lambda: tg.SGD(),
    "SGD, momentum 0.9": lambda: tg.SGD(momentum=0.9),
    "SGD, Nesterov": lambda: tg.SGD(momentum=0.9, nesterov=True),
    "Adagrad": lambda: tg.Adagrad(),
    "Adadelta": lambda: tg.Adadelta(),
    "RMSprop": lambda: tg.RMSprop(),
    "Adam": lambda: tg.Adam(),
    "AMSGrad": lambda: tg.Adam(amsgrad=True),
    "Adamax": lambda: tg.Adamax(),
    "NAdam": lambda: tg.NAdam(),
    "RAdam": lambda: tg.RAdam(),
    "AdaBelief": lambda: tg.AdaBelief(),
    "Yogi": lambda: tg.Yogi(),
    "ADOPT": lambda: tg.ADOPT(),
    "Adan": lambda: tg.Adan(),
    "AdEMAMix": lambda: tg.AdEMAMix(),
    "MARS": lambda: tg.MARS(),
    "Lion": lambda: tg.Lion(),
    "Adafactor": lambda: tg.Adafactor(relative_step=False),
    "Ftrl": lambda: tg.Ftrl(),
    "LARS": lambda: tg.LARS(eeta=0.1),
    "LAMB": lambda: tg.LAMB(),
    "NovoGrad": lambda: tg.NovoGrad(),
    "Prodigy": lambda: tg.Prodigy(),
    "COCOB": lambda: tg.COCOB(),
    "SGDSaI": lambda: tg.SGDSaI(),
    "Schedule-Free SGD": lambda: tg.ScheduleFreeSGD(),
    "Schedule-Free AdamW": lambda: tg.ScheduleFreeAdamW(),
    "Muon": lambda: tg.Muon(),
    "NorMuon": lambda: tg.NorMuon(),
    "Shampoo": lambda: tg.Shampoo(),
    "SOAP": lambda: tg.SOAP(),
    "Cautious(Adam)": lambda: tg.Cautious(tg.Adam()),
    "LARC(SGD)": lambda: tg.LARC(tg.SGD(momentum=0.9)),
    "lookahead(Adam)": lambda: tg.lookahead(tg.Adam()),
    "AdaGraft(Adam, SGD)": lambda: tg.AdaGraft(tg.Adam(1.0), tg.SGD(momentum=0.9)),
}


def paths(
    name: str, landscape: Callable, start: tuple[float, float], steps: int
) -> dict[float, np.ndarray]:
    """An optimizer's path for each learning rate; the point is a kernel of 2 x 1 weights."""
    point = keras.Variable(np.reshape(start, (2, 1)), dtype="float32", name="kernel")
    optimizer = OPTIMIZERS[name]()
    optimizer.build([point])
    variables = [point, *optimizer.variables]
    values = [v.numpy() for v in variables]

    @tf.function
    def taken():
        found = tf.TensorArray(tf.float32, steps)
        for i in tf.range(steps):
            optimizer.minimize(lambda: landscape(point[0, 0], point[1, 0]), [point])
            found = found.write(i, point[:, 0])
        return found.stack()

    found = {}
    for rate in [1.0] if name in FIND_THEIR_OWN else RATES:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        optimizer.learning_rate = rate
        found[rate] = np.concatenate([[start], taken().numpy()])
    return found


def best(landscape: Callable, found: dict[float, np.ndarray]) -> dict:
    """The path that stays lowest at its end."""
    values = {rate: np.array(landscape(*path[-10:].T)) for rate, path in found.items()}
    rate = min(values, key=lambda rate: np.nan_to_num(values[rate].mean(), nan=np.inf))
    return {
        "learning_rate": float(f"{rate:.1g}"),
        "end": float(f"{values[rate][-1]:.2g}"),
        "path": np.round(found[rate], 2).tolist(),
    }


def main() -> None:
    """Makes the paths on all landscapes."""
    made = {}
    for name, (landscape, start, steps) in LANDSCAPES.items():
        made[name] = {
            "steps": steps,
            "paths": {
                optimizer: best(landscape, paths(optimizer, landscape, start, steps))
                for optimizer in OPTIMIZERS
            },
        }
    NUMBERS.write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
