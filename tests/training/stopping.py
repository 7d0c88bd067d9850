"""Training that is stopped, and states that are compared."""

import itertools
import os
import signal

import numpy as np
import pytest

from marin.nn.trees import named_leaves
from marin.training.loop import train_lm


def arrays_of(state) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in named_leaves(state).items()}


def assert_equal(one, other) -> None:
    one, other = arrays_of(one), arrays_of(other)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def stop_after(config, step, monkeypatch, *measures):
    """Trains, with what is measured meanwhile, as a process that gets Ctrl-C during step `step`."""
    from marin.training import loop

    original = loop.Prefetcher.take
    taken = itertools.count()

    def take(self):
        if next(taken) == step:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Prefetcher, "take", take)
        with pytest.raises(KeyboardInterrupt):
            train_lm(config, *measures)
