"""The schema of configs: one pydantic model per section; nothing else is accepted.

Sizes have limits, so that a config from elsewhere cannot claim the whole machine by mistake.
"""

import os
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    field_validator,
    model_validator,
)

from tf_graft.training import start
from tf_graft.training.source import ConfigError, Key, Source

Config = dict[str, Any]  # checked later, by the code that uses it
Rate = Annotated[float, Field(ge=0, lt=1)]
Width = Annotated[int, Field(ge=1, le=65_536)]
Layouts = dict[str, list[Literal["batch", "model"] | None]]
Rows = Annotated[int, Field(ge=1, le=10_000_000)]
Depth = Annotated[int, Field(ge=1, le=128)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 3)]  # the global seed is one more, and not 2**31 - 1
ClassNumber = Annotated[int, Field(ge=0, lt=2**31)]
FormerRow = Annotated[int, Field(ge=-1, lt=2**31)]
Name = Annotated[str, Field(min_length=1)]
FilePath = Annotated[Name, AfterValidator(os.path.expanduser)]
Cross = Annotated[list[Name], Field(min_length=2, max_length=2)]
Epochs = Annotated[int, Field(ge=0, le=1_000_000)]


class Section(BaseModel):
    """A part of a config: exact types, no unknown keys. The text below a key describes it."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    _source: Source = PrivateAttr(default_factory=lambda: Source("the config"))

    @property
    def source(self) -> Source:
        """The file and the overrides that gave the values, with the place of each."""
        return self._source

    def of(self, source: Source) -> Self:
        """Notes where the values came from, in this section and those within; returns it."""
        self._source = source
        for _, value in self:
            if isinstance(value, Section):
                value.of(source)
        return self

    def error(self, key: Key, message: str) -> ConfigError:
        """Makes a ConfigError that names the place of a value, by its key in the whole config."""
        return self._source.error(key, message)


class Data(Section):
    """The data set, and how its batches are made."""

    name: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_]+(/[A-Za-z0-9_][\w.\-]*)?(:\d+\.\d+\.\d+)?$")
    ] = "digits"
    """`digits`, `text`, `words`, or a name of tensorflow-datasets"""
    dir: FilePath | None = None
    """the folder of prepared data sets; `TFDS_DATA_DIR` or `~/.cache/tf_graft/datasets`"""
    batch_size: Annotated[int, Field(ge=1, le=65_536)] = 32
    """the number of examples in a batch, for all replicas or workers together"""
    shuffle_buffer: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    """the number of examples from which the next one is drawn"""
    train: str = "train"
    """the split to train on, or a part of it: `train[:35%]`"""
    test: str = "test"
    """the split to test on after each epoch"""
    classes: Annotated[list[ClassNumber], Field(min_length=1, max_length=65_536)] | None = None
    """the classes to learn, numbered from 0 in this order; examples of others are left out"""
    sequence_length: Annotated[int, Field(ge=2, le=8_192)] = 128
    """the length of texts, in characters or words"""
    vocabulary: Annotated[int, Field(ge=2, le=10_000_000)] = 20_000
    """the number of ids; words are hashed to them"""
    image_size: Annotated[int, Field(ge=1, le=2_048)] | None = None
    """the size to which images are resized"""
    fields: Annotated[dict[Name, Rows], Field(min_length=1, max_length=1_024)] | None = None
    """for click models: the features that are ids, each with its number of rows in a table"""
    label: Name | None = None
    """for click models: the feature that says what was clicked, or a rating"""
    positive_from: float = 1.0
    """the smallest `label` that counts as a click: class 1, the others are class 0"""

    @field_validator("classes")
    @classmethod
    def _differ(cls, classes: list[int] | None) -> list[int] | None:
        if repeated := [c for i, c in enumerate(classes or ()) if c in (classes or ())[:i]]:
            raise ValueError(f"classes holds {repeated[0]} twice")
        return classes

    @model_validator(mode="after")
    def _fields_have_a_label(self) -> "Data":
        if (self.fields is None) != (self.label is None):
            given, other = ("label", "fields") if self.fields is None else ("fields", "label")
            raise ValueError(f"{given}: it does nothing without {other}; give it as well")
        return self


class Mlp(Section):
    """Dense layers with ReLU."""

    name: Literal["mlp"]
    units: Annotated[list[Width], Field(max_length=128)] = [128]
    """the units of each hidden layer"""
    dropout: Rate = 0.0
    """the rate after each hidden layer"""


class Cnn(Section):
    """Blocks of convolution, normalization and pooling, then a dense layer."""

    name: Literal["cnn"]
    filters: Annotated[list[Width], Field(min_length=1, max_length=16)] = [32, 64]
    """the filters of each block"""
    units: Width = 128
    """the units of the dense layer"""
    dropout: Rate = 0.0
    """the rate before the last layer"""


class Transformer(Section):
    """A decoder-only causal language model."""

    name: Literal["transformer"]
    d_model: Width = 128
    """the width, a multiple of `heads`"""
    layers: Depth = 2
    """the number of blocks of attention and feed-forward"""
    heads: Annotated[int, Field(ge=1, le=256)] = 4
    """the number of attention heads"""
    feed_forward: Width = 512
    """the width within a block"""
    dropout: Rate = 0.0
    """the rate in each block"""

    @model_validator(mode="after")
    def _sizes_fit(self) -> "Transformer":
        if self.d_model % self.heads:
            raise ValueError(f"d_model={self.d_model} must be a multiple of heads={self.heads}")
        return self


class Embedding(Section):
    """The mean of a text's word embeddings, then dense layers."""

    name: Literal["embedding"]
    dimension: Width = 64
    """the length of a word's vector"""
    units: Annotated[list[Width], Field(max_length=128)] = [64]
    """the units of each hidden layer"""
    dropout: Rate = 0.0
    """the rate after each hidden layer"""


