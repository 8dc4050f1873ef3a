"""The layouts of a model's variables on a mesh, by path."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

import keras
from tensorflow.experimental import dtensor

from tf_graft.core import checks, patterns
from tf_graft.core.checks import shown
from tf_graft.core.places.mesh_arguments import (
    LayoutLike,
    MeshLike,
    as_layout,
    as_mesh,
    layout_of,
)

Spec = Sequence[str | None]


class LayoutMap(MutableMapping[str, dtensor.Layout]):
    """Maps regular expressions on variable paths (`dense/kernel`) to layouts.

    It replaces `tf.keras.dtensor.experimental.LayoutMap`, which Keras 3 does not have. Differences:
    an expression may match anywhere in the path; if several expressions match a path, that is an
    error; a layout may be a list of mesh dimensions; a variable without a match is replicated.

    `layout_map[path]` looks up `path` itself first, then a matching expression, and returns None if
    there is no match.

    Args:
        mesh: the mesh of all layouts, a `tf.experimental.dtensor.Mesh` or a
            `keras.distribution.DeviceMesh`.
        layouts: a dict of layouts by expression. A layout is a `tf.experimental.dtensor.Layout`, a
            `keras.distribution.TensorLayout`, or one entry per dimension of the variable: the name
            of the mesh dimension that shards it, or None.

    Raises:
        TypeError: a key is not text; a layout is of another type; `layouts` is a
            `keras.distribution.LayoutMap`, whose expressions match in another way; pass it to
            `distribute`.
        ValueError: a key is not a regular expression, or is set twice; a layout is of another mesh,
            or names a dimension twice or one that the mesh does not have.

    Example:
        Shards a dense layer's weights by columns and replicates everything else:

        ```python
        layout_map = tg.dtensor.LayoutMap(mesh, {"dense/kernel": [None, "model"]})
        layout_map["dense/bias"] = ["model"]
        ```

        On a mesh that Keras describes:

        >>> import keras, tf_graft as tg
        >>> mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
        >>> tg.dtensor.LayoutMap(mesh, {"dense/kernel": (None, "model")})
        LayoutMap({'dense/kernel': [None, 'model']})
    """

    def __init__(self, mesh: MeshLike, layouts: Mapping[str, Spec | LayoutLike] | None = None):
        self.mesh = as_mesh("LayoutMap", mesh)
        self._layouts: dict[str, dtensor.Layout] = {}
        if isinstance(layouts, keras.distribution.LayoutMap):
            raise TypeError(
                "LayoutMap: a keras.distribution.LayoutMap matches by Keras' rules, and these are "
                "others; give it to tg.dtensor.distribute as it is."
            )
        given = {} if layouts is None else checks.instance("LayoutMap", "layouts", layouts, Mapping)
        for pattern, layout in given.items():
            self[pattern] = layout

    def __setitem__(self, pattern: str, layout: Spec | LayoutLike) -> None:
        if not isinstance(pattern, str):
            raise TypeError(f"LayoutMap[{shown(pattern)}]: an expression must be text.")
        if pattern in self._layouts:
            raise ValueError(f"LayoutMap['{pattern}']: it is set already; `del` it first.")
        if problem := patterns.fault(pattern):
            raise ValueError(f"LayoutMap[{shown(pattern)}]: it {shown(problem, str)}.")
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
        """Returns the expression that matches the path; None if there is none.

        Raises:
            ValueError: several expressions match.
        """
        if path in self._layouts:
            return path
        matching = [pattern for pattern in self._layouts if patterns.found(pattern, path)]
        if len(matching) > 1:
            listed = " and ".join(f"'{pattern}'" for pattern in matching)
            raise ValueError(
                f"LayoutMap: '{path}' is matched by {listed}; make them exclude each other, or set "
                "the path itself."
            )
        return matching[0] if matching else None

    def layout_for(self, path: str, shape: Sequence[int]) -> dtensor.Layout:
        """Returns the layout of a variable by path and shape; a replicated one if no expression
        matches.

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

    def _checked(self, pattern: str, layout: object) -> dtensor.Layout:
        where = f"LayoutMap['{pattern}']"
        if isinstance(layout, keras.distribution.TensorLayout):
            layout = layout.axes if layout.device_mesh is None else as_layout(where, layout)
        if isinstance(layout, dtensor.Layout):
            if layout.mesh != self.mesh:
                raise ValueError(f"{where}: the layout is on another mesh.")
            return layout
        if isinstance(layout, str) or not isinstance(layout, Sequence):
            raise TypeError(
                f"{where} = {shown(layout)}: it must be a layout, or a list with a mesh dimension "
                "or None for each dimension of the variable."
            )
        return layout_of(f"{where} = {_readable(layout)}", layout, self.mesh)


def _readable(specs: Spec) -> list[str | None]:
    return [None if name == dtensor.UNSHARDED else name for name in specs]
