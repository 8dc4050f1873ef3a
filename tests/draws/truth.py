"""What is right: optimizers within optimizers in float64 NumPy, on whole variables or some rows.

Nothing here comes from tf_graft. The rules of single optimizers are those of `oracles.py`.
"""

import copy
import re
from typing import Any, NamedTuple

import numpy as np

from support import oracles

STARTS = {"total": "initial_accumulator_value"}  # slots that do not start at zero
ALL = ...  # of every variable, a scalar too


class Gradient(NamedTuple):
    """The gradient of a variable, and the rows that it is of: all of a dense one."""

    values: np.ndarray
    rows: Any = ALL

    def whole(self, shape):
        """The equal dense gradient."""
        dense = np.zeros(shape)
        np.add.at(dense, self.rows, self.values)
        return Gradient(dense)

    def once(self):
        """With each row once."""
        if self.rows is ALL:
            return self
        rows, places = np.unique(self.rows, return_inverse=True)
        values = np.zeros((len(rows), *self.values.shape[1:]))
        np.add.at(values, places, self.values)
        return Gradient(values, rows)


def matches(path, patterns):
    return any(re.search(pattern, path) for pattern in patterns)


class Node:
    """What gives steps: what it proposes without weight decay, less what the decay takes."""

    def steps(self, g, w, rows, t, excluded, shapes):
        """The steps of the rows of all variables; `excluded` are patterns of those around it."""
        proposed = self.proposed(g, w, rows, t, excluded, shapes)
        return {path: d - self.taken(path, w[path], excluded) for path, d in proposed.items()}


class Leaf(Node):
    """A single optimizer, with its state.

    Args:
        rule: a function of `oracles.py`.
        lr: its rate.
        hyperparameters: of the rule.
        decay: decoupled weight decay.
        excluded: patterns of paths that do not decay.
    """

    def __init__(self, rule, lr, hyperparameters, decay=0.0, excluded=()):
        self.rule, self.lr, self.hyperparameters = rule, lr, hyperparameters
        self.decay, self.excluded = decay, list(excluded)
        self.slots = {}

    def set_decay(self, decay):
        self.decay = decay

    def rate(self, path):
        """What the step of a variable is proportional to."""
        return self.lr

    def forget(self, rows):
        """Starts anew, for the rows of each path."""
        for path, which in rows.items():
            for role, value in self.slots.get(path, {}).items():
                self.slots[path][role] = self._with(value, which, self._start(role))

    def _start(self, role):
        """What a slot is filled with at the start."""
        return self.hyperparameters.get(STARTS.get(role), 0.1 if role in STARTS else 0.0)

    def proposed(self, g, w, rows, t, excluded, shapes):
        return {p: self._step(p, g[p], w[p], rows[p], t, excluded, shapes[p]) for p in g}

    def taken(self, path, w, excluded):
        within = self.rule is oracles.novograd  # the decay is a part of its step
        undecayed = within or matches(path, [*excluded, *self.excluded])
        return 0.0 if undecayed else self.lr * self.decay * w

    def _step(self, path, g, w, rows, t, excluded, shape):
        undecayed = matches(path, [*excluded, *self.excluded])
        own, slots = dict(self.hyperparameters), self.slots.setdefault(path, {})
        if self.rule in oracles.LAYERWISE:
            own["adapts"] = not undecayed
            own["weight_decay_rate"] = 0.0 if undecayed else own.get("weight_decay_rate", 0.0)
        if self.rule is oracles.novograd:
            own["decay"] = 0.0 if undecayed else self.decay
        here = {r: x[rows] if np.shape(x) == shape else x for r, x in slots.items()}
        step = self.rule(g, w, here, self.lr, t, **own)
        for role, value in here.items():
            if np.shape(value) == np.shape(g):
                full = slots.get(role, np.full(shape, self._start(role)))
                slots[role] = self._with(full, rows, value)
            else:
                slots[role] = value
        return step

    @staticmethod
    def _with(full, rows, value):
        full = np.array(full, np.float64)
        rows = rows if full.shape else ALL  # one number for the whole variable
        full[rows] = value
        return full