class TwoTower(Section):
    """A vector for each user and item; the other items of a batch are the wrong answers."""

    name: Literal["two_tower"]
    dimension: Width = 16
    """the length of a vector"""


class Dlrm(Section):
    """A click model: a table for each field, the dot products of all pairs, dense layers."""

    name: Literal["dlrm"]
    dimension: Width = 16
    """the length of an id's vector"""
    units: Annotated[list[Width], Field(max_length=128)] = [64, 32]
    """the units of each hidden layer"""
    dropout: Rate = 0.0
    """the rate after each hidden layer"""


class WideAndDeep(Section):
    """A click model: a linear one of ids and their crosses, beside dense layers on embeddings."""

    name: Literal["wide_and_deep"]
    dimension: Width = 8
    """the length of an id's vector in the deep part"""
    units: Annotated[list[Width], Field(max_length=128)] = [64, 32]
    """the units of each hidden layer of the deep part"""
    dropout: Rate = 0.0
    """the rate after each hidden layer"""
    crosses: Annotated[list[Cross], Field(max_length=1_024)] = []
    """pairs of fields whose joint ids have weights in the wide part, too"""
    cross_size: Rows = 100_003
    """the number of weights of each cross; joint ids are taken modulo this number"""


class Application(Section):
    """A network of `keras.applications`, from random weights."""

    name: Annotated[str, Field(pattern=r"^\w+$")]
    """`ResNet50`, `MobileNetV2` ..."""


MODELS: dict[str, type[Section]] = {
    "mlp": Mlp,
    "cnn": Cnn,
    "transformer": Transformer,
    "embedding": Embedding,
    "two_tower": TwoTower,
    "dlrm": Dlrm,
    "wide_and_deep": WideAndDeep,
}  # all others are of `keras.applications`


def _which_model(value: object) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    kind = name.lower() if isinstance(name, str) else ""
    return kind if kind in MODELS else "application"


Model = Annotated[
    Annotated[Mlp, Tag("mlp")]
    | Annotated[Cnn, Tag("cnn")]
    | Annotated[Transformer, Tag("transformer")]
    | Annotated[Embedding, Tag("embedding")]
    | Annotated[TwoTower, Tag("two_tower")]
    | Annotated[Dlrm, Tag("dlrm")]
    | Annotated[WideAndDeep, Tag("wide_and_deep")]
    | Annotated[Application, Tag("application")],
    Discriminator(_which_model),
]


class Vocabularies(Section):
    """The tokens of a table's rows, then and now: files with a token in each line."""

    former: FilePath
    """the file of the tokens in `start_from`"""
    present: FilePath
    """the file of the tokens in this run"""


FormerRows = Annotated[
    Annotated[list[FormerRow], Tag("numbers")] | Annotated[Vocabularies, Tag("vocabularies")],
    Discriminator(lambda given: "numbers" if isinstance(given, list) else "vocabularies"),
]


class FineTuning(Section):
    """The weights that training starts from, and layers that are frozen at first."""

    start_from: FilePath | None = None
    """trained weights: the folder of a run, or a file that ends in `.keras` or `.weights.h5`"""
    new_layers: Annotated[list[Name], Field(max_length=65_536)] = []
    """layers that start from random weights in any case, such as the head"""
    rows: dict[Name, FormerRows] = {}
    """tables whose rows had other numbers in `start_from`: `former` and `present` vocabulary, or a
    list of each row's former number, -1 for none; the optimizer's state is taken over, too"""
    unfreeze: dict[str, Epochs] = {}
    """layers that are frozen at first, each with the number of epochs: `dense: 2`"""

    @model_validator(mode="after")
    def _something_is_old(self) -> "FineTuning":
        if self.new_layers and self.start_from is None:
            raise ValueError("new_layers: all layers are new without start_from; give it as well")
        if self.rows and self.start_from is None:
            raise ValueError("rows: no row is a former one without start_from; give it as well")
        if self.rows and self.new_layers:
            raise ValueError("new_layers: it does not go with rows, for which all layers must fit")
        return self


class Optimizer(Section):
    """The optimizer's name and its arguments, which the optimizer itself checks."""

    model_config = ConfigDict(extra="allow")

    name: str
    """a name in `tf-graft list`, or of an optimizer of Keras"""
    learning_rate: float | Config | None = None
    """a number, or a schedule: its name and arguments"""

    def given(self) -> Config:
        """Returns the values that were given, with null, which some arguments accept."""
        values = self.model_dump()
        return {k: v for k, v in values.items() if k != "learning_rate" or v is not None}


