"""Which variables are matrices, found from layers and given by hand, and the table of them."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from tf_graft.matrices.axes import Axes

LAYERS = keras.layers


def model_of_many_layers():
    image = keras.Input((6, 6, 4))
    x = LAYERS.Conv2D(4, 3, padding="same", name="conv")(image)
    x = LAYERS.Conv2D(4, 3, groups=2, padding="same", name="grouped")(x)
    x = LAYERS.Conv2DTranspose(2, 3, padding="same", name="transposed")(x)
    x = LAYERS.DepthwiseConv2D(3, padding="same", name="depthwise")(x)
    x = LAYERS.SeparableConv2D(4, 3, padding="same", name="separable")(x)
    x = LAYERS.BatchNormalization(name="norm")(x)
    x = LAYERS.PReLU(name="slopes")(LAYERS.Reshape((36, 4))(x))
    x = LAYERS.LSTM(5, return_sequences=True, name="lstm")(x)
    x = LAYERS.GRU(6, return_sequences=True, name="gru")(x)
    x = LAYERS.MultiHeadAttention(2, 3, name="attention")(x, x)
    x = LAYERS.EinsumDense("abc,cb->ab", output_shape=(36,), name="einsum")(x)
    x = LAYERS.Dense(7, activation="relu", name="dense")(x)
    x = LAYERS.Softmax()(LAYERS.Dense(3, name="head")(x))
    return keras.Model(image, x)


# The paths of matrices, and their sizes: how many, inputs, outputs.
SIZES = {
    "conv/kernel": (1, 36, 4),
    "grouped/kernel": (2, 18, 2),
    "transposed/kernel": (1, 4, 18),
    "separable/pointwise_kernel": (1, 2, 4),
    "lstm/lstm_cell/kernel": (4, 4, 5),
    "lstm/lstm_cell/recurrent_kernel": (4, 5, 5),
    "gru/gru_cell/kernel": (3, 5, 6),
    "gru/gru_cell/recurrent_kernel": (3, 6, 6),
    "attention/query/kernel": (1, 6, 6),
    "attention/key/kernel": (1, 6, 6),
    "attention/value/kernel": (1, 6, 6),
    "attention/attention_output/kernel": (1, 6, 6),
    "einsum/kernel": (36, 6, 1),
    "dense/kernel": (1, 36, 7),
}


def sizes(found):
    return {path: axes.size for path, axes in found.items() if axes is not None}


def test_layers_say_what_their_kernels_are():
    model = model_of_many_layers()
    found = tg.axes_of(model)
    assert list(found) == [v.path for v in model.trainable_variables]
    assert sizes(found) == SIZES
    apart = sizes(tg.axes_of(model, heads="apart"))
    assert apart == SIZES | {
        **{f"attention/{part}/kernel": (2, 6, 3) for part in ("query", "key", "value")},
        "attention/attention_output/kernel": (2, 3, 6),
    }


@pytest.mark.slow
def test_an_optimizer_that_is_built_for_a_model_finds_the_same():
    model = model_of_many_layers()
    optimizer = tg.Muon()
    optimizer.build(model)
    assert optimizer.axes_by_path == tg.axes_of(model)


def fitted(model, optimizer=None, **compiled):
    """Fits a model of few layers; returns the paths that its optimizer takes for matrices."""
    optimizer = tg.Muon(0.05, others=tg.SGD(0.0)) if optimizer is None else optimizer
    model.compile(optimizer, "mse", **compiled)
    before = {v.path: v.numpy() for v in model.trainable_variables}
    x = np.ones([2, *model.inputs[0].shape[1:]])
    model.fit(x, np.ones([2, *model.outputs[0].shape[1:]]), verbose=0)
    moved = {v.path for v in model.trainable_variables if (v.numpy() != before[v.path]).any()}
    assert moved == sizes(optimizer.axes_by_path).keys() == sizes(tg.axes_of(model)).keys()
    return moved


def layers_of_three():
    given = keras.Input((4,))
    one = LAYERS.Dense(5, name="one")(given)
    two = LAYERS.Dense(6, name="two")(one)
    return given, two, LAYERS.Dense(3, name="out")(two)


@pytest.mark.parametrize("when", ["before", "after", "frozen", "never"])
def test_other_models_of_the_same_layers_change_nothing(when):
    given, hidden, output = layers_of_three()
    probes = [keras.Model(given, [hidden, output])] if when == "before" else []
    model = keras.Model(given, output)
    if when != "before":
        probes = [keras.Model(given, y) for y in ([hidden, output], hidden)]
    model.get_layer("out").trainable = when != "frozen"
    if when == "frozen":
        gc.freeze()
    try:
        assert fitted(model) == {"one/kernel", "two/kernel"}
    finally:
        gc.unfreeze()
    assert all(probe.built for probe in probes)


class Tied(LAYERS.Layer):
    """A head whose kernel is the transposed embedding."""

    def __init__(self, words):
        super().__init__(name="tied")
        self.words = words

    def call(self, x):
        return tf.matmul(x, self.words.embeddings, transpose_b=True)


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("cls", [tg.Muon, tg.NorMuon, tg.SOAP, tg.Shampoo])
def test_a_tied_head_leaves_the_last_hidden_kernel_a_matrix(cls, nested):
    words = LAYERS.Embedding(9, 6, name="words")
    ids = keras.Input((3,), dtype="int32")
    x = LAYERS.Dense(6, name="two")(LAYERS.Dense(5, name="one")(words(ids)))
    body = keras.Model(ids, x, name="body")
    again = keras.Input((3,), dtype="int32")
    tied = Tied(words)
    model = keras.Model(again, tied(body(again))) if nested else keras.Model(ids, tied(x))
    optimizer = cls(0.05, others=tg.SGD(0.0))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(np.ones([2, 3], int), np.ones([2, 3], int), verbose=0)
    expected = {"one/kernel", "two/kernel"}
    assert sizes(optimizer.axes_by_path).keys() == sizes(tg.axes_of(model)).keys() == expected


class Written(keras.Model):
    """A subclassed model that holds its head first, with a branch that Keras' symbols refuse."""

    def __init__(self):
        super().__init__()
        self.head = LAYERS.Dense(2, name="head")
        self.one, self.two = LAYERS.Dense(4, name="one"), LAYERS.Dense(4, name="two")

    def call(self, x):
        x = tf.nn.relu(self.one(x))
        return tf.nn.softmax(self.head(x + self.two(x)))