class Around(Node):
    """What acts for the optimizer in it; the decay is that one's."""

    def __init__(self, child, excluded=()):
        self.child, self.excluded = child, list(excluded)

    def set_decay(self, decay):
        self.child.set_decay(decay)

    def rate(self, path):
        return self.child.rate(path)

    def forget(self, rows):
        self.child.forget(rows)

    def proposed(self, g, w, rows, t, excluded, shapes):
        around = [*excluded, *self.excluded]
        return self.child.proposed(self.seen(g, w), w, rows, t, around, shapes)

    def taken(self, path, w, excluded):
        return self.child.taken(path, w, [*excluded, *self.excluded])

    def seen(self, g, w):
        return g


class Cautious(Around):
    """The entries of the steps that go against the gradient, the more the fewer they are."""

    def proposed(self, g, w, rows, t, excluded, shapes):
        steps = super().proposed(g, w, rows, t, excluded, shapes)
        return {path: self.masked(d, g[path]) for path, d in steps.items()}

    @staticmethod
    def masked(d, g):
        kept = d * g < 0
        return np.where(kept, d * np.size(d) / max(np.sum(kept), 1), 0.0)


class Larc(Around):
    """The gradients scaled layer by layer."""

    def __init__(self, child, eta, mode, excluded=()):
        super().__init__(child, excluded)
        self.eta, self.mode = eta, mode

    def seen(self, g, w):
        return {path: self.ratio(path, g[path], w[path]) * g[path] for path in g}

    def ratio(self, path, g, w):
        norm = np.linalg.norm(w)
        if not norm:
            return 1.0
        local = self.eta * norm / (np.linalg.norm(g) + 1e-7)
        if self.mode == "scale":
            return max(local, 1e-7)
        return min(max(local / self.rate(path), 1e-7), 1.0)


class Composed(Node):
    """What has a rate and a decay of its own, outside those of its children."""

    def __init__(self, children, lr, decay=0.0, excluded=()):
        self.children, self.lr = children, lr
        self.decay, self.excluded = decay, list(excluded)

    def set_decay(self, decay):
        self.decay = decay

    def forget(self, rows):
        for child in self.children:
            child.forget(rows)

    def proposed(self, g, w, rows, t, excluded, shapes):
        around = [*excluded, *self.excluded]
        return self.composed(*(x.steps(g, w, rows, t, around, shapes) for x in self.children))

    def taken(self, path, w, excluded):
        undecayed = matches(path, [*excluded, *self.excluded])
        return 0.0 if undecayed else self.lr * self.decay * w


class Graft(Composed):
    """The length of one child's step, the direction of the other's."""

    def __init__(self, children, lr, together, decay=0.0, excluded=()):
        super().__init__(children, lr, decay, excluded)
        self.together = together

    def rate(self, path):
        return self.lr * self.children[0].rate(path)

    def composed(self, m, d):
        lengths = [{p: np.sqrt((x**2).sum()) for p, x in steps.items()} for steps in (m, d)]
        if self.together:
            totals = [np.sqrt(sum(n**2 for n in each.values())) for each in lengths]
            lengths = [dict.fromkeys(each, n) for each, n in zip(lengths, totals, strict=True)]
        long, short = lengths
        return {
            p: self.lr * long[p] / max(short[p], 1e-30) * d[p] if short[p] > 0 else 0 * d[p]
            for p in d
        }


