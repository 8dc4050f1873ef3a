"""The update rules in float64 NumPy, written from the papers, and the pipeline around them.

Nothing here comes from tf_graft. An algorithm is a function of the gradient `g`, the weights `w`,
the slots `s` (a dict, empty before the first step, filled in place), the rate `lr` and the number
`t` of the step, from 1; it returns the signed step.
"""

import copy
import re

import numpy as np


def sgd(g, w, s, lr, t, momentum=0.0, nesterov=False):
    if momentum == 0:
        return -lr * g
    v = s["v"] = momentum * s.get("v", 0.0) - lr * g
    return momentum * v - lr * g if nesterov else v


def adagrad(g, w, s, lr, t, initial_accumulator_value=0.1, epsilon=1e-7):
    total = s["total"] = s.get("total", np.full_like(g, initial_accumulator_value)) + g**2
    return -lr * g / np.sqrt(total + epsilon)


def ftrl(
    g,
    w,
    s,
    lr,
    t,
    learning_rate_power=-0.5,
    initial_accumulator_value=0.1,
    l1_regularization_strength=0.0,
    l2_regularization_strength=0.0,
    l2_shrinkage_regularization_strength=0.0,
    beta=0.0,
    decay=0.0,
):
    power, l1, l2 = -learning_rate_power, l1_regularization_strength, l2_regularization_strength
    before = s.get("n", np.full_like(g, initial_accumulator_value))
    n = s["n"] = before + g**2
    start = w - lr * decay * w
    z = s.get("z", 0.0) + g + 2 * l2_shrinkage_regularization_strength * start
    z = s["z"] = z - (n**power - before**power) / lr * start
    chosen = (np.sign(z) * l1 - z) / ((n**power + beta) / lr + 2 * l2)
    return np.where(np.abs(z) > l1, chosen, 0.0) - w


def centered_gradient(g, w, s, lr, t):
    return -lr * (g - np.mean(g))


def adadelta(g, w, s, lr, t, rho=0.95, epsilon=1e-7):
    s["g2"] = rho * s.get("g2", 0.0) + (1 - rho) * g**2
    x = np.sqrt(s.get("x2", 0.0) + epsilon) / np.sqrt(s["g2"] + epsilon) * g
    s["x2"] = rho * s.get("x2", 0.0) + (1 - rho) * x**2
    return -lr * x


def rmsprop(
    g, w, s, lr, t, rho=0.9, momentum=0.0, epsilon=1e-7, centered=False, initial_velocity=0.0
):
    s["g2"] = rho * s.get("g2", initial_velocity) + (1 - rho) * g**2
    variance = s["g2"]
    if centered:
        s["g1"] = rho * s.get("g1", 0.0) + (1 - rho) * g
        variance = variance - s["g1"] ** 2
    x = lr * g / np.sqrt(variance + epsilon)
    if momentum:
        x = s["x"] = momentum * s.get("x", 0.0) + x
    return -x


def adam(g, w, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7, amsgrad=False):
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    v = s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * g**2
    if amsgrad:
        v = s["v_max"] = np.maximum(s.get("v_max", 0.0), v)
    alpha = lr * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
    return -alpha * s["m"] / (np.sqrt(v) + epsilon)


def lars(
    g,
    w,
    s,
    lr,
    t,
    momentum=0.9,
    weight_decay_rate=0.0,
    eeta=0.001,
    nesterov=False,
    classic_momentum=True,
    sum_of_norms=False,
    epsilon=0.0,
    adapts=True,
):
    def rate(x, more=0.0):
        w_norm, x_norm = np.linalg.norm(w), np.linalg.norm(x)
        if not (adapts and w_norm and x_norm):
            return lr
        return lr * eeta * w_norm / (x_norm + more * w_norm + epsilon)

    decayed = g + weight_decay_rate * w
    if classic_momentum:
        local = rate(g, weight_decay_rate) if sum_of_norms else rate(decayed)
        decayed = local * decayed
    v = s["v"] = momentum * s.get("v", 0.0) + decayed
    u = momentum * v + decayed if nesterov else v
    return -u if classic_momentum else -rate(u) * u


def lamb(
    g,
    w,
    s,
    lr,
    t,
    beta_1=0.9,
    beta_2=0.999,
    epsilon=1e-6,
    weight_decay_rate=0.0,
    adapts=True,
):
    m = s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    v = s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * g**2
    u = m / (1 - beta_1**t) / (np.sqrt(v / (1 - beta_2**t)) + epsilon) + weight_decay_rate * w
    w_norm, u_norm = np.linalg.norm(w), np.linalg.norm(u)
    return -lr * (w_norm / u_norm if adapts and w_norm and u_norm else 1.0) * u