def test_the_last_layer_of_a_subclassed_model_is_the_one_that_its_call_ends_with():
    model = Written()
    model(np.zeros([1, 3]))
    assert sizes(tg.axes_of(model)).keys() == {"written/one/kernel", "written/two/kernel"}


class Untraceable(keras.Model):
    def __init__(self):
        super().__init__()
        self.body, self.head = LAYERS.Dense(3, name="body"), LAYERS.Dense(2, name="head")

    def call(self, x, scale):
        return self.head(self.body(x)) * scale


def test_a_last_layer_that_cannot_be_known_has_to_be_named():
    model = Untraceable()
    model(np.zeros([1, 4]), scale=2.0)
    with pytest.raises(
        ValueError, match=r"which layer makes the output of the model '\w*', as its"
    ):
        tg.axes_of(model)
    named = tg.axes_of(model, {"head/kernel": None})
    assert sizes(named).keys() == {"untraceable/body/kernel"}


def test_variables_of_layers_whose_model_is_not_known_have_to_be_described():
    _, _, output = layers_of_three()
    model = keras.Model(keras.utils.get_source_inputs(output), output)
    with pytest.raises(ValueError, match=r"'one/kernel' is the variable of a layer, and the model"):
        tg.Muon().build(model.trainable_variables)
    optimizer = tg.Muon(axes={"out": None, "kernel": {"inputs": [0], "outputs": [1]}})
    optimizer.build(model.trainable_variables)
    assert sizes(optimizer.axes_by_path).keys() == {"one/kernel", "two/kernel"}


def test_a_model_that_is_not_built_is_refused():
    model = keras.Sequential([LAYERS.Dense(2)], name="bare")
    with pytest.raises(ValueError, match=r"the model 'bare' is not built; call it on a batch"):
        tg.Muon().build(model)