OPENSEQ2SEQ = "openseq2seq"  # the section's name; it is no part of a RunConfig


class OpenSeq2Seq(Section):
    """An optimizer in the words of OpenSeq2Seq's configs, translated into `optimizer`."""

    optimizer: str
    """OpenSeq2Seq's name"""
    optimizer_params: Config = {}
    """the optimizer's arguments"""
    lr_policy: str
    """a policy of OpenSeq2Seq"""
    lr_policy_params: Config = {}
    """the policy's arguments; without `decay_steps` the decay lasts to the end"""
    larc_params: Config | None = None
    """LARC's arguments: `larc_eta`, `larc_mode` ..."""
    loss_scaling: float | str = 1.0
    """a number, `Backoff` or `LogMax`"""
    loss_scaling_params: Config | None = None
    """the arguments of `Backoff` or `LogMax`"""
    iter_size: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """the number of micro-steps in an update"""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = None
    """the largest norm of all gradients together"""
    dtype: Literal["mixed", "float32"] = "float32"
    """`mixed` is float16 with a loss scale"""


class Precision(Section):
    """The dtype policy of the layers."""

    policy: Literal["float32", "mixed_bfloat16", "mixed_float16", "float16", "bfloat16"] = "float32"
    """Keras' dtype policy of the layers"""


class Mirrored(Section):
    """One process, a copy of the model on each of its devices: GPUs, else parts of the CPU."""

    name: Literal["mirrored"]
    devices: Annotated[int, Field(ge=1, le=256)] | None = None
    """the number of GPUs, or of parts of the CPU if there is no GPU; `null`: all GPUs"""


class MultiWorker(Section):
    """Several processes, a copy of the model in each; `TF_CONFIG` describes the cluster."""

    name: Literal["multi_worker"]


class ParameterServer(Section):
    """A chief assigns steps to workers, which update variables on servers; see `TF_CONFIG`."""

    name: Literal["parameter_server"]
    shards: Annotated[int, Field(ge=1, le=1_024)] = 1
    """the number of parts of each variable"""


STRATEGIES: dict[str, type[Section]] = {
    "mirrored": Mirrored,
    "multi_worker": MultiWorker,
    "parameter_server": ParameterServer,
}


class Mesh(Section):
    """A grid of devices: batches are divided over one dimension, weights over the other.

    With `shard_slots` the devices of `batch` divide the optimizer's slots, too (ZeRO, stage 1).
    """

    batch: Annotated[int, Field(ge=1, le=65_536)] = 1
    """the number of devices that divide the batches"""
    model: Annotated[int, Field(ge=1, le=65_536)] = 1
    """the number of devices that divide the weights"""
    shard_slots: bool = False
    """whether the devices of `batch` divide the optimizer's slots (ZeRO, stage 1)"""
    layouts: Layouts = {}
    """regular expressions on variables' paths, with a dimension or `null` for each axis"""

    @field_validator("layouts")
    @classmethod
    def _are_expressions(cls, layouts: Layouts) -> Layouts:
        if not layouts:
            return layouts
        start.tensorflow()  # no other config needs it to be read
        from tf_graft.core import patterns
        from tf_graft.core.checks import shown

        for pattern in layouts:
            if problem := patterns.fault(pattern):
                raise ValueError(f"{shown(pattern)} {shown(problem, str)}")
        return layouts


class Run(Section):
    """The length of the run, what it keeps, and where."""

    epochs: Annotated[int, Field(ge=1, le=1_000_000)]
    """the number of passes over the training data"""
    seed: Seed = 0
    """the seed of weights, shuffling and dropout"""
    dir: FilePath | None = None
    """the folder of the run; else `runs/` and the config's name"""
    fresh: bool = False
    """whether to remove an existing run first, in place of continuing it"""
    checkpoint_every: Annotated[int, Field(ge=1)] = 500
    """the number of steps between saved states"""
    keep_checkpoints: Annotated[int, Field(ge=1, le=1_000)] = 3
    """the number of saved states to keep, the newest ones"""
    steps_per_execution: Annotated[int, Field(ge=1, le=100_000)] = 1
    """the number of steps that one call of TensorFlow takes"""
    jit_compile: bool = False
    """whether XLA compiles the step"""
    deterministic: bool = True
    """whether GPUs must repeat every bit"""
    monitor: Annotated[int, Field(ge=1)] | None = None
    """the number of batches between measurements of norms by layer, for `tf-graft report`"""
    tensorboard: bool | None = None
    """whether to write TensorBoard files; `null`: if TensorBoard is installed"""
    progress: Literal["auto", "bar", "line", "none"] = "auto"
    """how progress is shown"""


class RunConfig(Section):
    """A whole config."""

    data: Data = Data()
    model: Model
    fine_tuning: FineTuning = FineTuning()
    optimizer: Optimizer
    precision: Precision = Precision()
    strategy: Annotated[
        Mirrored | MultiWorker | ParameterServer | None, Field(discriminator="name")
    ] = None
    mesh: Mesh | None = None
    run: Run