def larc(
    g,
    w,
    s,
    lr,
    t,
    child,
    eta=0.02,
    mode="clip",
    min_update=1e-7,
    epsilon=1e-7,
    adapts=True,
    **hyperparameters,
):
    """`child` is one of the functions above, with its hyperparameters."""
    w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
    ratio = 1.0
    if adapts and w_norm:
        local = eta * w_norm / (g_norm + epsilon)
        if mode == "scale":
            ratio = max(local, min_update)
        elif lr:
            ratio = min(max(local / lr, min_update), 1.0)
    return child(ratio * g, w, s, lr, t, **hyperparameters)


def agc(g, w, s, lr, t, child, clipping=0.01, epsilon=1e-3, **hyperparameters):
    """A unit is an output; a vector or a scalar is one. `child` as in `larc`."""
    axes = {0: (), 1: (0,), 3: (0,)}.get(g.ndim, tuple(range(g.ndim - 1)))
    largest = clipping * np.maximum(np.sqrt((w * w).sum(axes, keepdims=True)), epsilon)
    norms = np.sqrt((g * g).sum(axes, keepdims=True))
    ratio = np.divide(largest, norms, out=np.ones_like(norms), where=norms > largest)
    return child(ratio * g, w, s, lr, t, **hyperparameters)


def centralized(g, w, s, lr, t, child, **hyperparameters):
    """The mean is over all axes but the last, of more than one weight. `child` as in `larc`."""
    if g.ndim > 1 and g.size > g.shape[-1]:
        g = g - g.mean(tuple(range(g.ndim - 1)), keepdims=True)
    return child(g, w, s, lr, t, **hyperparameters)


def hyperball(g, w, s, lr, t, child, decay=0.0, mode=None, **hyperparameters):
    """A vector, and what begins as zero, has no radius. `child` as in `larc`."""
    d = child(g, w, s, lr, t, **hyperparameters)
    radius = s.setdefault("radius", np.linalg.norm(w) if w.ndim > 1 else 0.0)
    if not radius:
        return decayed(d, w, lr, decay, mode)
    if not d.any():
        return d
    v = w + decayed(lr * radius * d / np.linalg.norm(d), w, lr, decay, mode)
    return radius * v / np.linalg.norm(v) - w


def radial_brake(g, w, s, lr, t, child, outward=0.5, floor=0.0, **hyperparameters):
    """A vector, and what is zero, has no radius. `child` as in `larc`."""
    d = child(g, w, s, lr, t, **hyperparameters)
    norm = np.linalg.norm(w)
    if w.ndim < 2 or not norm:
        return d
    unit = w / norm
    d = d - (1 - outward) * max(np.sum(d * unit), 0.0) * unit
    length = np.linalg.norm(d)
    if length:
        d = d * max(1.0, lr * floor * norm / length)
    radius = max(norm + np.sum(d * unit), 0.0)
    return radius * (w + d) / np.linalg.norm(w + d) - w


def ema_nesterov(
    g, w, s, lr, t, child, mean_momentum=0.99, ahead=0.3, decay=0.0, mode=None, **hyperparameters
):
    """`child` as in `larc`."""
    after = w + decayed(child(g, w, s, lr, t, **hyperparameters), w, lr, decay, mode)
    moved = after - s.get("x", w)
    s["d"] = mean_momentum * s.get("d", 0.0) + (1 - mean_momentum) * moved
    s["x"] = after
    return after + ahead * s["d"] - w


def momentum_with_the_rate_outside(g, w, s, lr, t, momentum=0.9):
    """TensorFlow 1's."""
    s["a"] = momentum * s.get("a", 0.0) + g
    return -lr * s["a"]


def momentum(g, w, s, lr, t, momentum=0.9, use_nesterov=False):
    """The rate outside, as TensorFlow 1's."""
    s["a"] = momentum * s.get("a", 0.0) + g
    return -lr * (g + momentum * s["a"] if use_nesterov else s["a"])


def novograd(g, w, s, lr, t, beta1=0.95, beta2=0.98, epsilon=1e-8, grad_averaging=False, decay=0.0):
    square = np.sum(g**2)
    s["v"] = beta2 * s["v"] + (1 - beta2) * square if s.get("v") else square
    u = g / np.sqrt(s["v"] + epsilon) + decay * w
    s["m"] = beta1 * s.get("m", 0.0) + ((1 - beta1) * u if grad_averaging else u)
    return -lr * s["m"]


def lion(g, w, s, lr, t, beta_1=0.9, beta_2=0.99):
    m = s.get("m", 0.0)
    s["m"] = beta_2 * m + (1 - beta_2) * g
    return -lr * np.sign(beta_1 * m + (1 - beta_1) * g)


def radam(g, w, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7, threshold=5.0):
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * g**2
    most = 2 / (1 - beta_2) - 1
    length = most - 2 * t * beta_2**t / (1 - beta_2**t)
    u = s["m"] / (1 - beta_1**t)
    if length > threshold:
        ratio = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        u = u * np.sqrt(ratio * (1 - beta_2**t)) / (np.sqrt(s["v"]) + epsilon)
    return -lr * u