class Layerwise(Composed):
    """A child's steps times a factor for each path."""

    def __init__(self, children, lr, factors, decay=0.0, excluded=()):
        super().__init__(children, lr, decay, excluded)
        self.factors = factors

    def rate(self, path):
        return self.lr * self.factors[path] * self.children[0].rate(path)

    def proposed(self, g, w, rows, t, excluded, shapes):
        (child,), around = self.children, [*excluded, *self.excluded]
        steps = child.proposed(g, w, rows, t, around, shapes)
        return {path: self.lr * self.factors[path] * d for path, d in steps.items()}

    def taken(self, path, w, excluded):
        (child,), around = self.children, [*excluded, *self.excluded]
        of_child = self.lr * self.factors[path] * child.taken(path, w, around)
        return super().taken(path, w, excluded) + of_child


class Pipeline:
    """`apply`, of one optimizer: judge, accumulate, clip, step, average, count.

    Args:
        node: gives the steps.
        weights: by path.
        options: the common ones that the outermost optimizer acts on.
        whole: whether a row-sparse gradient is made dense.
    """

    def __init__(self, node, weights, options, whole):
        self.node, self.options, self.whole = node, options, whole
        self.w = {path: np.array(w, np.float64) for path, w in weights.items()}
        self.averages = {path: w.copy() for path, w in self.w.items()}
        self.pending, self.calls, self.spoiled = {}, 0, False
        self.count = self.skipped = 0
        self.used = None  # gradients and steps of the last call, where it made an update

    def copy(self):
        return copy.deepcopy(self)

    def apply(self, gradients):
        """One call; gradients by path, not scaled."""
        self.used = None
        gradients = {path: g.once() for path, g in gradients.items()}
        if self.whole:
            gradients = {path: g.whole(self.w[path].shape) for path, g in gradients.items()}
        finite = all(np.isfinite(g.values).all() for g in gradients.values())
        self.spoiled |= not finite
        for path, g in gradients.items():
            if finite:
                self.pending.setdefault(path, []).append(g)
        self.calls += 1
        period = self.options.get("gradient_accumulation_steps") or 1
        if self.calls % period:
            return
        pending, self.pending = self.pending, {}
        spoiled, self.spoiled = self.spoiled, False
        if spoiled:
            self.skipped += 1
            return
        self.update({path: self.mean(path, parts, period) for path, parts in pending.items()})

    def mean(self, path, parts, period):
        rows = ALL
        if all(part.rows is not ALL for part in parts):
            rows = np.unique(np.concatenate([part.rows for part in parts]))
        total = sum(part.whole(self.w[path].shape).values for part in parts) / period
        return Gradient(total[rows], rows)

    def clipped(self, values):
        value, each, together = (
            self.options.get(name) for name in ("clipvalue", "clipnorm", "global_clipnorm")
        )
        norms = {path: np.sqrt((g**2).sum()) for path, g in values.items()}
        if value:
            return {path: np.clip(g, -value, value) for path, g in values.items()}
        if together:
            norms = dict.fromkeys(norms, np.sqrt(sum(n**2 for n in norms.values())))
        most = each or together
        if not most:
            return values
        return {p: g * min(1, most / norms[p]) if norms[p] else g for p, g in values.items()}

    def update(self, gradients):
        rows = {path: g.rows for path, g in gradients.items()}
        values = self.clipped({path: g.values for path, g in gradients.items()})
        w = {path: self.w[path][rows[path]] for path in values}
        shapes = {path: value.shape for path, value in self.w.items()}
        steps = self.node.steps(values, w, rows, self.count + 1, [], shapes)
        for path, step in steps.items():
            self.w[path] = self.moved(path, rows[path], step)
        self.used = (values, steps, rows)
        self.count += 1
        if self.options.get("use_ema"):
            self.average()

    def moved(self, path, rows, step):
        new = np.array(self.w[path])
        new[rows] += step
        return new

    def average(self):
        kept = self.options.get("ema_momentum", 0.99) if self.count > 1 else 0.0
        for path, w in self.w.items():
            self.averages[path] = np.array(kept * self.averages[path] + (1 - kept) * w)
        every = self.options.get("ema_overwrite_frequency")
        if every and self.count % every == 0:
            self.take_averages()

    def take_averages(self):
        self.w = {path: average.copy() for path, average in self.averages.items()}


