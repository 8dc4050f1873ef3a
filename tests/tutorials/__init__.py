"""TensorFlow's and Keras' tutorials as short programs, with one import changed.

Each module has the shape of the tutorial that its docstring names, on small data, and

    run(optimizers): trains with `optimizers.Adam` and the like, `optimizers` being tf_graft or
        keras.optimizers, and returns losses;
    right(optimizers), where stock Keras gets `run` wrong: the same in a form it gets right;
    STOCK_RAISES, where it raises;
    TOLERANCE: by how much the losses may differ, one of `tolerances`, which has the reasons.

`python -m tutorials.comparison NAME` in the folder `tests` shows the losses.
"""