def adabelief(g, w, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-8, epsilon_root=1e-16):
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * (g - s["m"]) ** 2 + epsilon_root
    root = np.sqrt(s["v"] / (1 - beta_2**t)) + epsilon
    return -lr * s["m"] / (1 - beta_1**t) / root


def ademamix(
    g,
    w,
    s,
    lr,
    t,
    beta_1=0.9,
    beta_2=0.999,
    beta_3=0.9999,
    alpha=5.0,
    beta_3_warmup=None,
    alpha_warmup=None,
    epsilon=1e-8,
):
    def share(steps):
        return 1.0 if steps is None else min(1.0, t / steps)

    part = share(beta_3_warmup)
    slow = np.exp(1 / ((1 - part) / np.log(beta_1) + part / np.log(beta_3)))
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    s["l"] = slow * s.get("l", 0.0) + (1 - slow) * g
    s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * g**2
    both = s["m"] / (1 - beta_1**t) + alpha * share(alpha_warmup) * s["l"]
    return -lr * both / (np.sqrt(s["v"] / (1 - beta_2**t)) + epsilon)


def nadam(g, w, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7, momentum_decay=1.0):
    def mu(t):
        return beta_1 * (1 - 0.5 * 0.96 ** (t * momentum_decay))

    product = np.prod([mu(k) for k in range(1, t + 1)])
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * g**2
    ahead = mu(t + 1) * s["m"] / (1 - product * mu(t + 1)) + (1 - mu(t)) * g / (1 - product)
    return -lr * ahead / (np.sqrt(s["v"] / (1 - beta_2**t)) + epsilon)


def nadamw(g, w, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-8):
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * g**2
    ahead = (beta_1 * s["m"] + (1 - beta_1) * g) / (1 - beta_1**t)
    return -lr * ahead / (np.sqrt(s["v"] / (1 - beta_2**t)) + epsilon)


