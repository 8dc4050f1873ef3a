"""Configs: what is accepted, and one sentence with its place for everything else (G35, G36)."""

import re

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tf_graft.core.media import for_message
from tf_graft.training import config as configs
from tf_graft.training import configured_optimizer as optimizer
from tf_graft.training import plain_yaml, schema
from tf_graft.training.config import ConfigError, load, parse
from tf_graft.training.source import Source

GOOD = """\
data:
  name: digits
model:
  name: mlp
  units: [16]
optimizer:
  name: adagrad
  learning_rate: 0.1
run:
  epochs: 2
"""


def edited(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)


# (text, the whole message after the file's name)
BAD_TEXTS = {
    "text for a number": (
        edited("0.1", "'1e-3'"),
        ":8: learning_rate is the text '1e-3'; write 1e-3.",
    ),
    "quoted exponent": (
        edited("0.1", "'1.5E6'"),
        ":8: learning_rate is the text '1.5E6'; write 1.5E6.",
    ),
    "quoted number": (edited("epochs: 2", "epochs: '2'"), ":10: epochs is the text '2'; write 2."),
    "quoted number, free section": (
        edited("0.1", "0.1\n  epsilon: '1'"),
        ":9: epsilon is the text '1'; write 1.",
    ),
    "word for a number": (
        edited("epochs: 2", "epochs: two"),
        ":10: epochs is the text 'two'; it should be a whole number.",
    ),
    "fraction": (
        edited("epochs: 2", "epochs: 2.5"),
        ":10: epochs is 2.5; it should be a whole number.",
    ),
    "truth for a number": (
        edited("epochs: 2", "epochs: true"),
        ":10: epochs is True; it should be a whole number.",
    ),
    "out of range": (
        edited("epochs: 2", "epochs: 0"),
        ":10: epochs is 0; it should be greater than or equal to 1.",
    ),
    "too large": (
        edited("[16]", "[1000000]"),
        ":5: units is 1000000; it should be less than or equal to 65536.",
    ),
    "thousands of digits": (
        edited("epochs: 2", "epochs: " + "9" * 5000),
        ":10: epochs is not a number one can use.",
    ),
    "not a number": (
        edited("epochs: 2", "epochs: .nan"),
        ":10: epochs is nan; it must be finite.",
    ),
    "infinite rate": (
        edited("0.1", ".inf"),
        ":8: learning_rate is inf; it must be finite.",
    ),
    "unknown key": (
        edited("epochs: 2", "epochs: 2\n  epoch: 3"),
        ":11: unknown key 'epoch' in 'run'; did you mean 'epochs'?",
    ),
    "unknown key of a model": (
        edited("units", "unit"),
        ":5: unknown key 'unit' in 'model'; did you mean 'units'?",
    ),
    "unknown section": (
        edited("data:", "dataset:"),
        ":1: unknown key 'dataset'; did you mean 'data'?",
    ),
    "strategy without its name": (
        edited("epochs: 2", "epochs: 2\nstrategy: {}"),
        ":11: 'name' is missing in 'strategy'.",
    ),
    "unknown strategy": (
        edited("epochs: 2", "epochs: 2\nstrategy: {name: mirror}"),
        ":11: no strategy 'mirror'; did you mean 'mirrored'?",
    ),
    "repeated key": (
        edited("epochs: 2", "epochs: 2\n  epochs: 3"),
        ":11: 'epochs' is repeated; it stands on line 10 too.",
    ),
    "missing key": (edited("  epochs: 2", "  seed: 2"), ":9: 'epochs' is missing in 'run'."),
    "missing section": (edited("run:\n  epochs: 2\n", ""), ":1: 'run' is missing."),
    "empty section": (
        edited("\n  epochs: 2", ""),
        ":9: run is None; it should be a section of 'key: value' lines.",
    ),
    "seed that TensorFlow takes for none": (
        edited("epochs: 2", "epochs: 2\n  seed: 2147483646"),
        ":11: seed is 2147483646; it should be less than or equal to 2147483645.",
    ),
    "path for a name": (
        edited("digits", "../../etc"),
        ":2: name is the text '../../etc'; it is not a name.",
    ),
    "settings that do not fit": (
        edited("mlp\n  units: [16]", "transformer\n  d_model: 10"),
        ":3: d_model=10 must be a multiple of heads=4.",
    ),
    "yes of YAML 1.1": (
        edited("epochs: 2", "epochs: 2\n  fresh: on"),
        ":11: fresh is the text 'on'; it should be true or false.",
    ),
    "not a number, free section": (
        edited("0.1", "0.1\n  epsilon: .nan"),
        ":9: epsilon is nan; it must be finite.",
    ),
    "vanishes": (
        edited("0.1", "0.1\n  epsilon: 1e-300"),
        ":9: epsilon is 1e-300; it must be 0, or its size between 1.2e-38 and 3.4e+38, which "
        "float32 can hold.",
    ),
    "overflows": (
        edited("0.1", "1" + "0" * 400),
        ":8: learning_rate is 100000000000...; it must be 0, or its size between 1.2e-38 and "
        "3.4e+38, which float32 can hold.",
    ),
    "another YAML": ("%YAML 1.1\n---\n" + GOOD, ":1: directives (%) are not supported."),
    "half a character": (
        edited("digits", r'"a\ud800"'),
        ":2: name contains half a character; a config is plain data.",
    ),
    "no character": (
        edited("digits", r'"\U00110000"'),
        ": an escape (\\U...) stands for no character.",
    ),
    "octal of YAML 1.1": (
        edited("2", "010"),
        ":10: epochs is 010; write it as a decimal number.",
    ),
    "octal": (edited("2", "0o10"), ":10: epochs is 0o10; write it as a decimal number."),
    "hexadecimal": (edited("2", "0x10"), ":10: epochs is 0x10; write it as a decimal number."),
    "minutes": (
        edited("2", "1:30"),
        ":10: epochs is the text '1:30'; it should be a whole number.",
    ),
    "interpolation": (
        edited("digits", "${oc.env:HOME}"),
        ":2: name contains '${'; a config is plain data.",
    ),
    "interpolated key": (
        edited("epochs", "${run}"),
        ":10: ${run} contains '${'; a config is plain data.",
    ),
    "tag": (
        edited("digits", "!!python/object/apply:os.system [ls]"),
        ":2: tags (tag:yaml.org,2002:python/object/apply:os.system) are not supported.",
    ),
    "alias": (
        edited("digits", "&a [x, x]\n  dir: *a"),
        ":2: anchors and aliases (& and *) are not supported.",
    ),
    "serialized object": (
        edited("name: adagrad", "name: adagrad\n  module: os"),
        ":8: 'module': write a name and its arguments.",
    ),
    "serialized object, nested": (
        edited("0.1", "{class_name: X, config: {module: os}}"),
        ":8: 'class_name': write a name and its arguments.",
    ),
    "deep": ("[" * 100_000, ":1: values are nested more than 16 deep."),
    "deep in blocks": ("- " * 5_000, ":1: values are nested more than 16 deep."),
    "empty": ("", ":1: a config is made of sections: 'data:', 'model:' ..."),
    "a list": ("- a", ":1: a config is made of sections: 'data:', 'model:' ..."),
    "two documents": (
        GOOD + "---\n" + GOOD,
        ":11: a second document starts here; a config is one.",
    ),
    "unclosed": (edited("[16]", "[16"), ":6: expected ',' or ']', but got ':'."),
    "tabs": (
        edited("  epochs", "\tepochs"),
        ":10: found character '\\t' that cannot start any token.",
    ),
    "control character": (edited("digits", "\x01"), ":2: the character U+0001 is not allowed."),
    "escaped zero byte": (
        edited("digits", '"a\\0"'),
        ":2: name contains a zero byte; a config is plain data.",
    ),
    "an escape above all characters": (
        edited("digits", '"\\UFFFFFFFF"'),
        ": an escape (\\U...) stands for no character.",
    ),
    "blanks in a number": (
        edited("0.1", "1_000.5_"),
        ":8: learning_rate is 1_000.5_; write it as a decimal number.",
    ),
    "a long key": (
        edited("epochs: 2", f"epochs: 2\n  {'e' * 900}: 2"),
        f":11: unknown key '{'e' * 200}...' in 'run'; there are checkpoint_every, deterministic, "
        "dir, epochs, fresh, jit_compile, keep_checkpoints, monitor, progress, seed, "
        "steps_per_execution, tensorboard.",
    ),
    "key that is a list": (GOOD + "? [a]\n: 1\n", ":11: a key must be a name."),
    "key that is a number": (GOOD + "1: 2\n", ":11: a key must be a name."),
    "merge key": (GOOD + "<<: {a: 1}\n", ":11: a key must be a name."),
}

