"""States that no run has saved, though every checksum in their files fits."""

import json

import numpy as np
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from tf_graft.training.saved_state import GRAPH, ORIGIN, VALUE

KERNEL = f"model_00000{VALUE}"
FAR = 10**15


def changes(optimizer):
    """What is changed in the values of a state, by name: functions of the values by key."""
    keys = {
        variable.path.rpartition("/")[2]: f"optimizer_{number:05d}{VALUE}"
        for number, variable in enumerate(optimizer.variables)
    }
    first, second = _alike(optimizer.variables)
    return {
        **{f"step {given}": _step(given) for given in (-5, 0, 16, FAR, np.nan, [17, 17], "17")},
        "no step": _without_step,
        **{f"{n} iterations": _set(keys["iteration"], np.int64(n)) for n in (-5, FAR)},
        "a negative square": _filled(keys["velocity"], -1),
        **{f"{n} in a kernel": _in_one_place(KERNEL, n) for n in NOT_FINITE},
        **{f"{n} in {role}": _in_one_place(keys[role], n) for n in NOT_FINITE for role in ROLES},
        "a kernel too few": _without(KERNEL),
        "a kernel too many": _set(f"model_00099{VALUE}", np.zeros(3, np.float32)),
        "a kernel turned": lambda values: values.update({KERNEL: values[KERNEL].T.copy()}),
        **{f"a kernel of {dtype}": _cast(KERNEL, dtype) for dtype in DTYPES},
        "values exchanged in the graph": _in_graph(lambda graph: _exchange(graph, first, second)),
        "a value doubled in the graph": _in_graph(lambda graph: _double(graph, first, second)),
        "a graph without names": _in_graph(lambda graph: graph.nodes[0].ClearField("children")),
        "a graph that leads nowhere": _in_graph(_lead_nowhere),
        "a graph with a saver": _in_graph(_name_saver),
        "no graph": _without(GRAPH),
        "a graph of noise": _set(GRAPH, b"\xff\x00noise"),
        "an origin of noise": _set(ORIGIN, b"\xff\x00noise"),
        "an origin without a config": _in_origin(lambda origin: origin.pop("config")),
        "an origin without checksums": _in_origin(lambda origin: origin.pop("checksums")),
        "an origin without paths": _in_origin(lambda origin: origin.pop("paths")),
        "an origin with paths of noise": _in_origin(lambda origin: origin.update(paths="\x00")),
        "an origin without a group": _in_origin(lambda origin: origin["paths"].pop("optimizer")),
        "an origin with a path too few": _in_origin(lambda origin: origin["paths"]["model"].pop()),
        "an origin with a path twice": _in_origin(_repeat_a_path),
        "an origin of lists": _set(ORIGIN, b"[" * 100_000),
    }


NOT_FINITE = (np.nan, np.inf, -np.inf)
ROLES = ("velocity", "momentum", "learning_rate", "magnitude_norm")
DTYPES = ("float64", "float16", "int32", "bool", "complex64")


def _set(key, value):
    return lambda values: values.update({key: value})


def _step(value):
    return _in_origin(lambda origin: origin.update(step=value))


def _without_step(values):
    _in_origin(lambda origin: origin.pop("step"))(values)


def _in_origin(change):
    def changed(values):
        origin = json.loads(values[ORIGIN])
        change(origin)
        values[ORIGIN] = json.dumps(origin).encode()

    return changed


def _repeat_a_path(origin):
    origin["paths"]["model"][1] = origin["paths"]["model"][0]


def _without(key):
    return lambda values: values.pop(key)


def _filled(key, value):
    return lambda values: values[key].fill(value)


def _in_one_place(key, number):
    def changed(values):
        values[key] = np.array(values[key])
        values[key].flat[-1] = number

    return changed


def _cast(key, dtype):
    return lambda values: values.update({key: values[key].astype(dtype)})


def _alike(variables):
    """The names of two variables of one shape."""
    shapes = [tuple(variable.shape) for variable in variables]
    first = next(i for i, shape in enumerate(shapes) if shape and shapes.count(shape) > 1)
    second = shapes.index(shapes[first], first + 1)
    return f"optimizer_{first:05d}", f"optimizer_{second:05d}"


def _in_graph(change):
    def changed(values):
        graph = TrackableObjectGraph.FromString(values[GRAPH])
        change(graph)
        values[GRAPH] = graph.SerializeToString()

    return changed


def _child(graph, name):
    return next(child for child in graph.nodes[0].children if child.local_name == name)


def _exchange(graph, first, second):
    a, b = _child(graph, first), _child(graph, second)
    a.node_id, b.node_id = b.node_id, a.node_id


def _double(graph, first, second):
    _child(graph, second).node_id = _child(graph, first).node_id


def _lead_nowhere(graph):
    for child in graph.nodes[0].children:
        child.node_id += 10_000


def _name_saver(graph):
    graph.nodes[1].registered_saver.name = "Custom.evil"
