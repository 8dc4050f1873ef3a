"""The update rules in float64 NumPy, written from the papers, and the pipeline around them.

Nothing here comes from tf_graft. An algorithm is a function of the gradient `g`, the weights `w`,
the slots `s` (a dict, empty before the first step, filled in place), the rate `lr` and the number
`t` of the step, from 1; it returns the signed step.
"""

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


def adadelta(g, w, s, lr, t, rho=0.95, epsilon=1e-7):
    s["g2"] = rho * s.get("g2", 0.0) + (1 - rho) * g**2
    x = np.sqrt(s.get("x2", 0.0) + epsilon) / np.sqrt(s["g2"] + epsilon) * g
    s["x2"] = rho * s.get("x2", 0.0) + (1 - rho) * x**2
    return -lr * x


def rmsprop(g, w, s, lr, t, rho=0.9, momentum=0.0, epsilon=1e-7, centered=False):
    s["g2"] = rho * s.get("g2", 0.0) + (1 - rho) * g**2
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
        gradients = {path: np.array(g, np.float64) for path, g in gradients.items()}
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
        """What the weights are after `finalize_variable_values`."""
        self.w = {path: average.copy() for path, average in self.averages.items()}

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
        return self._option("weight_decay") or 0.0

    def _update(self, gradients):
        lr = self.lr(self.count)
        for path, g in gradients.items():
            w = self.w[path]
            step = self.algorithm(
                g, w, self.slots[path], lr, self.count + 1, **self.hyperparameters
            )
            self.w[path] = w + step - lr * self._decay(path) * w
        self.count += 1
        if self._option("use_ema"):
            kept = self.options.get("ema_momentum", 0.99) if self.count > 1 else 0.0
            for path, w in self.w.items():
                self.averages[path] = kept * self.averages[path] + (1 - kept) * w
            frequency = self._option("ema_overwrite_frequency")
            if frequency and self.count % frequency == 0:
                self.finalize()