BAD_OVERRIDES = {
    "run.epochs": "write section.key=value.",
    "=3": "write section.key=value.",
    "run..epochs=3": "write section.key=value.",
    "run.epoch=3": "unknown key 'epoch' in 'run'; did you mean 'epochs'?",
    "run.epochs=x": "epochs is the text 'x'; it should be a whole number.",
    "run.epochs='3'": "epochs is the text '3'; write 3.",
    "run.epochs=": "epochs is None; it should be a whole number.",
    "run=3": "run is 3; it should be a section of 'key: value' lines.",
    "run.epochs=010": "epochs is 010; write it as a decimal number.",
    "run.epochs=0x10": "epochs is 0x10; write it as a decimal number.",
    "run.epochs=1:30": "epochs is the text '1:30'; it should be a whole number.",
    "run.epochs=.inf": "epochs is inf; it must be finite.",
    "run.epochs=???": "epochs is the text '???'; it should be a whole number.",
    "run.epochs=&a 3": "anchors and aliases (& and *) are not supported.",
    "run.epochs=!!int 3": "tags (tag:yaml.org,2002:int) are not supported.",
    "run.epochs=3\n---\n4": "a second document starts here; a config is one.",
    "run.fresh=yes": "fresh is the text 'yes'; it should be true or false.",
    "run={epochs: 3, epochs: 4}": "'epochs' is repeated.",
    "run.epochs.x=3": "epochs is 2, which has no 'x'.",
    "model.units.1=3": "units is a list; its values are 0 to 0.",
    "model.units.x=3": "units is a list; its values are 0 to 0.",
    "model.units.0=x": "units is the text 'x'; it should be a whole number.",
    "model.units.0.x=3": "units is 16, which has no 'x'.",
    "model={name: cnn, unit: 3}": "unknown key 'unit' in 'model'; did you mean 'units'?",
    "data.name=\udcff": "the character U+DCFF is not allowed.",
    "model.units=[1, a]": "units is the text 'a'; it should be a whole number.",
    "data.name=${oc.env:HOME}": "name contains '${'; a config is plain data.",
    "data.name=!!python/name:os.system x": None,
    "data.name={a: [": None,
    "run.seed=" + "[" * 5000: None,
    "optimizer.learning_rate=---": "'---' begins a document, and is no value.",
    "optimizer.learning_rate=--- 3": "'---' begins a document, and is no value.",
    "optimizer.learning_rate=1_000.5_": "learning_rate is 1_000.5_; write it as a decimal number.",
    "run.epochs=1_": "epochs is 1_; write it as a decimal number.",
    f"{'x' * 200_000}=3": None,
    f"run.{'x' * 200_000}=3": None,
    f"run.epochs={'x' * 200_000}": None,
    f"run.epochs={'9' * 200_000}": None,
    f"optimizer{'.optimizer' * 300}=sgd": "values are nested more than 16 deep.",
}


