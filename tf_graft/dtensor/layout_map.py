"""Which variable of a model lies how on a mesh."""

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from tensorflow.experimental import dtensor

from tf_graft.core import checks
from tf_graft.core.checks import shown

Spec = Sequence[str | None]


class LayoutMap(MutableMapping[str, dtensor.Layout]):
    """Regular expressions on variable paths (`dense/kernel`), each with a layout.

    What `tf.keras.dtensor.experimental.LayoutMap` was, for Keras 3, with these differences: an
    expression is searched for anywhere in the path, two that match the same path are refused
    instead of taking the first, a layout can be given as a list of mesh dimensions, and a variable
    that no expression matches is replicated.

    Reading `layout_map[path]` looks for `path` itself first, then for the expression that matches;
    it is None where there is none.

    Args:
        mesh: the mesh all layouts are on.
        layouts: expression to layout, in place of setting them one by one. A layout is a
            `tf.experimental.dtensor.Layout` or one entry per dimension of the variable: the name of
            the mesh dimension it is divided over, or None for a dimension that is not divided.

    Raises:
        TypeError: a key that is not text; a layout that is neither.
        ValueError: not a regular expression; an expression set twice; a layout of another mesh, or
            with a dimension that the mesh does not have, or with one twice.

    Example:
        A dense layer's weights by columns, everything else whole on every device:

        ```python
        layout_map = tg.dtensor.LayoutMap(mesh, {"dense/kernel": [None, "model"]})
        layout_map["dense/bias"] = ["model"]
        ```
    """

    def __init__(
        self, mesh: dtensor.Mesh, layouts: Mapping[str, Spec | dtensor.Layout] | None = None
    ):
        if not isinstance(mesh, dtensor.Mesh):
            raise TypeError(
                f"LayoutMap(mesh={shown(mesh)}): mesh must be a tf.experimental.dtensor.Mesh; "
                "tg.dtensor.create_mesh makes one."
            )
        self.mesh = mesh
        self._layouts: dict[str, dtensor.Layout] = {}
        given = {} if layouts is None else checks.instance("LayoutMap", "layouts", layouts, Mapping)
        for pattern, layout in given.items():
            self[pattern] = layout

    def __setitem__(self, pattern: str, layout: Spec | dtensor.Layout) -> None:
        if not isinstance(pattern, str):
            raise TypeError(f"LayoutMap[{shown(pattern)}]: an expression must be text.")
        if pattern in self._layouts:
            raise ValueError(f"LayoutMap['{pattern}']: it is set already; `del` it first.")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(
                f"LayoutMap['{pattern}']: it is not a regular expression: {error}."
            ) from None
        self._layouts[pattern] = self._checked(pattern, layout)

    def __getitem__(self, path: str) -> dtensor.Layout | None:
        pattern = self.pattern_for(path)
        return None if pattern is None else self._layouts[pattern]

    def __contains__(self, pattern: object) -> bool:
        return pattern in self._layouts

    def __delitem__(self, pattern: str) -> None:
        del self._layouts[pattern]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def __repr__(self) -> str:
        specs = {
            pattern: _readable(layout.sharding_specs) for pattern, layout in self._layouts.items()
        }
        return f"LayoutMap({specs})"

    def pattern_for(self, path: str) -> str | None:
        """The expression that says how the variable of that path lies; None where none does.

        Raises:
            ValueError: several match.
        """
        if path in self._layouts:
            return path
        matching = [pattern for pattern in self._layouts if re.search(pattern, path)]
        if len(matching) > 1:
            listed = " and ".join(f"'{pattern}'" for pattern in matching)
            raise ValueError(
                f"LayoutMap: '{path}' is matched by {listed}; make them exclude each other, or set "
                "the path itself."
            )
        return matching[0] if matching else None

    def layout_for(self, path: str, shape: Sequence[int]) -> dtensor.Layout:
        """The layout of a variable of that path and shape; replicated where nothing matches.

        Raises:
            ValueError: several expressions match; the layout has another rank than the variable; a
                dimension cannot be divided evenly.
        """
        pattern = self.pattern_for(path)
        if pattern is None:
            return dtensor.Layout.replicated(self.mesh, len(shape))
        layout = self._layouts[pattern]
        specs = list(layout.sharding_specs)
        where = f"LayoutMap['{pattern}'] = {_readable(specs)}"
        if len(specs) != len(shape):
            raise ValueError(
                f"{where}: '{path}' has shape {tuple(shape)}, of rank {len(shape)}, and the layout "
                f"is of rank {len(specs)}."
            )
        for axis, (size, name) in enumerate(zip(shape, specs, strict=True)):
            if name != dtensor.UNSHARDED and size % self.mesh.dim_size(name):
                raise ValueError(
                    f"{where}: dimension {axis} of '{path}', of shape {tuple(shape)}, cannot be "
                    f"divided evenly over the {self.mesh.dim_size(name)} devices of '{name}'."
                )
        return layout

    def _checked(self, pattern: str, layout: Any) -> dtensor.Layout:
        if isinstance(layout, dtensor.Layout):
            if layout.mesh != self.mesh:
                raise ValueError(f"LayoutMap['{pattern}']: the layout is on another mesh.")
            return layout
        if isinstance(layout, str) or not isinstance(layout, Sequence):
            raise TypeError(
                f"LayoutMap['{pattern}'] = {shown(layout)}: it must be a layout, or a list with "
                "a mesh dimension or None for each dimension of the variable."
            )
        specs = [dtensor.UNSHARDED if name is None else name for name in layout]
        for name in specs:
            if name != dtensor.UNSHARDED and name not in self.mesh.dim_names:
                raise ValueError(
                    f"LayoutMap['{pattern}'] = {_readable(specs)}: the mesh has no dimension "
                    f"{name!r}, only {', '.join(map(repr, self.mesh.dim_names))}."
                )
            if name != dtensor.UNSHARDED and specs.count(name) > 1:
                raise ValueError(
                    f"LayoutMap['{pattern}'] = {_readable(specs)}: '{name}' can divide one "
                    "dimension only."
                )
        return dtensor.Layout(specs, self.mesh)


def _readable(specs: Sequence[str]) -> list[str | None]:
    return [None if name == dtensor.UNSHARDED else name for name in specs]
