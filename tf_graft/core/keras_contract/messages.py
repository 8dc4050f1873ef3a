"""Messages of TensorFlow's files and graphs; its public interface has no names for them."""

from tensorflow.core.framework.function_pb2 import FunctionDef as FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef as NodeDef
from tensorflow.core.protobuf.trackable_object_graph_pb2 import (
    TrackableObjectGraph as TrackableObjectGraph,
)