def message_of(text, overrides=()):
    with pytest.raises(ConfigError) as caught:
        parse(text, "c.yaml", overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_a_bad_text_gives_one_sentence_with_file_and_line(case):
    text, expected = BAD_TEXTS[case]
    assert message_of(text) == f"c.yaml{expected}"


@pytest.mark.parametrize("override", BAD_OVERRIDES)
def test_a_bad_override_gives_one_sentence_that_quotes_it(override):
    message = message_of(GOOD, [override])
    expected = BAD_OVERRIDES[override]
    shown = for_message(override)
    assert message.startswith(f"override '{shown}': ")
    assert len(message) < 1_000
    assert expected is None or message == f"override '{shown}': {expected}"


def test_good_text_and_overrides():
    overrides = ["run.epochs=3", "optimizer.learning_rate=1e-3", "optimizer.clipnorm=1"]
    config = parse(GOOD, overrides=overrides)
    assert config.run.epochs == 3
    assert config.model.units == [16]
    assert config.optimizer.model_dump() == {
        "name": "adagrad",
        "learning_rate": 1e-3,
        "clipnorm": 1,
    }


@pytest.mark.parametrize(
    ("override", "section", "expected"),
    [
        (
            "optimizer.learning_rate={name: noam, d_model: 8}",
            "optimizer",
            {"name": "adagrad", "learning_rate": {"name": "noam", "d_model": 8}},
        ),
        ("optimizer={name: sgd}", "optimizer", {"name": "sgd", "learning_rate": None}),
        ("model.units.0=5", "model", {"name": "mlp", "units": [5], "dropout": 0.0}),
        ("mesh.batch=2", "mesh", {"batch": 2, "model": 1, "shard_slots": False, "layouts": {}}),
    ],
)
def test_an_override_replaces_what_it_names(override, section, expected):
    config = parse(GOOD, overrides=[override])
    assert getattr(config, section).model_dump() == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("1E5", 1e5), ("1_000", 1000), (".5", 0.5), ("1", 1.0), ("-0.0", 0.0)],
)
def test_a_number_is_the_same_in_a_file_and_in_an_override(text, value):
    in_file = parse(edited("0.1", text))
    in_override = parse(GOOD, overrides=[f"optimizer.learning_rate={text}"])
    assert in_file.optimizer.learning_rate == in_override.optimizer.learning_rate == value


