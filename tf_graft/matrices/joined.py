"""Kernels that join several matrices along their last axis, as far as their layout is known."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import keras

WITH_KERNEL = (
    *(keras.layers.Dense, keras.layers.EinsumDense),
    *(keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D),
)


class Joined(NamedTuple):
    """How the last axis of a kernel joins matrices.

    Args:
        name: the attribute of a layer that is the kernel, or a layer with it.
        parts: how many matrices there are.
        interleaved: whether their columns take turns; otherwise they are side by side.
        of: the class of the layer. `""`: any, and the layer with the kernel may also have that name
            itself; then the kernel must have `parts` times as many outputs as inputs.
    """

    name: str
    parts: int
    interleaved: bool = False
    of: str = ""


# The classes are those of keras-hub 0.32.
JOINED = (
    *(Joined(name, 3) for name in ("qkv", "attention_qkv", "attention_qkv2")),
    Joined("_qkv_dense", 3, of="GPTNeoXAttention"),
    Joined("gate_up_proj", 2, interleaved=True, of="GptOssExperts"),
    Joined("weights_in", 2, of="DINOV2SwiGLUFFN"),
    *(
        Joined("_expert_feedforward_gate_dense", 2, of=experts)
        for experts in ("QwenMoeExperts", "Qwen3MoeExperts", "Qwen3_5MoeExperts")
    ),
)


def joined_kernels(layers: Iterable[keras.Layer]) -> Iterator[tuple[keras.Variable, Joined]]:
    """Yields the kernels that are known to join several matrices, and how they do."""
    for layer in layers:
        for how in JOINED:
            kernel = _kernel(layer, how)
            if kernel is not None and len(kernel.shape) > 1 and _fits(kernel.shape, how):
                yield kernel, how


def _kernel(layer: keras.Layer, how: Joined) -> keras.Variable | None:
    """Returns the kernel of that name that a layer holds, or has if that is its own name."""
    if how.of not in ("", type(layer).__name__):
        return None
    held = getattr(layer, how.name, layer if how.name == layer.name else None)
    if isinstance(held, WITH_KERNEL):
        return next((v for v in held.weights if v.name == "kernel"), None)
    return held if isinstance(held, keras.Variable) else None


def _fits(shape: tuple[int, ...], how: Joined) -> bool:
    *inputs, last = shape
    if how.of:
        return last % how.parts == 0
    # Fewer keys than queries make a narrower kernel, whose parts are not of one size.
    return last == how.parts * math.prod(inputs)