def test_a_part_that_a_model_trains_apart_is_the_model():
    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = (
                keras.Sequential([keras.Input((3,)), *map(LAYERS.Dense, (4, 3))], name=name)
                for name in ("first", "second")
            )
            self.of_first = tg.Muon(0.1, others=tg.SGD(0.0))

        def call(self, x):
            return self.second(self.first(x))

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(data[0], training=True)))
            wanted = self.first.trainable_variables
            self.of_first.apply(tape.gradient(loss, wanted), wanted)
            return {"loss": loss}

    pair = Pair()
    pair.compile("sgd")
    pair.fit(np.ones([2, 3]), np.ones([2, 3]), verbose=0)
    assert sizes(pair.of_first.axes_by_path).keys() == sizes(tg.axes_of(pair.first)).keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "around", [lambda x: x, tg.LARC, lambda x: tg.AGN(x, 1, center_optimizer=tg.Muon())]
)
def test_matrices_that_are_frozen_are_left_to_later(around):
    model = keras.Model(*layers_of_three()[::2])
    frozen = [model.get_layer(name) for name in ("one", "two")]
    for layer in frozen:
        layer.trainable = False
    optimizer = around(tg.Muon(0.05, axes={"two": None}))
    model.compile(optimizer, "mse")
    with pytest.warns(UserWarning, match="as long as the model's other layers are frozen; AdamW"):
        model.fit(np.ones([2, 4]), np.ones([2, 3]), verbose=0)
    if not optimizer.rule.extends:
        return
    for layer in frozen:
        layer.trainable = True
    model.compile(optimizer, "mse")
    model.fit(np.ones([2, 4]), np.ones([2, 3]), verbose=0)
    assert "4 x 5" in optimizer.table()


@pytest.mark.parametrize("path", SIZES)
def test_matrices_are_restored(path):
    axes = tg.axes_of(model_of_many_layers())[path]
    x = tf.random.normal(axes.variable)
    matrices = axes.matrices(x)
    assert tuple(matrices.shape) == axes.size
    np.testing.assert_array_equal(axes.restored(matrices), x)


def test_gates_and_heads_are_the_ones_of_the_layer():
    lstm = LAYERS.LSTM(2)
    lstm.build((None, 3, 4))
    model = keras.Sequential([keras.Input((3, 4)), lstm, LAYERS.Dense(1)])
    kernel = lstm.cell.kernel
    gates = tg.axes_of(model)[kernel.path].matrices(tf.convert_to_tensor(kernel))
    np.testing.assert_array_equal(gates, np.split(kernel.numpy(), 4, axis=1))
    query = Axes.of((3, 2, 4), inputs=(0,), outputs=(2,), batch=(1,))
    x = np.arange(24.0).reshape(3, 2, 4)
    np.testing.assert_array_equal(query.matrices(tf.constant(x))[1], x[:, 1])


@pytest.mark.slow
def test_the_last_layer_is_the_one_that_makes_the_output():
    body = [keras.Input((4,)), LAYERS.Dense(4, name="one"), LAYERS.Dense(3, name="two")]
    alone = keras.Sequential(body)
    assert sizes(tg.axes_of(alone)).keys() == {f"{alone.name}/one/kernel"}
    whole = keras.Sequential([alone, LAYERS.Dense(2, name="head"), LAYERS.Softmax()])
    whole.build((None, 4))
    assert len(fitted(whole)) == 2


def test_a_sum_has_no_last_layer():
    given = keras.Input((4,))
    x = LAYERS.Dense(4)(given)
    x = LAYERS.Add()([x, LAYERS.Dense(4)(x)])
    assert len(sizes(tg.axes_of(keras.Model(given, x)))) == 2


def test_what_a_custom_gradient_returns_is_made_by_its_own_layer_only():
    both = tf.custom_gradient(lambda x, y: ((x * 2.0, y * 2.0), lambda dx, dy: (dx, dy)))
    given = keras.Input((4,))
    last, first = LAYERS.Dense(2, name="last")(given), LAYERS.Dense(3, name="first")(given)
    pair = LAYERS.Lambda(lambda xs: both(*xs), output_shape=[(None, 2), (None, 3)])([last, first])
    head = LAYERS.Dense(2, name="head")(pair[1])
    found = sizes(tg.axes_of(keras.Model(given, [pair[0], head])))
    assert found.keys() == {"first/kernel"}


def test_two_models_trained_together_have_two_last_layers():
    def model(name):
        layers = [LAYERS.Dense(3, name="body"), LAYERS.Dense(2, name="head")]
        return keras.Sequential([keras.Input((4,)), *layers], name=name)

    models = model("one"), model("other")
    optimizer = tg.Muon()
    optimizer.build(models)
    assert sizes(optimizer.axes_by_path).keys() == {"one/body/kernel", "other/body/kernel"}


