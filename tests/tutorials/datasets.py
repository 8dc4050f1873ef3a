"""What the programs train on: scikit-learn's digits, or made up."""

import numpy as np


def digits(count=512, side=None):
    """Images of handwritten digits in [0, 1] and labels: (training, 128 for tests).

    Flat, or `side` by `side` with a channel, the digit in the middle.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype("float32")[: count + 128], y.astype("int64")[: count + 128]
    if side is not None:
        margin = (side - 8) // 2
        around = ((0, 0), (margin, margin), (margin, margin))
        x = np.pad(x.reshape(-1, 8, 8), around)[..., np.newaxis]
    return (x[:count], y[:count]), (x[count:], y[count:])


def sentences(count=256, length=16, words=24):
    """Sequences of word numbers, the first words most often. Of every 32 each word is in one.

    The labels say whether a sequence is rich in the first two words.
    """
    random = np.random.default_rng(0)
    frequencies = 1 / np.arange(1, words + 1)
    x = random.choice(words, (count, length), p=frequencies / frequencies.sum())
    for start in range(0, count, 32):
        x[start : start + 32, :-1].flat[random.permutation(32 * (length - 1))[:words]] = np.arange(
            words
        )
    return x.astype("int32"), ((x < 2).sum(1) > 0.4 * length).astype("float32")


def waves(count=400):
    """A time series of three features, of which the first is to be foretold."""
    time = np.arange(count)
    noise = np.random.default_rng(0).normal(0, 0.05, count)
    series = [np.sin(time / 5) + noise, np.cos(time / 5), np.sin(time / 25)]
    return np.stack(series, axis=-1).astype("float32")