def test_a_later_override_wins_and_is_named():
    message = message_of(GOOD, ["run.epochs=0", "run={epochs: 0}", "run.seed=-1"])
    assert message.startswith("override 'run={epochs: 0}': epochs is 0")


def test_an_environment_variable_is_never_looked_up(monkeypatch):
    monkeypatch.setenv("TF_GRAFT_SECRET", "secret")
    for text in (edited("digits", "${oc.env:TF_GRAFT_SECRET}"), edited("digits", "'${x}'")):
        assert "secret" not in message_of(text)


def test_files(tmp_path):
    path = tmp_path / "mine.yaml"
    with pytest.raises(ConfigError, match=re.escape(f"{path}: no such file or directory.")):
        load(path)
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}: is a directory.")):
        load(tmp_path)
    path.write_bytes(b"data:\n  name: \xff")
    with pytest.raises(ConfigError, match=re.escape(f"{path}:2: the file is not UTF-8 text.")):
        load(path)
    path.write_text(GOOD)
    config = load(path)
    assert config.run.dir == "runs/mine"
    path.write_text(GOOD + "#" * 70_000)
    with pytest.raises(ConfigError, match="at most 64 KiB"):
        load(path)
    assert load(path, own=True).run.epochs == 2


def test_paths_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    start = "fine_tuning={start_from: ~/old/model.keras}"
    config = parse(GOOD, overrides=["run.dir=~/runs/new", "data.dir=~/data", start])
    assert config.run.dir == "/home/someone/runs/new"
    assert config.data.dir == "/home/someone/data"
    assert config.fine_tuning.start_from == "/home/someone/old/model.keras"


def test_an_endless_file_is_not_read_to_its_end():
    with pytest.raises(ConfigError, match="at most 64 KiB"):
        load("/dev/zero")


