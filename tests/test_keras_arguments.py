"""Arguments of Keras' own optimizers and schedules, which Keras does not check."""

import inspect
import re

import keras
import numpy as np
import pytest

import tf_graft as tg
from tf_graft.core import keras_contract
from tf_graft.core.arguments import keras_arguments, options

COMMON = {*options.Common.__annotations__, "learning_rate", "name", "kwargs"}
OPTIMIZERS = [
    cls
    for cls in vars(keras.optimizers).values()
    if inspect.isclass(cls)
    and issubclass(cls, keras.optimizers.Optimizer)
    and cls is not keras.optimizers.Optimizer
    and not keras_contract.own_way(cls)
]
SCHEDULES = [x for x in vars(keras.optimizers.schedules).values() if inspect.isclass(x)]


@pytest.mark.parametrize("cls", [*OPTIMIZERS, *SCHEDULES], ids=lambda cls: cls.__name__)
def test_every_argument_has_a_check(cls):
    own = set(inspect.signature(cls).parameters) - COMMON
    assert own <= set(keras_arguments.CHECKS)
    defaults = {k: p.default for k, p in inspect.signature(cls).parameters.items() if k in own}
    given = {k: v for k, v in defaults.items() if v is not inspect.Parameter.empty}
    keras_arguments.check(cls.__name__, given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: keras.optimizers.Lion(beta_1=np.nan),
            "Lion(beta_1=nan): beta_1 must lie in [0, 1].",
        ),
        (
            lambda: keras.optimizers.Nadam(epsilon=-1.0),
            "Nadam(epsilon=-1.0): epsilon must be finite",
        ),
        (
            lambda: keras.optimizers.Adamax(beta_2=1.0),
            "Adamax(beta_2=1.0): beta_2 must lie in [0, 1).",
        ),
        (lambda: keras.optimizers.Ftrl(beta=np.inf), "Ftrl(beta=inf): beta must be finite"),
        (lambda: keras.optimizers.Ftrl(-5.0), "learning_rate=-5.0): learning_rate must be finite"),
        (lambda: keras.optimizers.Lion(weight_decay=-0.1), "Lion(weight_decay=-0.1): weight_decay"),
    ],
)
@pytest.mark.parametrize("use", [tg.wrap, tg.LARC])
def test_an_optimizer_whose_arguments_make_no_sense_is_not_wrapped(use, make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        use(make())


def test_what_keras_takes_is_taken():
    assert tg.wrap(keras.optimizers.Lion(beta_1=1.0)).optimizer.beta_1 == 1.0
    assert tg.wrap(keras.optimizers.Muon(muon_b=-4.0)).optimizer.muon_b == -4.0
    momentum = keras.Variable(0.9)
    assert tg.wrap(keras.optimizers.Nadam(beta_1=momentum)).optimizer.beta_1 is momentum


@pytest.mark.usefixtures("keras_alone_has_ftrl")
def test_a_config_is_checked_before_keras_sees_it():
    assert float(tg.get({"name": "ftrl", "learning_rate": 1}).learning_rate) == 1.0
    with pytest.raises(TypeError, match=r"^Ftrl\(betta=...\): .* did you mean beta\?"):
        tg.get({"name": "ftrl", "betta": 0.5})
    with pytest.raises(ValueError, match=r"^get\('LossScaleOptimizer'\): .* mixed_precision"):
        tg.get({"name": "LossScaleOptimizer", "inner_optimizer": "sgd"})
    with pytest.raises(ValueError, match=r"^get\('larc'\): it also needs 'optimizer'\."):
        tg.get({"name": "larc"})
