"""AGN in float64 NumPy, from the paper and what contrib's did: one worker or more."""

import numpy as np


class Worker:
    """A local copy, its optimizer's slots, and the sum since it last communicated."""

    def __init__(self, weights):
        self.w = {path: np.array(w, np.float64) for path, w in weights.items()}
        self.slots = {path: {} for path in self.w}
        self.restart()
        self.steps = 0

    def restart(self):
        self.sums = {path: np.zeros_like(w) for path, w in self.w.items()}
        self.taken = 0


class Rounds:
    """Workers around a center.

    Args:
        weights: by path.
        local, center: an algorithm of `oracles.py` with its rate and hyperparameters: each a
            function `(g, w, s, t)`.
        period: local steps between two communications.
        workers: how many.
        updates: whether the negative local steps are accumulated, not the gradients.
        reset: whether the local optimizer starts anew after each communication.
    """

    def __init__(self, weights, local, center, period, workers=1, updates=False, reset=False):
        self.local, self.center, self.period = local, center, period
        self.updates, self.reset = updates, reset
        self.workers = [Worker(weights) for _ in range(workers)]
        self.c = {path: np.array(w, np.float64) for path, w in weights.items()}
        self.slots = {path: {} for path in self.c}
        self.rounds = 0

    def local_step(self, number, g):
        """One worker's step with a gradient by path; nothing where it is not finite."""
        worker = self.workers[number]
        if not all(np.isfinite(x).all() for x in g.values()):
            return
        worker.steps += 1
        worker.taken += 1
        t = worker.taken if self.reset else worker.steps
        for path, x in g.items():
            x = np.array(x, np.float64)
            d = self.local(x, worker.w[path], worker.slots[path], t)
            worker.w[path] = worker.w[path] + d
            worker.sums[path] += -d if self.updates else x

    def push(self, numbers):
        """The mean of those workers' means goes to the center, from which they go on."""
        self.rounds += 1
        for path in self.c:
            means = [self.workers[i].sums[path] / self.workers[i].taken for i in numbers]
            mean = sum(means) / len(means)
            step = self.center(mean, self.c[path], self.slots[path], self.rounds)
            self.c[path] = self.c[path] + step
        for i in numbers:
            worker = self.workers[i]
            worker.w = {path: c.copy() for path, c in self.c.items()}
            worker.restart()
            if self.reset:
                worker.slots = {path: {} for path in self.c}

    def step(self, number, g):
        """One worker's step in its own time: it communicates alone when its period is over."""
        before = self.workers[number].steps
        self.local_step(number, g)
        steps = self.workers[number].steps
        if steps > before and steps % self.period == 0:
            self.push([number])

    def steps_together(self, each, count):
        """A step of all workers in lockstep, each with its share of the whole gradient.

        Args:
            each: a gradient by path for each worker.
            count: how many steps were made before.
        """
        for i, g in enumerate(each):
            self.local_step(i, {path: len(each) * x for path, x in g.items()})
        if (count + 1) % self.period == 0:
            self.push(range(len(each)))


def by(algorithm, rate, **hyperparameters):
    """An optimizer: an algorithm of `oracles.py` at a constant rate, or one of the step number."""
    lr = rate if callable(rate) else lambda t: rate
    return lambda g, w, s, t: algorithm(g, w, s, lr(t), t, **hyperparameters)