def test_dump_reads_back():
    config = parse(GOOD, overrides=["run.fresh=true", "optimizer.epsilon=1.0e-9"])
    again = parse(configs.dump(config))
    assert not again.run.fresh
    assert configs.differences(config, again, ignore=["run.fresh"]) == []
    changed = parse(GOOD, overrides=["optimizer.epsilon=1.0e-8", "run.fresh=true"])
    assert configs.differences(config, changed, ignore=[]) == [
        "optimizer.epsilon was 1e-09 and is 1e-08"
    ]


GRAFT = edited(
    "  name: adagrad\n  learning_rate: 0.1\n",
    """\
  name: ada_graft
  magnitude_optimizer:
    name: adamax
    beta_1: 0.9
  direction_optimizer:
    name: momentum
    momentum: 0.9
    learning_rate:
      name: exponential_decay
      initial_learning_rate: 1.0
      decay_steps: 2
      decay_rate: 0.5
""",
)

DECAY = GRAFT[GRAFT.index("name: exponential_decay") : GRAFT.index("run:")]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("adamax", "adamx", ":9: get('adamx'): there is no such optimizer; did you mean 'adamax'?"),
        ("0.9\n  dir", "1.5\n  dir", ":10: Adamax(beta_1=1.5): beta_1 must lie in [0, 1)."),
        ("momentum: 0.9", "momentum: 2", ":13: Momentum(momentum=2): momentum must lie in [0, 1]."),
        ("decay_rate", "alpha", ":18: schedules.get: exponential_decay does not take 'alpha'; it"),
        ("rate: 0.5", "rate: -3.0", ":18: exponential_decay(decay_rate=-3.0): decay_rate must"),
        (
            DECAY,
            "{name: lr_policy, policy: piecewise_constant, params: {learning_rate: 1.0, "
            "boundaries: [1], decay_rates: [-0.5]}}\n",
            ":15: the rate at step 2 is -0.5; it must be finite and at least 0.",
        ),
    ],
)
def test_what_a_child_objects_to_is_found_where_it_stands(old, new, expected):
    assert old in GRAFT
    config = parse(GRAFT.replace(old, new), "c.yaml")
    with pytest.raises(ConfigError) as caught:
        optimizer.build(config, 5, keras.Model)
    assert str(caught.value).startswith(f"c.yaml{expected}")


def test_what_an_override_says_of_a_child_is_quoted():
    config = parse(GRAFT, overrides=["optimizer.magnitude_optimizer.beta_2=7"])
    with pytest.raises(
        ConfigError, match=r"^override '.*beta_2=7': Adamax\(beta_2=7\): beta_2 must"
    ):
        optimizer.build(config, 5, keras.Model)


@pytest.mark.parametrize(
    ("given", "steps", "name"),
    [
        ("{name: adam, gradient_accumulation_steps: 6}", 6, "gradient_accumulation_steps=6"),
        (
            "{name: larc, optimizer: {name: sgd, gradient_accumulation_steps: 6}}",
            6,
            "gradient_accumulation_steps=6",
        ),
        (
            "{name: agn, communication_period: 3, gradient_accumulation_steps: 2, "
            "optimizer: {name: sgd}}",
            6,
            "communication_period=3",
        ),
    ],
)
def test_a_run_makes_an_update(given, steps, name):
    """An accumulation, or a round of AGN, that is longer than the run would train nothing."""
    config = parse(GOOD, overrides=[f"optimizer={given}", "run.epochs=1"])
    optimizer.build(config, steps, keras.Model)
    with pytest.raises(
        ConfigError, match=f"{name}: the model changes every 6 steps, and the run has 5; give less"
    ):
        optimizer.build(config, steps - 1, keras.Model)


@pytest.mark.parametrize(
    ("every", "epochs", "total", "epoch"),
    [(4, 2, 22, 11), (4.0, 2, 22, 11), (16, 20, 55, 3), (64, 10, 6, 1)],
)
def test_words_count_updates_that_end_in_a_later_epoch(every, epochs, total, epoch):
    """The run makes epochs * 44 // every updates: micro-steps go on from epoch to epoch."""
    decay = "{name: poly_decay, learning_rate: 0.1, decay_steps: total}"
    rate = f"{{name: warmup, steps: epoch, schedule: {decay}}}"
    given = f"{{name: sgd, gradient_accumulation_steps: {every}, learning_rate: {rate}}}"
    config = parse(GOOD, overrides=[f"optimizer={given}", f"run.epochs={epochs}"])
    optimizer.build(config, 44, keras.Model)
    warmup = config.optimizer.learning_rate
    assert warmup["steps"] == epoch
    assert warmup["schedule"]["decay_steps"] == total - epoch
    assert optimizer.updates(config, 44) == (total, epoch)


