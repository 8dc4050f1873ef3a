"""A test that blocks the interpreter, as TensorFlow does in a deadlock: no other thread runs."""

import ctypes


def test_hangs():
    ctypes.PyDLL(None).sleep(100)
