"""Guarantees of the algorithm itself: executions, rows and precisions."""

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tf_graft.core import contract
from tf_graft.core.optimizer import Optimizer
from tf_graft.grafting import AdaGraft
from tf_graft.testing.trials import (
    SHAPES,
    TABLE,
    Skipped,
    Trial,
    dense,
    gradients,
    rows_of,
    same,
    skip_unless_steps_alone,
    weights,
    with_rows,
)

Make = Callable[..., Optimizer]
ROWS = [4, 1, 4, 2]  # with one that repeats
UPDATES = 60  # beyond the first steps, in which some algorithms follow another rule
TOUCHED, UNTOUCHED = [1, 2, 4], [0, 3, 5]


def purity(make: Make) -> str:
    """`step` is pure, and its results have the right structure, shapes and dtypes."""
    trial = Trial(make())
    paths = trial.model
    trial.optimizer.build(list(paths.values()))
    contract.check_fully(trial.optimizer, paths)
    return f"a trace of step for {len(SHAPES)} shapes"


def descent(make: Make) -> str:
    """The optimizer descends a sum of squares and a curved valley, and stays finite."""
    squares, valley = _losses(make, _squares), _losses(make, _valley)
    for update, loss in enumerate(squares):
        if not np.isfinite(loss):
            raise AssertionError(f"after update {update} weights are infinite or NaN")
    found = [
        ("a sum of squares", squares[0], squares[-1]),
        ("Rosenbrock's function", valley[0], np.nanmin(valley[1:])),
    ]
    for what, first, last in found:
        if not last < first:
            raise AssertionError(
                f"{what} rises from {first:.4g} to {last:.4g} in {UPDATES} updates; what `step` "
                "returns is added to the weights: is its sign that of -g?"
            )
    fell = ", ".join(f"{what} from {first:.4g} to {last:.4g}" for what, first, last in found)
    return f"{UPDATES} updates: {fell}"


def _losses(make: Make, loss: Callable[[dict[str, tf.Tensor]], tf.Tensor]) -> list[float]:
    """Returns the loss before each update; the table is read row by row."""
    trial = Trial(make())
    variables = list(trial.model.values())
    trial.optimizer.build(variables)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = tf.gather(trial.model[TABLE].value, [*range(6), *range(6)])  # each row twice
            read = {path: tf.convert_to_tensor(v) for path, v in trial.model.items()}
            result = loss(read | {TABLE: rows})
        trial.optimizer.apply(tape.gradient(result, [v.value for v in variables]), variables)
        return result

    return [float(step()) for _ in range(UPDATES)]


def _squares(w: dict[str, tf.Tensor]) -> tf.Tensor:
    """A sum of squares with its minimum at weights of one."""
    return tf.add_n([tf.nn.l2_loss(x - 1.0) for x in w.values()])


def _valley(w: dict[str, tf.Tensor]) -> tf.Tensor:
    """Rosenbrock's function of each weight and the bias, with a gentle slope."""
    return tf.add_n([tf.reduce_mean((1 - x) ** 2 + (w["scale"] - x**2) ** 2) for x in w.values()])


def functions(make: Make) -> str:
    """`tf.function` computes the same as eager mode."""
    eager = Trial(make()).run(with_rows(ROWS)).state()
    return same("eager", Trial(make()).run(with_rows(ROWS), tf.function).state(), eager)


def compiled(step: Callable[..., None]) -> Callable[..., None]:
    """Returns the step compiled by XLA."""
    return tf.function(step, jit_compile=True)


def xla(make: Make) -> str:
    """A step compiled by XLA computes the same."""
    own = Trial(make(jit_compile=True)).run(gradients()).state()
    with _likely_cause(
        "XLA rounds otherwise: does step take a sign, a comparison or a quotient of numbers that "
        "may be near zero?"
    ):
        whole = same("jit_compile=True", own, Trial(make()).run(gradients()).state())
    eager = Trial(make()).run(with_rows(ROWS)).state()
    with _likely_cause(
        "dense gradients agree, so step looks across rows, of which XLA adds some that are zero: "
        "declare rowwise = False"
    ):
        by_rows = same("eager", Trial(make()).run(with_rows(ROWS), compiled).state(), eager)
    return f"{by_rows}; {whole}"