def adamax(g, w, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    s["u"] = np.maximum(beta_2 * s.get("u", 0.0), abs(g))
    return -lr / (1 - beta_1**t) * s["m"] / (s["u"] + epsilon)


def adan(g, w, s, lr, t, beta_1=0.98, beta_2=0.92, beta_3=0.99, epsilon=1e-8, decay=0.0):
    """The paper's betas are one minus these."""
    change = g - s.get("g", g if t == 1 else 0.0)
    s["g"] = g
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    s["d"] = beta_2 * s.get("d", 0.0) + (1 - beta_2) * change
    s["n"] = beta_3 * s.get("n", 0.0) + (1 - beta_3) * (g + beta_2 * change) ** 2
    u = s["m"] / (1 - beta_1**t) + beta_2 * s["d"] / (1 - beta_2**t)
    moved = w - lr * u / (np.sqrt(s["n"] / (1 - beta_3**t)) + epsilon)
    return moved / (1 + lr * decay) - w


def yogi(g, w, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-3, initial_accumulator_value=1e-6):
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    v = s.get("v", np.full_like(g, initial_accumulator_value))
    s["v"] = np.where(v > g**2, v - (1 - beta_2) * g**2, v + (1 - beta_2) * g**2)
    alpha = lr * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
    return -alpha * s["m"] / (np.sqrt(s["v"]) + epsilon)


def adopt(g, w, s, lr, t, beta_1=0.9, beta_2=0.9999, epsilon=1e-6):
    if t == 1:
        s["m"], s["v"] = np.zeros_like(g), g**2
        return np.zeros_like(g)
    most = (t - 1) ** 0.25
    v = s.get("v", np.zeros_like(g))
    normalized = np.clip(g / np.maximum(np.sqrt(v), epsilon), -most, most)
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * normalized
    s["v"] = beta_2 * v + (1 - beta_2) * g**2
    return -lr * s["m"]


def _squares_of_rows(g):
    return (g**2).mean(tuple(range(1, g.ndim)), keepdims=True) if g.ndim > 1 and g.size else g**2


def rowwise_adagrad(g, w, s, lr, t, initial_accumulator_value=0.0, epsilon=1e-8):
    s["a"] = s.get("a", initial_accumulator_value) + _squares_of_rows(g)
    return -lr * g / (np.sqrt(s["a"]) + epsilon)


def rowwise_adam(g, w, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-8):
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * _squares_of_rows(g)
    return -lr * s["m"] / (1 - beta_1**t) / (np.sqrt(s["v"] / (1 - beta_2**t)) + epsilon)


def cautious(g, w, s, lr, t, child, xi=0.0, **hyperparameters):
    """`child` as in `larc`."""
    d = child(g, w, s, lr, t, **hyperparameters)
    kept = np.sign(d) == -np.sign(g)
    kept &= g != 0
    return d * kept * g.size / max(kept.sum() + xi, g.size / 1000) if g.size else d


def adafactor(g, w, s, lr, t, relative_step=True, beta_1=0.0):
    """The paper's algorithms 4 and 5, with sums in place of means, of the last two axes."""

    def rms(x):
        return np.sqrt((x**2).sum() / max(x.size, 1))

    beta = 1 - t**-0.8
    square = g**2 + 1e-30
    if g.ndim < 2:
        v = s["v"] = beta * s.get("v", 0.0) + (1 - beta) * square
    else:
        r = s["r"] = beta * s.get("r", 0.0) + (1 - beta) * square.sum(-1)
        c = s["c"] = beta * s.get("c", 0.0) + (1 - beta) * square.sum(-2)
        v = r[..., None] * c[..., None, :] / r.sum(-1)[..., None, None]
    u = g / np.sqrt(v)
    rate = max(1e-3, rms(w)) * (min(lr, t**-0.5) if relative_step else lr)
    step = -rate * u / max(1.0, rms(u))
    if beta_1:
        step = s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * step
    return step


def mars(g, w, s, lr, t, beta_1=0.95, beta_2=0.99, gamma=0.025, epsilon=1e-8):
    if g.ndim < 2:
        c, beta_1, beta_2 = g, 0.9, 0.95
    else:
        c = g + gamma * beta_1 / (1 - beta_1) * (g - s.get("last", 0.0))
        c = c / max(1.0, np.sqrt((c**2).sum()))
        s["last"] = g
    m = s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * c
    v = s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * c**2
    return -lr * m / (1 - beta_1**t) / (np.sqrt(v / (1 - beta_2**t)) + epsilon)


def sgdsai(g, w, s, lr, t, momentum=0.9, epsilon=1e-8):
    if "r" not in s:
        if not g.any():
            return 0 * g
        s["r"] = np.linalg.norm(g) / (g.std(ddof=1) + epsilon) if g.size > 1 else 1.0
        s["m"] = g
    else:
        s["m"] = momentum * s["m"] + (1 - momentum) * g
    return -lr * s["r"] * s["m"]


def cocob(g, w, s, lr, t, alpha=100.0):
    for name in ("largest", "total", "reward", "sum", "x"):
        s.setdefault(name, np.zeros_like(g))
    s["largest"] = np.maximum(s["largest"], abs(g))
    s["total"] = s["total"] + abs(g)
    s["reward"] = np.maximum(s["reward"] - s["x"] * g, 0)
    s["sum"] = s["sum"] - g
    scale = np.where(s["largest"] > 0, s["largest"], 1.0)
    below = scale * np.maximum(s["total"] + scale, alpha * scale)
    before, s["x"] = s["x"], s["sum"] / below * (s["largest"] + s["reward"])
    return lr * (s["x"] - before)


def prodigy(g, w, s, lr, t, d0=1e-6, beta_1=0.9, beta_2=0.999, epsilon=1e-8, decays=None):
    """Of all variables: `g`, `w`, `s` and `lr` are dicts by path."""
    beta_3 = np.sqrt(beta_2)
    shared = s[min(s)].setdefault("shared", {"d": d0, "n": 0.0})
    d = shared["d"]
    for path in g:
        own = s[path]
        for name in ("m", "v", "s"):
            own.setdefault(name, np.zeros_like(g[path]))
        start = own.setdefault("w0", w[path].copy())
        own["m"] = beta_1 * own["m"] + (1 - beta_1) * d * g[path]
        own["v"] = beta_2 * own["v"] + (1 - beta_2) * (d * g[path]) ** 2
        own["s"] = beta_3 * own["s"] + d / d0 * d * lr[path] * g[path]
        own["gain"] = d / d0 * d * lr[path] * (g[path] * (start - w[path])).sum()
    shared["n"] = beta_3 * shared["n"] + sum(s[path]["gain"] for path in g)
    norm = sum(abs(s[path]["s"]).sum() for path in g)
    shared["d"] = max(d, shared["n"] / norm) if norm else d
    steps = {}
    for path in g:
        a, own = d * lr[path], s[path]
        below = np.sqrt(own["v"]) + shared["d"] * epsilon
        steps[path] = -a * own["m"] / np.where(below > 0, below, 1.0)
        steps[path] -= a * (decays or {}).get(path, {}).get("decay", 0.0) * w[path]
    return steps


def schedule_free(u, w, s, rate, t, beta_1, r, weight_lr_power):
    w = np.longdouble(w)  # y - w cancels
    s["largest"] = max(s.get("largest", 0.0), rate)
    p = t**r * s["largest"] ** weight_lr_power
    s["p"] = s.get("p", 0.0) + p
    x = s.get("x", w)
    z = (w - beta_1 * x) / (1 - beta_1) - rate * u
    c = p / s["p"] if p else 0.0
    s["x"] = (1 - c) * x + c * z
    return np.float64(beta_1 * s["x"] + (1 - beta_1) * z - w)


def _warmed(lr, t, warmup_steps):
    return lr * min(1.0, t / warmup_steps) if warmup_steps else lr


def schedule_free_sgd(
    g, w, s, lr, t, momentum=0.9, warmup_steps=0, r=0.0, weight_lr_power=2.0, decay=0.0
):
    rate = _warmed(lr, t, warmup_steps)
    return schedule_free(g + decay * w, w, s, rate, t, momentum, r, weight_lr_power)


def schedule_free_adamw(
    g, w, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-8, warmup_steps=0, decay=0.0
):
    s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * g**2
    u = g / (np.sqrt(s["v"] / (1 - beta_2**t)) + epsilon)
    return schedule_free(u + decay * w, w, s, _warmed(lr, t, warmup_steps), t, beta_1, 0.0, 2.0)


def schedule_free_radam(
    g, w, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-8, silent_sgd_phase=True, decay=0.0
):
    s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * g**2
    most = 2 / (1 - beta_2) - 1
    length = most - 2 * t * beta_2**t / (1 - beta_2**t)
    u, rate = g, 0.0 if silent_sgd_phase else lr
    if length > 4:
        u = g / (np.sqrt(s["v"] / (1 - beta_2**t)) + epsilon)
        square = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        rate = lr * np.sqrt(square)
    return schedule_free(u + decay * w, w, s, rate, t, beta_1, 0.0, 2.0)


LAYERWISE = (lars, lamb)
SCHEDULE_FREE = (schedule_free_sgd, schedule_free_adamw, schedule_free_radam)
TWO_WEIGHTS = (*SCHEDULE_FREE, ema_nesterov)  # to train and, the slot "x", to evaluate
DECAYS_WITHIN = (*SCHEDULE_FREE, ftrl, novograd, adan, prodigy, hyperball, ema_nesterov)


def quintic(x, steps, coefficients=(3.4445, -4.7750, 2.0315)):
    """A polynomial of odd degree of the singular values, `steps` times, by their decomposition."""
    a, b, c = coefficients
    left, values, right = np.linalg.svd(x, full_matrices=False)
    for _ in range(steps):
        values = a * values + b * values**3 + c * values**5
    return left * values @ right


def muon_direction(g, s, momentum=0.95, nesterov=True, ns_steps=5):
    m = s["m"] = momentum * s.get("m", 0.0) + (1 - momentum) * g
    u = momentum * m + (1 - momentum) * g if nesterov else m
    return quintic(u / (np.sqrt((u**2).sum()) + 1e-7), ns_steps)


def muon_step(g, s, **arguments):
    """Of one matrix, [inputs, outputs]."""
    return -np.sqrt(max(1, g.shape[1] / g.shape[0])) * muon_direction(g, s, **arguments)


def normuon_step(g, s, beta_2=0.95, **arguments):
    o = muon_direction(g, s, **arguments)
    s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * (o**2).mean(0)
    n = o / (np.sqrt(s["v"]) + 1e-8)
    return -0.2 * np.sqrt(max(g.shape)) * n * np.sqrt((o**2).sum() / (n**2).sum())


def is_matrix(path, x):
    """Whether optimizers of matrices take a variable for one: of two axes, and no embedding."""
    return x.ndim == 2 and x.size > 0 and not path.endswith("embeddings")


def _of_matrices(step):
    """The rule of all variables: the matrices', `others` has the rest."""

    def rule(g, w, s, lr, t, others, multipliers, **arguments):
        steps = {}
        for path in g:
            if not is_matrix(path, g[path]):
                steps |= others.steps({path: g[path]}, w, s, t, multipliers[path])
            else:
                steps[path] = lr[path] * step(g[path], s[path], **arguments)
        return steps

    return rule


muon, normuon = _of_matrices(muon_step), _of_matrices(normuon_step)


def inverse_root(a, exponent, epsilon):
    values, vectors = np.linalg.eigh(a)
    return vectors * (values + epsilon * (values.max() or 1.0)) ** -exponent @ vectors.T


def turns_of(w, frequency):
    """The turns of matrices, from 0: those of one shape one after the other, then the next."""
    shapes = [*dict.fromkeys(x.shape for x in w.values() if x.ndim > 1)]
    ordered = [path for shape in shapes for path, x in w.items() if x.shape == shape]
    return {path: place % frequency for place, path in enumerate(ordered)}


def shampoo(
    g,
    w,
    s,
    lr,
    t,
    others,
    multipliers,
    beta_1=0.9,
    beta_2=0.999,
    epsilon=1e-3,
    precondition_frequency=10,
    exponent=0.25,
    moments=lambda x, own: (x @ x.T, x.T @ x),
):
    """Of all variables: the matrices', `others` has the rest.

    `moments` makes the second moments of a gradient, and of what there is of a variable.
    """
    steps, turns = {}, turns_of(w, precondition_frequency)
    for path in g:
        if not is_matrix(path, g[path]):
            steps |= others.steps({path: g[path]}, w, s, t, multipliers[path])
            continue
        x, own = g[path], s[path]
        own["m"] = beta_1 * own.get("m", 0.0) + (1 - beta_1) * x
        for factor, moment in zip("lr", moments(x, own), strict=True):
            own[factor] = beta_2 * own.get(factor, 0.0) + (1 - beta_2) * moment
        if t == 1 or t % precondition_frequency == turns[path]:
            for factor, root in (("l", "p"), ("r", "q")):
                own[root] = inverse_root(own[factor] / (1 - beta_2**t), exponent, epsilon)
        p, q = own.get("p", np.eye(len(x))), own.get("q", np.eye(x.shape[1]))
        steps[path] = -lr[path] * p @ own["m"] @ q / (1 - beta_1**t)
    return steps


def soap(
    g,
    w,
    s,
    lr,
    t,
    others,
    multipliers,
    beta_1=0.95,
    beta_2=0.95,
    shampoo_beta=0.95,
    epsilon=1e-8,
    precondition_frequency=10,
    made_of=lambda d: d,
    moments=lambda x, own: (x @ x.T, x.T @ x),
):
    """Of all variables: the matrices', `others` has the rest.

    `made_of` makes the step of the direction; `moments` the second moments of a gradient, and of
    what there is of a variable.
    """
    steps, turns = {}, turns_of(w, precondition_frequency)
    for path in g:
        if not is_matrix(path, g[path]):
            steps |= others.steps({path: g[path]}, w, s, t, multipliers[path])
            continue
        x, own = g[path], s[path]
        steps[path] = np.zeros_like(x)
        begun = "u" in own
        if begun:
            u, z, n = own["u"], own["z"], max(t - 1, 1)
            own["m"] = beta_1 * own["m"] + (1 - beta_1) * x
            own["v"] = beta_2 * own["v"] + (1 - beta_2) * (u.T @ x @ z) ** 2
            d = u @ ((u.T @ own["m"] @ z) / (np.sqrt(own["v"]) + epsilon)) @ z.T
            d *= np.sqrt(1 - beta_2**n) / (1 - beta_1**n)
            steps[path] = -lr[path] * made_of(d)
        for factor, moment in zip("lr", moments(x, own), strict=True):
            before = own.get(factor, 0.0)
            own[factor] = shampoo_beta * before + (1 - shampoo_beta) * moment
        if not begun:
            own |= {"m": np.zeros_like(x), "v": np.zeros_like(x)}
            own |= {b: np.linalg.eigh(own[f])[1][:, ::-1] for f, b in (("l", "u"), ("r", "z"))}
        elif (t - 1) % precondition_frequency == turns[path]:
            for axis, (factor, basis) in enumerate((("l", "u"), ("r", "z"))):
                turned = own[factor] @ own[basis]
                order = np.argsort(-np.sum(own[basis] * turned, 0))
                own[basis] = np.linalg.qr(turned[:, order])[0]
                own["v"] = np.take(own["v"], order, axis)
    return steps


def kl_moments(x, inverse_l, inverse_r):
    """The second moments of a gradient, by the inverses of both; None: there are none yet."""
    rows, columns = x.shape
    rms = np.sqrt(np.mean(x**2)) or 1.0
    inverse_l = np.eye(rows) / rms if inverse_l is None else inverse_l
    inverse_r = np.eye(columns) / rms if inverse_r is None else inverse_r
    return x @ inverse_r @ x.T / columns, x.T @ inverse_l @ x / rows


def kl_shampoo(g, w, s, lr, t, beta_2=0.95, **arguments):
    def moments(x, own):
        return kl_moments(x, *(own[root] @ own[root] if root in own else None for root in "pq"))

    arguments |= {"beta_2": beta_2, "exponent": 0.5, "moments": moments}
    return shampoo(g, w, s, lr, t, **arguments)


def kl_soap(g, w, s, lr, t, shampoo_epsilon=0.03, **arguments):
    def inverse(own, factor, basis):
        if basis not in own:
            return None
        values = np.diag(own[basis].T @ own[factor] @ own[basis])
        values = np.maximum(values, shampoo_epsilon * (values.max() if values.any() else 1.0))
        return own[basis] / values @ own[basis].T

    def moments(x, own):
        return kl_moments(x, inverse(own, "l", "u"), inverse(own, "r", "z"))

    return soap(g, w, s, lr, t, moments=moments, **arguments)


def soap_muon(g, w, s, lr, t, ns_steps=5, **arguments):
    def orthogonal(d):
        factor = np.sqrt(max(1, d.shape[1] / d.shape[0]))
        return factor * quintic(d / (np.linalg.norm(d) + 1e-8), ns_steps)

    return soap(g, w, s, lr, t, made_of=orthogonal, **arguments)


OF_MATRICES = (muon, normuon, shampoo, kl_shampoo, soap, kl_soap, soap_muon)


def own_of(path, hyperparameters, undecayed):
    """The hyperparameters of LARS or LAMB for one variable, with what the lists say of it."""
    own = dict(hyperparameters)
    unadapted = own.pop("exclude_from_layer_adaptation", None)
    if any(re.search(pattern, path) for pattern in undecayed):
        own["weight_decay_rate"] = 0.0
    layers = undecayed if unadapted is None else unadapted
    return own | {"adapts": not any(re.search(pattern, path) for pattern in layers)}


def steps_of_all(algorithm, g, w, s, lr, t, **hyperparameters):
    """The steps of several variables, where `g`, `w`, `s` and `lr` are dicts by path."""
    if algorithm in (adagraft, multi, prodigy, *OF_MATRICES):
        return algorithm(g, w, s, lr, t, **hyperparameters)
    if algorithm in LAYERWISE:
        undecayed = hyperparameters.pop("undecayed", ())
        return {
            p: algorithm(g[p], w[p], s[p], lr[p], t, **own_of(p, hyperparameters, undecayed))
            for p in g
        }
    decays = hyperparameters.pop("decays", {})  # of those that decay within the step
    return {
        p: algorithm(g[p], w[p], s[p], lr[p], t, **hyperparameters | decays.get(p, {})) for p in g
    }


def decayed(d, w, lr, decay, mode=None):
    """A step with decoupled decay; `mode` is as in a config of tf_graft."""
    if mode == "cautious_decay":  # u w >= 0, where w <- w - lr u
        w = np.where(d * w <= 0, w, 0.0)
    elif mode:  # AdamC
        decay = decay * lr / mode["max_learning_rate"]
    return d - lr * decay * w


class Child:
    """One of the optimizers that another one is made of.

    Args:
        algorithm: a function as above.
        lr: its own rate: a number, or a function of the number of updates made so far.
        hyperparameters: the algorithm's own; `weight_decay` and `exclude` are decoupled decay.
    """

    def __init__(self, algorithm, lr, weight_decay=0.0, exclude="^$", **hyperparameters):
        self.algorithm, self.hyperparameters = algorithm, hyperparameters
        self.lr = lr if callable(lr) else lambda count: lr
        self.weight_decay, self.exclude, self.mode = weight_decay, exclude, None

    def given(self, inside, excluded=()):
        """The same with other weight decay; `excluded` are patterns of what it is in."""
        other = copy.copy(self)
        other.weight_decay = inside.get("weight_decay", self.weight_decay)
        other.mode = inside.get("weight_decay_mode", self.mode)
        excluded = [*inside.get("exclude_from_weight_decay", ()), *excluded]
        other.exclude = "|".join([self.exclude, *excluded])
        other.hyperparameters = {
            name: value.given({}, excluded) if isinstance(value, Child) else value
            for name, value in self.hyperparameters.items()
        }
        return other

    def steps(self, g, w, s, t, factor=1.0):
        lr = self.lr(t - 1) * factor
        rates = dict.fromkeys(g, lr)
        steps = steps_of_all(self.algorithm, g, w, s, rates, t, **self.hyperparameters)
        for path in g:
            if not re.search(self.exclude, path):
                steps[path] = decayed(steps[path], w[path], lr, self.weight_decay, self.mode)
        return steps


def adagraft(g, w, s, lr, t, magnitude, direction, use_global_norm=False, diagnostic=False):
    """Of all variables: `g`, `w`, `s` and `lr` are dicts by path."""
    m, d = (
        child.steps(g, w, {path: s[path].setdefault(role, {}) for path in g}, t)
        for role, child in (("magnitude", magnitude), ("direction", direction))
    )

    def norms(steps):
        each = {path: np.sqrt((step**2).sum()) for path, step in steps.items()}
        total = np.sqrt(sum(norm**2 for norm in each.values()))
        return dict.fromkeys(each, total) if use_global_norm else each

    m_norms, d_norms = norms(m), norms(d)
    return {
        path: lr[path] * m_norms[path] / max(d_norms[path], 1e-30) * d[path]
        if d_norms[path] > 0
        else 0 * d[path]
        for path in g
    }


def multi(g, w, s, lr, t, **optimizers):
    """Of all variables, as `adagraft`; `optimizers` by pattern, of which the first counts.

    A pattern is searched for in the path of the whole variable, without the number of a shard.
    """
    steps = {}
    for path in g:
        whole = re.sub(r"^part_\d+/", "", path)
        child = next(x for pattern, x in optimizers.items() if re.search(pattern, whole))
        steps |= child.steps({path: g[path]}, w, s, t, lr[path])
    return steps


class Oracle:
    """All of `apply` in float64: unscale, judge, accumulate, clip, step and decay, average, count.

    Args:
        algorithm: one of the functions above.
        weights: a dict of path to array.
        lr: a number, or a function of the number of updates made so far.
        hyperparameters: the algorithm's own.
        options: the common ones, under the names of tf_graft's arguments.
    """

    def __init__(self, algorithm, weights, lr, hyperparameters=None, **options):
        self.algorithm = algorithm
        self.w = {path: np.array(w, np.float64) for path, w in weights.items()}
        self.lr = lr if callable(lr) else lambda count: lr
        self.hyperparameters = dict(hyperparameters or {})
        self.options = options
        self.slots = {path: {} for path in self.w}
        self.averages = {path: w.copy() for path, w in self.w.items()}
        self.sums = {path: np.zeros_like(w) for path, w in self.w.items()}
        self.calls = self.count = self.skipped = 0
        self.spoiled = False  # whether a micro-step since the last update was not finite

    def apply(self, gradients):
        """One call, with a dict of path to dense gradient; a path left out has none."""
        moving = {path: g for path, g in gradients.items() if self._multiplier(path) != 0}
        gradients = {path: np.array(g, np.float64) for path, g in moving.items()}
        gradients = {p: g / (self._option("loss_scale_factor") or 1) for p, g in gradients.items()}
        self.spoiled |= not all(np.isfinite(g).all() for g in gradients.values())
        period = self._option("gradient_accumulation_steps") or 1
        for path, g in gradients.items():
            self.sums[path] += g
        self.calls += 1
        if self.calls % period:
            return
        means = {path: self.sums[path] / period for path in gradients}
        for path in gradients:
            self.sums[path] = np.zeros_like(self.sums[path])
        if self.spoiled:
            self.skipped, self.spoiled = self.skipped + 1, False
            return
        self._update(self._clipped(means))

    def finalize(self):
        """The weights become what `fit` leaves at its end."""
        if self._option("use_ema"):
            self.w = {path: average.copy() for path, average in self.averages.items()}
        elif self.algorithm in TWO_WEIGHTS:
            self.w = {path: self.slots[path].get("x", w) for path, w in self.w.items()}

    def _option(self, name):
        return self.options.get(name)

    def _clipped(self, gradients):
        value, each, together = map(self._option, ("clipvalue", "clipnorm", "global_clipnorm"))
        norms = {path: np.sqrt((g**2).sum()) for path, g in gradients.items()}
        if value:
            return {path: np.clip(g, -value, value) for path, g in gradients.items()}
        if each:
            return {p: g * min(1, each / norms[p]) if norms[p] else g for p, g in gradients.items()}
        if together:
            norm = np.sqrt(sum(n**2 for n in norms.values()))
            return {p: g * min(1, together / norm) if norm else g for p, g in gradients.items()}
        return gradients

    def _decay(self, path):
        excluded = self._option("exclude_from_weight_decay") or []
        if any(re.search(pattern, path) for pattern in excluded):
            return 0.0
        if self.algorithm in OF_MATRICES and not is_matrix(path, self.w[path]):
            return 0.0
        return self._option("weight_decay") or 0.0

    def _multiplier(self, path):
        given = self._option("learning_rate_multipliers") or {}
        return next((x for pattern, x in given.items() if re.search(pattern, path)), 1.0)

    def _update(self, gradients):
        lr = {path: self.lr(self.count) * self._multiplier(path) for path in gradients}
        own = self.hyperparameters
        if self.algorithm in LAYERWISE:
            own = own | {"undecayed": self._option("exclude_from_weight_decay") or ()}
        decays = {path: self._decay(path) for path in gradients}
        mode = self._option("weight_decay_mode")
        if self.algorithm in OF_MATRICES:
            own = own | {"multipliers": {path: self._multiplier(path) for path in gradients}}
        if self.algorithm in DECAYS_WITHIN:
            own = own | {"decays": {path: {"decay": decays[path]} for path in decays}}
            own |= {"mode": mode} if mode else {}
            decays = dict.fromkeys(decays, 0.0)
        steps = steps_of_all(
            self.algorithm, gradients, self.w, self.slots, lr, self.count + 1, **own
        )
        for path, step in steps.items():
            w = self.w[path]
            self.w[path] = w + decayed(step, w, lr[path], decays[path], mode)
        self.count += 1
        if self._option("use_ema"):
            kept = self.options.get("ema_momentum", 0.99) if self.count > 1 else 0.0
            for path, w in self.w.items():
                self.averages[path] = kept * self.averages[path] + (1 - kept) * w
            frequency = self._option("ema_overwrite_frequency")
            if frequency and self.count % frequency == 0:
                self.finalize()
