"""Runs in one process whose models are made and traced once."""

import contextlib

import keras
import pytest

from tf_graft.training import plots, run

PICTURE = b"\x89PNG, drawn"


@contextlib.contextmanager
def models():
    """Has each run of the context begin with the model that was made first; yields them by config.

    Drawing takes longer than small runs and is left out.
    """
    made, compiled = {}, run.compiled

    def again(config, data, place, *options, **named):
        key = config.model_dump_json(include={"model", "optimizer"})
        if key not in made:
            model = compiled(config, data, place, *options, **named)
            variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
            made[key] = model, [(v, v.numpy()) for v in variables]
        keras.utils.set_random_seed(config.run.seed + 1)  # as is done where a model is made
        model, values = made[key]
        for variable, value in values:
            variable.assign(value)
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "compiled", again)
        patch.setattr(plots.Figure, "savefig", lambda _, to, **__: to.write_bytes(PICTURE))
        try:
            yield made
        finally:
            keras.backend.clear_session()