@contextlib.contextmanager
def _likely_cause(cause: str) -> Iterator[None]:
    """Adds a likely cause to a failure inside the context."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}; {cause}") from None


def padding(make: Make) -> str:
    """Rows of zeros, which XLA adds, change nothing for other rows, in a graft too."""
    skip_unless_steps_alone(make)

    def grafted() -> Trial:
        return Trial(AdaGraft(make(name="magnitude"), make(name="direction")))

    eager = grafted().run(with_rows(ROWS)).state()
    return same("eager", grafted().run(with_rows(ROWS), compiled).state(), eager)


def order(make: Make) -> str:
    """The order in which the variables are given does not matter."""
    values = dict(reversed(weights().items()))
    backward = Trial(make(), values=values).run(gradients()).state()
    return same("the other order", backward, Trial(make()).run(gradients()).state())


def repeated_rows(make: Make) -> str:
    """A row that occurs twice counts as one row with the sum of its gradients."""
    steps = with_rows(ROWS)
    summed = [
        {**whole, TABLE: step[TABLE]._replace(values=whole[TABLE][TOUCHED], ids=TOUCHED)}
        for step, whole in zip(steps, dense(steps), strict=True)
    ]
    once = Trial(make()).run(summed).state()
    return same("rows summed before", Trial(make()).run(steps).state(), once)


def exact_rows(make: Make) -> str:
    """With `sparse="exact"` a row-sparse gradient acts like the equal dense gradient."""
    steps = with_rows(ROWS, UNTOUCHED)
    exact = Trial(make(sparse="exact")).run(steps).state()
    return same("the dense gradient", exact, Trial(make()).run(dense(steps)).state())


def lazy_rows(make: Make) -> str:
    """With `sparse="lazy"` the weights and slots of untouched rows stay as they are."""
    skip_unless_steps_alone(make)
    optimizer = make(sparse="lazy")
    trial = Trial(optimizer).run(gradients(1))
    if optimizer.whole(TABLE):
        raise Skipped("whole says that rows act as the dense gradient")
    before = rows_of(trial.state(), UNTOUCHED)
    trial.run(with_rows(ROWS))
    return same("untouched rows before", rows_of(trial.state(), UNTOUCHED), before, ulps=0)


def rowwise(make: Make) -> str:
    """An optimizer declared `rowwise` updates a row from that row alone."""
    optimizer, steps = make(), with_rows(ROWS)
    trial = Trial(optimizer).run(steps)
    if not optimizer.rowwise or optimizer.whole(TABLE):
        raise Skipped("rowwise is False")
    touched = np.isin(np.arange(SHAPES[TABLE][0]), TOUCHED)[:, None]
    others = [  # the same gradients in the touched rows, and some in the others
        {**step, TABLE: np.where(touched, step[TABLE], other[TABLE])}
        for step, other in zip(dense(steps), gradients(), strict=True)
    ]
    alone = rows_of(trial.state(), TOUCHED)
    return same("rows among others", alone, rows_of(Trial(make()).run(others).state(), TOUCHED))


def idle(make: Make) -> str:
    """An optimizer declared `idle` changes nothing on a zero gradient."""
    optimizer = make()
    if not optimizer.idle:
        raise Skipped("idle is False")
    trial = Trial(optimizer).run(gradients(2))
    before = trial.state()
    trial.run([{path: 0 * g for path, g in gradients(1)[0].items()}])
    counted = {"optimizer/iteration": trial.state()["optimizer/iteration"]}
    return same("before a zero gradient", trial.state(), before | counted, ulps=0)


def half_precision(make: Make) -> str:
    """Half-precision variables are updated in float32, in a master copy."""
    full = Trial(make()).run(gradients())
    half = Trial(make(), "bfloat16").run(gradients())
    masters = {path: half.state()[f"optimizer/{path}/master"] for path in SHAPES}
    rounded = {path: tf.cast(w, "bfloat16").numpy() for path, w in full.weights().items()}
    return "; ".join(
        [
            same("masters and float32", masters, full.weights()),
            same("bfloat16", half.weights(), rounded, ulps=1),
        ]
    )


def double_precision(make: Make) -> str:
    """float64 variables are updated in float64."""
    full = Trial(make()).run(gradients())
    double = Trial(make(), "float64").run(gradients())
    rounded = {path: w.astype("float32") for path, w in double.weights().items()}
    return same("float32", rounded, full.weights(), ulps=1000)


GUARANTEES = (
    *(
        purity,
        descent,
        functions,
        xla,
        padding,
        order,
        repeated_rows,
        exact_rows,
        lazy_rows,
        rowwise,
        idle,
    ),
    *(half_precision, double_precision),
)
