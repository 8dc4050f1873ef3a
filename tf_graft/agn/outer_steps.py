"""Two steps in one: fast weights take steps, and slow weights follow them now and then."""

from typing import Any, Unpack

from tf_graft.agn.agn import AGN
from tf_graft.core import checks
from tf_graft.core.arguments.options import Common
from tf_graft.optimizers import SGD


def lookahead(
    optimizer: Any,
    sync_period: int = 6,
    slow_step_size: float = 0.5,
    reset_fast_state: bool = False,
    **common: Unpack[Common],
) -> AGN:
    """Makes Lookahead: k steps forward, one step back.

    ```
    w <- w + step(g)                                 `optimizer`, the fast weights
    every `sync_period` steps:
        c <- c + slow_step_size * (w - c)            the slow weights
        w <- c
    ```

    It is an `AGN` whose center is the slow weights. During training the model holds the fast
    weights; when `fit` ends it holds the slow ones. The callback `CenterWeights` evaluates and
    saves the slow weights in `fit`, and `centered()` does so elsewhere.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        sync_period: the number of fast steps for one slow step, at least 1. Default 6.
        slow_step_size: how far the slow weights go, above 0; usually below 1. Default 0.5.
        reset_fast_state: whether the optimizer starts anew after each slow step. Default False.
        **common: see `AGN`.

    Returns:
        An `AGN` with all its methods; on several replicas each has fast weights of its own.

    Example:
        >>> import tensorflow as tf
        >>> w, optimizer = tf.Variable([4.0]), lookahead(SGD(1.0), sync_period=2)
        >>> for _ in range(2):  # to 3, and to 2, from where it is half the way back to 4
        ...     optimizer.apply([tf.constant([1.0])], [w])
        >>> w.numpy().tolist()
        [3.0]

    Reference:
        Zhang et al., 2019, "Lookahead optimizer: k steps forward, 1 step back" (arXiv 1907.08610),
        algorithm 1.
    """
    size = checks.number("lookahead", "slow_step_size", slow_step_size, 0, open_low=True)
    reset = checks.boolean("lookahead", "reset_fast_state", reset_fast_state)
    return AGN(
        optimizer,
        communication_period=checks.integer("lookahead", "sync_period", sync_period, 1),
        center_optimizer=SGD(size),
        mode="difference",
        reset_local_state=reset,
        **common,
    )


def diloco(
    optimizer: Any,
    communication_period: int = 100,
    outer_learning_rate: float = 0.7,
    outer_momentum: float = 0.9,
    **common: Unpack[Common],
) -> AGN:
    """Makes DiLoCo: workers train alone for some steps, then a Nesterov step moves the center.

    ```
    w <- w + step(g)                                 `optimizer`, on each worker
    every `communication_period` steps:
        d = mean of c - w over the workers
        m <- outer_momentum * m + d
        c <- c - outer_learning_rate * (d + outer_momentum * m)
        w <- c
    ```

    It is an `AGN` whose center is `c`; see `AGN` for what the model holds, evaluates and saves.
    With one worker it is SNOO (a Nesterov step every k steps); with Muon inside it is MuLoCo.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config; the paper has AdamW.
        communication_period: the number of local steps between two outer ones, at least 1. Default
            100; the paper has 500.
        outer_learning_rate: above 0. Default 0.7.
        outer_momentum: in [0, 1]. Default 0.9.
        **common: see `AGN`.

    Returns:
        An `AGN` with all its methods.

    Example:
        >>> optimizer = diloco("adamw", communication_period=20)

    Reference:
        Douillard et al., 2023, "DiLoCo: distributed low-communication training of language models"
        (arXiv 2311.08105), algorithm 1; Kallusky et al., 2025, "SNOO: step-k Nesterov outer
        optimizer" (arXiv 2510.15830); Thérien et al., 2025, "MuLoCo: Muon is a practical inner
        optimizer for DiLoCo" (arXiv 2505.23725).
    """
    name = "outer_learning_rate"
    rate = checks.number("diloco", name, outer_learning_rate, 0, open_low=True)
    momentum = checks.number("diloco", "outer_momentum", outer_momentum, 0, 1)
    period = checks.integer("diloco", "communication_period", communication_period, 1)
    return AGN(
        optimizer,
        communication_period=period,
        center_optimizer=SGD(rate, momentum=momentum, nesterov=momentum > 0),
        mode="difference",
        **common,
    )