def test_total_counts_from_the_end_of_a_delay_of_whole_steps():
    decay = "{name: poly_decay, learning_rate: 0.1, decay_steps: total, begin_decay_at: 44.0}"
    config = parse(GOOD, overrides=[f"optimizer={{name: sgd, learning_rate: {decay}}}"])
    made = optimizer.build(config, 44, keras.Model)
    made.iterations.assign(66)  # in the middle of steps 44 to 88
    assert float(made.learning_rate) == pytest.approx(0.05, rel=0.02)


def test_total_counts_from_the_first_step_if_a_warmup_does_not_shift():
    inner = "{name: poly_decay, learning_rate: 1.0, decay_steps: total}"
    rate = f"{{name: warmup, steps: 10, shift: false, schedule: {inner}}}"
    config = parse(GOOD, overrides=[f"optimizer={{name: sgd, learning_rate: {rate}}}"])
    made = optimizer.build(config, 20, keras.Model)
    assert config.optimizer.learning_rate["schedule"]["decay_steps"] == 40
    made.iterations.assign(39)
    assert float(made.learning_rate) > 0


TEXTS = st.text(max_size=40) | st.text("a\x85\u2028 \n'\":#", max_size=200)


def test_nothing_is_a_value_where_an_optimizer_takes_it():
    config = parse(GOOD, overrides=["optimizer={name: nadam, momentum_decay: null}"])
    again = parse(configs.dump(config))
    assert optimizer.build(config, 5, keras.Model).momentum_decay is None
    assert optimizer.build(again, 5, keras.Model).momentum_decay is None
    config = parse(GOOD, overrides=["optimizer.epsilon=null"])
    with pytest.raises(ConfigError, match="epsilon must be a number"):
        optimizer.build(config, 5, keras.Model)


SCALARS = st.one_of(TEXTS, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False))


@pytest.mark.slow
@given(st.dictionaries(TEXTS, SCALARS | st.lists(SCALARS, max_size=3), min_size=1, max_size=3))
def test_what_is_written_reads_back(values):
    assert plain_yaml.read(plain_yaml.written(values), Source("x")) == values


PIECES = st.sampled_from(
    [*"\n :-[]{},&*!|>'\"%@`#?0123456789.e$\t\\", "\n  ", ": ", "- ", "${", "run", "name", "<<"]
)


@pytest.mark.slow
@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=60).map("".join)))
def test_any_text_is_read_or_refused(text):
    """Only ever a ConfigError, alone or in place of a value."""
    for candidate in (text, edited("digits", text), edited("0.1", text), GOOD + text):
        try:
            parse(candidate)
        except ConfigError as error:
            assert str(error).startswith("<config>:")  # noqa: PT017


@pytest.mark.slow
@given(st.one_of(st.text(max_size=100), st.lists(PIECES, max_size=30).map("".join)))
def test_any_override_is_read_or_refused(text):
    for override in (text, f"run.seed={text}", f"optimizer.x={text}", f"data.dir={text}"):
        try:
            parse(GOOD, overrides=[override])
        except ConfigError as error:
            assert str(error).startswith(("override", "<config>:"))  # noqa: PT017


SECTIONS = [x for x in vars(schema).values() if isinstance(x, type) and issubclass(x, BaseModel)]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_has_a_meaning(section):
    """But for a name that can be nothing else, and the sections of a config."""
    of_sections = section in (schema.RunConfig, schema.Section)
    keys = {} if of_sections else section.model_fields
    missing = [key for key, field in keys.items() if not field.description]
    assert missing in ([], ["name"])
