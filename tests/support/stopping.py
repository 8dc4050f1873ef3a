"""A training run that is asked to stop, as by a signal, at a known step."""

import contextlib
import signal

import pytest

from tf_graft.training import loop


@contextlib.contextmanager
def stopping_at(step):
    """As a SIGTERM would, asks the run to stop while `step` is computed."""
    before = loop.Bookkeeping.on_train_batch_end

    def stop(self, batch, logs=None):
        if self.step + len(self.model.notes()) >= step:
            self.stop.signum = signal.SIGTERM
        before(self, batch, logs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Bookkeeping, "on_train_batch_end", stop)
        yield