class One:
    """Several replicas that take one step with the sum of their gradients."""

    def __init__(self, pipeline):
        self.pipeline = pipeline

    def apply(self, shares):
        self.pipeline.apply({path: summed([s[path] for s in shares]) for path in shares[0]})

    def finalize(self):
        """What the end of `fit` does."""
        if self.pipeline.options.get("use_ema"):
            self.pipeline.take_averages()

    def left(self):
        """What is compared: numbers by name."""
        p = self.pipeline
        left = {f"w/{path}": w for path, w in p.w.items()}
        if p.options.get("use_ema"):
            left |= {f"average/{path}": w for path, w in p.averages.items()}
        return left | {"iterations": p.count, "skipped_steps": p.skipped}


def summed(gradients):
    if all(g.rows is ALL for g in gradients):
        return Gradient(sum(g.values for g in gradients))
    return Gradient(
        np.concatenate([g.values for g in gradients]), np.concatenate([g.rows for g in gradients])
    )


class Workers:
    """`AGN`: a local copy for each replica, and a center.

    Args:
        local: the pipeline of a copy.
        center: that of the center.
        period, mode, reset: as `AGN`'s `communication_period`, `mode` and `reset_local_state`.
        replicas: how many copies there are.
    """

    def __init__(self, local, center, period, mode, reset, replicas):
        self.copies = [local.copy() for _ in range(replicas)]
        self.center, self.period = center, period
        self.mode, self.reset = mode, reset
        self.done, self.steps = [0] * replicas, 0
        self.restart()

    def restart(self):
        self.sums = [
            {p: (np.zeros_like(w), np.zeros(w.shape[:1], bool)) for p, w in c.w.items()}
            for c in self.copies
        ]
        self.taken = [0] * len(self.copies)

    def apply(self, shares):
        due, count = False, len(shares)
        for number, (local, share) in enumerate(zip(self.copies, shares, strict=True)):
            skipped = local.skipped
            local.apply({p: Gradient(count * g.values, g.rows) for p, g in share.items()})
            due |= local.used is not None or (local.skipped > skipped and count > 1)
            if local.used is not None:
                self.done[number] += 1
                self.taken[number] += 1
                self.add(number, *local.used)
        self.steps += due
        if due and self.steps % self.period == 0:
            self.communicate()

    def add(self, number, values, steps, rows):
        for path in values:
            total, touched = self.sums[number][path]
            total[rows[path]] += values[path] if self.mode == "gradients" else -steps[path]
            touched[rows[path]] = True

    def communicate(self):
        means = {}
        for path in self.center.w:
            parts = [s[path][0] / n for s, n in zip(self.sums, self.taken, strict=True)]
            if self.mode == "difference":  # a copy that took no step still makes the mean NaN
                parts = [part * n for part, n in zip(parts, self.taken, strict=True)]
            mean = np.array(sum(parts) / len(parts))
            touched = np.any([s[path][1] for s in self.sums], axis=0)
            rows = ALL if touched.all() else np.flatnonzero(touched)
            if touched.any():
                means[path] = Gradient(mean[rows], rows)
        self.center.apply(means)
        for local in self.copies:
            for path, g in means.items():
                local.w[path] = np.array(local.w[path])
                local.w[path][g.rows] = self.center.w[path][g.rows]
            if self.reset:
                local.count = 0
                local.node.forget({path: g.rows for path, g in means.items()})
        self.restart()

    def finalize(self):
        if self.center.options.get("use_ema"):
            self.center.take_averages()
        for local in self.copies:
            local.w = {path: w.copy() for path, w in self.center.w.items()}

    def left(self):
        first = self.copies[0]
        left = {f"w/{path}": w for path, w in first.w.items()}
        left |= {f"center/{path}": w for path, w in self.center.w.items()}
        counts = {"iterations": self.done[0], "skipped_steps": first.skipped}
        return left | counts | {"rounds": self.center.count}