def test_embeddings_are_matrices_where_the_user_says_so():
    layers = [LAYERS.Embedding(5, 4, name="words"), LAYERS.Dense(3, name="body")]
    layers += [LAYERS.Dense(2, name="head")]
    model = keras.Sequential([keras.Input((2,)), *layers], name="net")
    assert sizes(tg.axes_of(model)) == {"net/body/kernel": (1, 4, 3)}
    said = {"words": "layer", "body": None, "head/kernel": {"inputs": [1], "outputs": [0]}}
    assert sizes(tg.axes_of(model, said)) == {
        "net/words/embeddings": (1, 5, 4),
        "net/head/kernel": (1, 2, 3),
    }


def test_without_a_layer_the_rank_decides():
    shapes = {"kernel": (3, 2), "attention/bias": (3, 2), "word_embedding": (5, 2), "deep": [2] * 3}
    shapes |= {"relative_position_bias_table": (9, 2)}
    variables = [tf.Variable(tf.zeros(shape), name=name) for name, shape in shapes.items()]
    optimizer = tg.Muon()
    optimizer.build(variables)
    assert sizes(optimizer.axes_by_path) == {"kernel": (1, 3, 2)}


class Experts(LAYERS.Layer):
    """Kernels with biases as keras-hub's experts have them: [experts, inputs, outputs]."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(3, shape[-1], 5), name="gate_proj")
        self.bias = self.add_weight(shape=(3, 5), name="gate_proj_bias")

    def call(self, x):
        return tf.reduce_sum(tf.einsum("bi,eio->beo", x, self.kernel) + self.bias, 1)


def test_each_expert_has_a_matrix_of_its_own():
    model = keras.Sequential(
        [keras.Input([4]), Experts(name="moe_expert_bank"), LAYERS.Dense(2)], name="net"
    )
    assert [*sizes(tg.axes_of(model)).values()] == [(3, 4, 5)]
    kernel = model.layers[0].kernel
    before = kernel.numpy()
    alone = [tf.Variable(x, name="kernel") for x in before]
    gradient = np.random.default_rng(0).normal(size=kernel.shape).astype("float32")
    optimizer = tg.Muon(0.1)
    optimizer.build(model)
    zeros = [tf.zeros(v.shape) for v in model.trainable_variables[1:]]
    optimizer.apply([tf.constant(gradient), *zeros], model.trainable_variables)
    for expert, own in enumerate(alone):
        tg.Muon(0.1).apply([tf.constant(gradient[expert])], [own])
        np.testing.assert_allclose(kernel[expert], own, rtol=1e-5, atol=1e-6)


class Holder(LAYERS.Layer):
    """A layer, one attribute of which is a kernel of a shape, or a layer with such a kernel."""

    def __init__(self, attribute, part, **options):
        super().__init__(**options)
        part = self.add_weight(shape=part, name=attribute) if isinstance(part, tuple) else part
        setattr(self, attribute, part)
        self.part = part

    def call(self, x):
        of_layer = isinstance(self.part, LAYERS.Layer)
        return x + tf.reduce_sum(self.part(x) if of_layer else tf.convert_to_tensor(self.part))


def of_holder(attribute, part, cls="Own", **given):
    """Returns the axes of the kernel of a layer whose class has a name, and the kernel."""
    holder = type(cls, (Holder,), {})(attribute, part, name="experts")
    given_in = keras.Input((5, 6))
    model = keras.Model(given_in, LAYERS.Dense(2)(LAYERS.Dense(6)(holder(given_in))))
    kernel = next(v for v in holder.weights if len(v.shape) > 1)
    return tg.axes_of(model, **given)[kernel.path], kernel.numpy()


def thirds(kernel):
    return [kernel[:, :6], kernel[:, 6:12], kernel[:, 12:]]


def thirds_of_heads(kernel):
    return [kernel[..., n : n + 3].reshape(6, 6) for n in (0, 3, 6)]


def halves(kernel):
    return [kernel[:, :4], kernel[:, 4:]]


def halves_of_experts(kernel):
    return [half for expert in kernel for half in (expert[:, :4], expert[:, 4:])]


def turns(kernel):
    return [half for expert in kernel for half in (expert[:, ::2], expert[:, 1::2])]


def by_head(units):
    return LAYERS.EinsumDense("abc,cde->abde", (None, 2, units), bias_axes="de")


# The parts are those that the layers of keras-hub cut the products of these kernels into.
JOINED = {
    "attribute": (thirds, "qkv", lambda: LAYERS.Dense(18)),
    "name": (thirds, "inner", lambda: LAYERS.Dense(18, name="attention_qkv")),
    "NeoX": (thirds_of_heads, "_qkv_dense", lambda: by_head(9), "GPTNeoXAttention"),
    "DINOv2": (halves, "weights_in", lambda: LAYERS.Dense(8), "DINOV2SwiGLUFFN"),
    "GPT-OSS": (turns, "gate_up_proj", lambda: (3, 6, 8), "GptOssExperts"),
    "Qwen": (
        halves_of_experts,
        "_expert_feedforward_gate_dense",
        lambda: (3, 6, 8),
        "Qwen3MoeExperts",
    ),
}


@pytest.mark.parametrize("case", JOINED.values(), ids=JOINED)
def test_kernels_that_are_known_to_join_matrices_are_parted(case):
    parts, attribute, make, *cls = case
    axes, kernel = of_holder(attribute, make(), *cls)
    np.testing.assert_array_equal(axes.matrices(tf.constant(kernel)), parts(kernel))
    np.testing.assert_array_equal(axes.restored(tf.constant(np.stack(parts(kernel)))), kernel)


def test_heads_of_a_kernel_that_joins_matrices_are_apart_too():
    axes, _ = of_holder("_qkv_dense", by_head(9), "GPTNeoXAttention", heads="apart")
    assert axes.size == (6, 6, 3)


@pytest.mark.parametrize(
    ("attribute", "make", "size"),
    [
        ("qkv", lambda: LAYERS.Dense(12), (1, 6, 12)),  # two key heads for four query heads
        ("in_proj_qkv", lambda: LAYERS.Dense(18), (1, 6, 18)),
        ("qkv", lambda: by_head(9), (1, 6, 18)),
        ("qkv", lambda: LAYERS.EinsumDense("abc,dc->abd", (None, 2)), (1, 6, 2)),  # inputs last
        ("qkv", lambda: keras.Sequential([LAYERS.Dense(18)]), (1, 6, 18)),
        ("qkv", lambda: (6, 14), (1, 6, 14)),
        ("gate_up_proj", lambda: (3, 6, 8), (3, 6, 8)),
        ("_expert_feedforward_gate_dense", lambda: (3, 6, 8), (3, 6, 8)),
    ],
)
def test_kernels_whose_layout_is_not_known_are_one_matrix(attribute, make, size):
    axes, _ = of_holder(attribute, make())
    assert axes.size == size


def test_each_factor_of_lora_is_a_matrix():
    given = keras.Input((5, 6))
    x = LAYERS.MultiHeadAttention(2, 3, name="attention")(given, given)
    x = LAYERS.EinsumDense("abc,cb->abc", (5, 6), name="einsum")(LAYERS.Dense(6, name="dense")(x))
    x = LAYERS.Conv1D(8, 3, groups=2, name="conv")(x)
    model = keras.Model(given, LAYERS.Dense(2, name="head")(x))
    attention = model.get_layer("attention")
    layers = attention.query_dense, attention.output_dense, *model.layers[2:]
    for layer in layers:
        layer.enable_lora(4)
    found = sizes(tg.axes_of(model))
    assert {path: size for path, size in found.items() if "lora" in path} == {
        "attention/query/lora_kernel_a": (1, 6, 2 * 4),
        "attention/query/lora_kernel_b": (1, 4, 3),
        "attention/attention_output/lora_kernel_a": (1, 2 * 3, 4),
        "attention/attention_output/lora_kernel_b": (1, 4, 6),
        "dense/lora_kernel_a": (1, 6, 4),
        "dense/lora_kernel_b": (1, 4, 6),
        "einsum/lora_kernel_a": (1, 6, 4),
        "einsum/lora_kernel_b": (1, 4, 5),
        "conv/lora_kernel_a": (1, 9, 4),
        "conv/lora_kernel_b": (1, 4, 8),
    }


def test_embeddings_of_patches_are_no_matrices_by_default():
    layers = LAYERS.Conv2D(3, 2, 2, name="patch_embedding"), LAYERS.Conv2D(3, 2, name="conv")
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, LAYERS.Conv2D(2, 2)], name="net")
    assert sizes(tg.axes_of(model)) == {"net/conv/kernel": (1, 12, 3)}
    assert sizes(tg.axes_of(model, {"patch": "layer", "conv/": None})) == {
        "net/patch_embedding/kernel": (1, 4, 3)
    }


QUERY_TO_OUTPUT = [(1, 16, 16)] * 4
FEW_KEYS = [(1, 16, 16), (1, 16, 8), (1, 16, 8), (1, 16, 16)]
UP_DOWN = [(1, 16, 24), (1, 24, 16)]
OF_TEXT = {"vocabulary_size": 40, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 24}
ALL_KEYS = OF_TEXT | {"num_heads": 2, "max_sequence_length": 8}
GROUPED = OF_TEXT | {"num_query_heads": 2, "num_key_value_heads": 1}
IMAGES = {"image_shape": (8, 8, 3), "patch_size": 4, "num_layers": 2, "num_heads": 2}
IMAGES |= {"hidden_dim": 16, "mlp_dim": 24}

# Models of keras-hub: arguments, the task, the matrices of each block, and those after the blocks.
FAMILIES = {
    "GPT2": (ALL_KEYS, "CausalLM", QUERY_TO_OUTPUT + UP_DOWN),
    "Gemma": (
        GROUPED | {"head_dim": 8},
        "CausalLM",
        [*FEW_KEYS, (1, 16, 12), (1, 16, 12), (1, 12, 16)],
    ),
    "Llama": (GROUPED, "CausalLM", [*FEW_KEYS, (1, 16, 24), *UP_DOWN]),
    "Mixtral": (
        GROUPED | {"num_experts": 3},
        "CausalLM",
        [*FEW_KEYS, (1, 16, 3), (3, 16, 24), (3, 16, 24), (3, 24, 16)],
    ),
    "Bert": (ALL_KEYS, "TextClassifier", QUERY_TO_OUTPUT + UP_DOWN, [(1, 16, 16)]),
    "ViT": (IMAGES, "ImageClassifier", QUERY_TO_OUTPUT + UP_DOWN),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_matrices_of_models_of_keras_hub(family):
    models = pytest.importorskip("keras_hub", exc_type=ImportError).models
    arguments, task, of_block, *after = FAMILIES[family]
    backbone = getattr(models, f"{family}Backbone")(**arguments)
    classes = {} if task == "CausalLM" else {"num_classes": 3}
    model = getattr(models, family + task)(backbone=backbone, preprocessor=None, **classes)
    assert [*sizes(tg.axes_of(model)).values()] == sum(after, of_block * 2)
    assert sizes(tg.axes_of(backbone)).keys() <= sizes(tg.axes_of(model)).keys()
    backbone.enable_lora(4)
    factors = [path for path in sizes(tg.axes_of(model)) if "/lora_kernel_" in path]
    assert len(factors) == len(sizes(tg.axes_of(model))) == 2 * 2 * 2


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"karnel": None}, "the pattern matches none of the 2 variables; the nearest path"),
        ({"kernel": None, "dense/kernel": None}, "an earlier pattern matches every variable"),
        ({"kernel": {"inputs": [0], "outputs": [0]}}, "must name each axis of 'dense/kernel'"),
        ({"kernel": {"inputs": [0, 1], "outputs": []}}, "at least one input and one output"),
        (
            {"kernel": {"inputs": [0], "outputs": [1], "shape": [4, 2]}},
            "does not have as many entries",
        ),
        ({"kernel": None}, "none of the 2 variables is a matrix to it"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_built(axes, message):
    variables = [tf.Variable(tf.zeros([3, 2]), name="dense/kernel")]
    variables += [tf.Variable(tf.zeros([2]), name="dense/bias")]
    with pytest.raises(ValueError, match=message):
        tg.Muon(axes=axes).build(variables)


@pytest.mark.parametrize(
    "axes", [{"kernel": "matrix"}, {"kernel": {"inputs": [0]}}, {"kernel": {"inputs": 0}}, {"k": 3}]
)
def test_other_axes_are_refused_at_once(axes):
    with pytest.raises(ValueError, match=r"must be None \(no matrix\), 'layer'"):
        tg.Muon(axes=axes)


@pytest.mark.slow
def test_the_table_shows_the_matrices():
    model = model_of_many_layers()
    optimizer = tg.LARC(tg.Muon(weight_decay=0.1, others=tg.SGD(0.5, momentum=0.9)))
    optimizer.build(model)
    lines = {line.split()[0]: line.split() for line in optimizer.table().splitlines()}
    assert lines["variable"][-1] == "matrix"
    assert " ".join(lines["lstm/lstm_cell/kernel"]).endswith("yes optimizer/momentum 4 of 4 x 5")
    assert lines["head/bias"][-2:] == ["optimizer/others/momentum", "-"]


def test_the_others_have_their_own_rate_decay_and_multipliers():
    w, b = tf.Variable(tf.ones([2, 2]), name="kernel"), tf.Variable([1.0, 1.0], name="bias")
    optimizer = tg.Muon(
        0.25,
        weight_decay=0.5,
        others=tg.SGD(0.5, weight_decay=0.25, exclude_from_weight_decay=["bias"]),
        learning_rate_multipliers={"bias": 0.5},
    )
    optimizer.apply([tf.zeros([2, 2]), tf.constant([1.0, 2.0])], [w, b])
    np.testing.assert_allclose(w, np.full([2, 2], 1 - 0.25 * 0.5))
    np.testing.assert_allclose(b, [0.75, 0.5])


def _muon(**options):
    return tg.Muon(0.25, others=tg.SGD(0.5), **options)


INSIDE = {
    "MixedPrecision": lambda **k: tg.MixedPrecision(_muon(), **k),
    "given inside": lambda **k: tg.LARC(_muon(**k), eta=100.0),
    "LARC": lambda **k: tg.LARC(_muon(), eta=100.0, **k),
    "AdaptiveGradientClipping": lambda **k: tg.AdaptiveGradientClipping(_muon(), 100.0, **k),
    "GradientCentralization": lambda **k: tg.GradientCentralization(_muon(), **k),
    "Hyperball": lambda **k: tg.Hyperball(_muon(), **k),
    "RadialBrake": lambda **k: tg.RadialBrake(_muon(), **k),
    "Cautious": lambda **k: tg.Cautious(_muon(), **k),
    "AGN": lambda **k: tg.AGN(_muon(), 1, 4, **k),
    "MultiOptimizer": lambda **k: tg.MultiOptimizer({".*": _muon()}, **k),
    "three": lambda **k: tg.MultiOptimizer({".*": tg.Cautious(tg.LARC(_muon(), eta=100.0))}, **k),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", INSIDE.values(), ids=INSIDE)
@pytest.mark.parametrize("factor", [2.0, tg.schedules.FixedLR(0.5)], ids=["2", "schedule"])
def test_multipliers_are_those_of_the_others_inside_of_wrappers(make, factor):
    def moved(**options):
        w, b = tf.Variable(tf.ones([2, 2]), name="kernel"), tf.Variable([1.0, 1.0], name="bias")
        optimizer = make(**options)
        optimizer.build([w, b])
        tf.function(optimizer.apply)([tf.constant([[1.0, 2], [3, 4]]), tf.ones([2])], [w, b])
        rate = float(optimizer.rule.rate_of("bias", optimizer.rule.rates()))
        return w.numpy(), 1 - b.numpy(), rate

    (w, b, rate), (same, changed, changed_rate) = (
        moved(),
        moved(learning_rate_multipliers={"bias": factor}),
    )
    times = factor if isinstance(factor, float) else 0.5
    np.testing.assert_array_equal(same, w)
    np.testing.assert_allclose(changed, times * b, rtol=1e-6)
    assert (rate, changed_rate) == (0.5, 0.5 * times)


def test_a_config_makes_the_same_optimizer():
    given = tg.Muon(axes={"a": {"inputs": (0,), "outputs": (1,)}}, heads="apart", others="sgd")
    copy = tg.deserialize(tg.serialize(given))
    assert copy.axes == {"a": {"inputs": [0], "outputs": [1]}}
    assert (copy.heads, type(copy.others)) == ("apart", tg.SGD)


def test_axes_that_a_refusal_asks_for_can_be_set():
    optimizer = tg.Muon(0.1)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2, name="out")], name="net")
    with pytest.raises(ValueError, match="name some in axes"):
        optimizer.build(model)
    optimizer.axes = {"out/kernel": "layer"}
    optimizer.build(model)
    assert optimizer.axes_by_path["net/out/kernel"] is not None
