"""Monitor: what it measures, in fit and in loops, is what happened to the weights."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

import tf_graft as tg
from support.replicas import mirrored
from tf_graft import cli
from tf_graft.monitor import norms_file
from tf_graft.report import ReportError
from tf_graft.training import config, place, run

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


def net():
    keras.utils.set_random_seed(1)
    layers = [keras.Input([3]), keras.layers.Dense(4, name="a"), keras.layers.Dense(1, name="b")]
    return keras.Sequential(layers)


class Weights(keras.callbacks.Callback):
    """The weights before the first batch and after each."""

    def on_train_begin(self, logs=None):
        self.seen = [self.model.get_weights()]

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.model.get_weights())


def fitted(optimizer, monitor, epochs=2, **compiled):
    model, weights = net(), Weights()
    model.compile(optimizer, "mse", **compiled)
    fit = {"epochs": epochs, "batch_size": 8, "shuffle": False, "verbose": 0}
    history = model.fit(X, Y, callbacks=[monitor, weights], **fit)
    return model, weights.seen, history.history


def norms(record, name):
    return np.array([getattr(each, name) for each in record.variables.values()])


def lengths(arrays):
    return [np.linalg.norm(array.astype(np.float64)) for array in arrays]


pytestmark = pytest.mark.filterwarnings("ignore:.*no gradient for idle")


@pytest.mark.slow
@pytest.mark.parametrize(
    "compiled", [{}, {"jit_compile": True}, {"run_eagerly": True}], ids=["graph", "xla", "eager"]
)
def test_fit_records_the_change_of_each_weight(compiled):
    monitor = tg.Monitor(every=3)
    model, seen, history = fitted(tg.SGD(0.1), monitor, **compiled)
    assert [record.step for record in monitor.records] == [3, 6]
    assert list(monitor.records[0].variables) == [v.path for v in model.trainable_variables]
    for record in monitor.records:
        before, after = seen[record.step - 1 : record.step + 1]
        steps = lengths([b - a for a, b in zip(before, after, strict=True)])
        np.testing.assert_allclose(norms(record, "step_norm"), steps, rtol=1e-5)
        np.testing.assert_allclose(norms(record, "weight_norm"), lengths(after), rtol=1e-6)
        np.testing.assert_allclose(norms(record, "gradient_norm"), np.divide(steps, 0.1), rtol=1e-5)
        total = np.linalg.norm(norms(record, "gradient_norm"))
        np.testing.assert_allclose(record.gradient_norm, total, rtol=1e-6)
        assert set(norms(record, "learning_rate")) == {np.float32(0.1)}
    assert history["gradient_norm"] == [record.gradient_norm for record in monitor.records]
    ratios = [max(n.ratio for n in record.variables.values()) for record in monitor.records]
    assert history["step_ratio"] == ratios
    assert history["clipped"] == [0, 0]


@pytest.mark.slow
def test_a_model_that_was_trained_before_is_traced_again_once():
    monitor = tg.Monitor(every=4)
    model, _, _ = fitted(tg.Adam(0.1), keras.callbacks.Callback())
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[monitor])
    first = model.train_function
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[monitor, tg.Monitor(2)])
    assert [record.step for record in monitor.records] == [12, 16]
    assert model.train_function is first


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_a_layer_may_be_unfrozen(first):
    base = keras.layers.Dense(2, name="base")
    model = keras.Sequential([keras.Input([2]), base, keras.layers.Dense(1, name="head")])
    base.trainable = False
    model.compile(tg.Adam(1e-3), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # without the base

    def unfreeze(epoch, logs):  # as a user's own may: there is no state for the layer yet
        if epoch == 1:
            base.trainable = True
            model.make_train_function(force=True)

    monitor, own = tg.Monitor(every=1), keras.callbacks.LambdaCallback(on_epoch_begin=unfreeze)
    callbacks = [monitor, own] if first else [own, monitor]
    x, y = np.ones((4, 2)), np.ones((4, 1))
    model.fit(x, y, batch_size=2, epochs=3, verbose=0, callbacks=callbacks)
    assert [record.step for record in monitor.records] == [1, 2, 3, 4, 5, 6]
    assert [len(record.variables) for record in monitor.records[:2]] == [2, 2]
    assert [len(record.variables) for record in monitor.records[-3:]] == [4, 4, 4]
    assert (norms(monitor.records[-1], "gradient_norm") > 0).all()


@pytest.mark.slow
def test_two_replicas_measure_what_one_device_measures():
    found = []
    for strategy in (tf.distribute.get_strategy(), mirrored()):
        monitor = tg.Monitor(every=2)
        with strategy.scope():
            fitted(tg.Adam(0.1, global_clipnorm=0.5), monitor)
        found.append(monitor.records)
    for one, two in zip(*found, strict=True):
        assert (one.step, one.clipped) == (two.step, two.clipped) == (one.step, True)
        for name in ("learning_rate", "weight_norm", "gradient_norm", "step_norm"):
            np.testing.assert_allclose(norms(one, name), norms(two, name), rtol=1e-4, atol=1e-7)


def loop(optimizer, gradients, every=1):
    """Steps of a table, a vector that never has a gradient, and a scalar."""
    weights = [
        tf.Variable(tf.ones([5, 2]), name="table"),
        tf.Variable([3.0, 4.0], name="idle"),  # that it has no gradient warns
        tf.Variable(1.0, name="scale"),
    ]
    optimizer.build(weights)
    monitor = tg.Monitor(every=every, optimizer=optimizer)
    apply = tf.function(lambda table, scale: optimizer.apply([table, None, scale], weights))
    for table, scale in gradients:
        with monitor.step():
            apply(table, tf.constant(scale))
    return monitor


ROWS = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 4, 1]))


def test_a_loop_with_repeated_rows_and_a_variable_without_a_gradient():
    monitor = loop(tg.SGD(0.5, learning_rate_multipliers={"scale": 0.1}), [(ROWS, 2.0)])
    (record,) = monitor.records
    table, idle, scale = record.variables.values()
    np.testing.assert_allclose(table, [0.5, np.sqrt(6.5), np.sqrt(10), 0.5 * np.sqrt(10)], 1e-6)
    np.testing.assert_allclose(idle, [0.5, 5.0, np.nan, 0.0], 1e-6)
    np.testing.assert_allclose(scale, [0.05, 0.9, 2.0, 0.1], 1e-6)
    np.testing.assert_allclose(record.gradient_norm, np.sqrt(14), 1e-6)
    assert monitor.table().splitlines()[1].split() == [
        "table",
        "0.5",
        "2.55",
        "3.16",
        "1.58",
        "0.62",
    ]


def test_a_skipped_update_is_counted_and_has_no_step():
    monitor = loop(tg.SGD(0.5), [(ROWS, 2.0), (ROWS, np.nan), (ROWS, 2.0)])
    assert [record.skipped_steps for record in monitor.records] == [0, 1, 1]
    assert np.isnan(monitor.records[1].gradient_norm)
    assert not norms(monitor.records[1], "step_norm").any()
    assert [record.skipped for record in monitor.records] == [False, True, False]


@pytest.mark.slow
def test_logs_have_the_same_names_in_each_epoch():
    """With 4 batches an epoch, every second epoch has a record."""
    _, _, history = fitted(tg.SGD(0.1), tg.Monitor(8), epochs=4)
    assert [len(values) for values in history.values()] == [4] * 5
    for name in ("gradient_norm", "step_ratio", "clipped"):
        assert np.isnan(history[name]).tolist() == [True, False, True, False]
    assert history["skipped_steps"] == [0] * 4


def test_logs_leave_out_skipped_updates_and_variables_of_zeros():
    monitor = tg.Monitor(1)
    model = net()
    model.compile(tg.SGD(0.1, learning_rate_multipliers={"a/": 0.0}), "mse")
    model.layers[0].set_weights([np.zeros([3, 4]), np.zeros([4])])
    y = Y.copy()
    y[8:16] = np.nan
    history = model.fit(X, y, batch_size=8, shuffle=False, verbose=0, callbacks=[monitor]).history
    assert [record.skipped for record in monitor.records] == [False, True, False, False]
    kept = [record for record in monitor.records if not record.skipped]
    np.testing.assert_allclose(
        history["gradient_norm"], [np.mean([record.gradient_norm for record in kept])]
    )
    assert np.isnan(norms(kept[-1], "ratio")).tolist() == [True, True, False, False]
    ratios = [record.largest_ratio for record in kept]
    assert 0 < history["step_ratio"][0] == pytest.approx(np.mean(ratios))
    assert history["skipped_steps"] == [1]


class Raising(keras.callbacks.Callback):
    """Ends fit by an error after the first batch of an epoch was trained."""

    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def test_an_interrupted_fit_leaves_no_measurement_open():
    monitor, model = tg.Monitor(every=2), net()
    model.compile(tg.SGD(0.1), "mse")
    fit = {"batch_size": 8, "verbose": 0, "shuffle": False}
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, **fit, callbacks=[Raising(), monitor])
    monitor.batches = 1
    with pytest.raises(KeyboardInterrupt):  # in the second batch, which is measured
        model.fit(X, Y, **fit, callbacks=[Raising(), monitor])
    weights = Weights()
    model.fit(X, Y, **fit, callbacks=[monitor, weights])
    assert [record.step for record in monitor.records] == [4, 6]
    before, after = weights.seen[1:3]
    steps = lengths([b - a for a, b in zip(before, after, strict=True)])
    np.testing.assert_allclose(norms(monitor.records[0], "step_norm"), steps, rtol=1e-4)


@pytest.mark.slow
def test_it_goes_on_after_a_model_was_compiled_anew_within_an_accumulation():
    monitor, model = tg.Monitor(every=4), net()
    for epochs in (1, 3):  # of 4 batches: at the end of the first fit a measurement is open
        model.compile(tg.SGD(0.1, gradient_accumulation_steps=3), "mse")
        model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=[monitor])
    assert [record.step for record in monitor.records] == [2, 3, 4]


def test_an_error_within_a_step_leaves_no_measurement_open():
    w, optimizer = tf.Variable([3.0, 4.0]), tg.SGD(0.5)
    optimizer.build([w])
    monitor = tg.Monitor(1, optimizer)

    def step(scale):
        with monitor.step():
            optimizer.apply([tf.constant([1.0, 0.0])], [w])
            assert scale > 0

    with pytest.raises(AssertionError):
        step(0)
    step(1)
    assert [norms(record, "step_norm").tolist() for record in monitor.records] == [[0.5]]


def test_a_step_that_was_compiled_before_warns_that_it_is_not_measured():
    w, optimizer = tf.Variable([3.0, 4.0]), tg.SGD(0.5)
    optimizer.build([w])

    @tf.function
    def step():
        optimizer.apply([tf.constant([1.0, 0.0])], [w])

    step()
    monitor = tg.Monitor(1, optimizer)
    with pytest.warns(UserWarning, match="compiled before the monitor"), monitor.step():
        step()
    assert not monitor.records


def test_a_skipped_update_has_no_line_in_the_file_and_its_folder_is_made(tmp_path):
    monitor = loop(tg.SGD(0.5), [(ROWS, 2.0), (ROWS, np.nan), (ROWS, 2.0)])
    monitor.path = tmp_path / "new" / "norms.csv"
    monitor.write()
    read = norms_file.NormsReport.read(monitor.path)
    assert read.steps.tolist() == [1, 2]
    first, _, second = (norms(record, "step_norm") for record in monitor.records)
    np.testing.assert_allclose(read.step, [first, second])


def test_a_record_waits_for_the_end_of_an_accumulation():
    optimizer = tg.SGD(0.5, gradient_accumulation_steps=3)
    monitor = loop(optimizer, [(ROWS, float(scale)) for scale in range(6)], every=2)
    assert [record.step for record in monitor.records] == [1, 2]
    np.testing.assert_allclose(norms(monitor.records[0], "step_norm")[2], 0.5)
    np.testing.assert_allclose(norms(monitor.records[1], "gradient_norm")[2], 4.0)


@pytest.mark.parametrize("outer", [lambda x: tg.MixedPrecision(x, None), tg.LARC, tg.AGN])
def test_wrappers(outer):
    monitor = loop(outer(tg.SGD(0.5)), [(ROWS, 2.0)])
    np.testing.assert_allclose(monitor.records[0].gradient_norm, np.sqrt(14), 1e-5)


@pytest.mark.slow
def test_keras_loss_scale_around_it():
    monitor = tg.Monitor(every=4)
    fitted(keras.optimizers.LossScaleOptimizer(tg.SGD(0.1), initial_scale=8.0), monitor)
    plain = tg.Monitor(every=4)
    fitted(tg.SGD(0.1), plain)
    for found, right in zip(monitor.records, plain.records, strict=True):
        np.testing.assert_allclose(norms(found, "step_norm"), norms(right, "step_norm"), rtol=1e-5)


def test_beside_another_watcher():
    """`optimize_loss` watches the gradients, too."""
    optimizer, seen, w = tg.SGD(0.5), [], tf.Variable([1.0])
    optimizer.build([w])
    optimizer.engine.watch(lambda gradients, _: seen.append(gradients))
    monitor = tg.Monitor(1, optimizer)
    with monitor.step():
        optimizer.apply([tf.constant([2.0])], [w])
    assert len(seen) == len(monitor.records) == 1


@pytest.mark.slow
def test_the_file_has_all_records_and_drops_later_ones_on_resume(tmp_path):
    path = tmp_path / "monitor.csv"
    model, _, _ = fitted(tg.SGD(0.1), tg.Monitor(2, path=path), epochs=1)
    whole = path.read_text().splitlines()
    assert whole[0] == "step,variable,learning_rate,weight_norm,gradient_norm,step_norm"
    assert [line.split(",")[0] for line in whole[1:]] == ["2"] * 4 + ["4"] * 4
    model.optimizer.iterations.assign(2)
    again = tg.Monitor(2, path=path)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[again])
    lines = path.read_text().splitlines()
    assert lines[:5] == whole[:5]
    assert [line.split(",")[0] for line in lines[5:]] == ["4"] * 4 + ["6"] * 4


def steps_in(path):
    return [int(line.split(",")[0]) for line in path.read_text().splitlines()[1:]]


def scalar_steps(monitor, optimizer, w, gradients):
    for gradient in gradients:
        with monitor.step():
            optimizer.apply([tf.constant(gradient)], [w])
    monitor.write()


def test_going_back_in_one_process_drops_what_was_recorded_after(tmp_path):
    w, optimizer = tf.Variable(1.0), tg.SGD(0.5)
    optimizer.build([w])
    monitor = tg.Monitor(1, optimizer, path=tmp_path / "norms.csv")
    scalar_steps(monitor, optimizer, w, [1.0] * 4)
    optimizer.iterations.assign(2)
    scalar_steps(monitor, optimizer, w, [3.0])
    assert steps_in(monitor.path) == [1, 2, 3]
    assert norms_file.NormsReport.read(monitor.path).gradient[:, 0].tolist() == [1, 1, 3]
    assert [record.step for record in monitor.records] == [1, 2, 3, 4, 3]


def test_a_line_stays_if_the_first_update_after_a_resume_is_skipped(tmp_path):
    w, optimizer = tf.Variable(1.0), tg.SGD(0.5)
    optimizer.build([w])
    scalar_steps(tg.Monitor(1, optimizer, tmp_path / "norms.csv"), optimizer, w, [1.0] * 4)
    optimizer.iterations.assign(2)
    again = tg.Monitor(1, optimizer, tmp_path / "norms.csv")
    scalar_steps(again, optimizer, w, [np.nan])
    assert steps_in(again.path) == [1, 2]
    scalar_steps(again, optimizer, w, [1.0])
    assert steps_in(again.path) == [1, 2, 3]


@pytest.mark.slow
def test_layers_that_keras_numbers_anew_are_the_same_layers(tmp_path):
    def plain():
        return keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])

    for resumed in (False, True):
        model = plain()
        model.compile(tg.SGD(0.1), "mse")
        monitor = tg.Monitor(4, path=tmp_path / "norms.csv")
        if resumed:
            model.optimizer.build(model.trainable_variables)
            model.optimizer.iterations.assign(4)
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[monitor])
    read = norms_file.NormsReport.read(monitor.path)
    assert read.paths == [v.path for v in model.trainable_variables]
    assert read.steps.tolist() == [4, 8]
    assert np.isfinite(read.weight).all()


def test_a_place_where_no_file_can_be_is_refused_before_training(tmp_path):
    (tmp_path / "file").touch()
    monitor = tg.Monitor(2, path=tmp_path / "file" / "norms.csv")
    with pytest.raises(ReportError, match=r"norms\.csv cannot be written: (file exists|not a dir)"):
        fitted(tg.SGD(0.1), monitor)
    assert monitor.records == []


def test_a_named_pipe_is_not_waited_for(tmp_path):
    path = tmp_path / "monitor.csv"
    os.mkfifo(path)
    with pytest.raises(ReportError, match=r"monitor\.csv: a named pipe is in its place"):
        fitted(tg.SGD(0.1), tg.Monitor(2, path=path))


def test_a_file_of_others_is_refused_and_kept(tmp_path):
    path = tmp_path / "notes.csv"
    path.write_text("my,notes\n")
    with pytest.raises(ReportError, match="not a file that Monitor wrote"):
        fitted(tg.SGD(0.1), tg.Monitor(2, path=path))
    assert path.read_text() == "my,notes\n"


@pytest.mark.slow
def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    writer = tf.summary.create_file_writer(str(tmp_path))
    monitor = tg.Monitor(4, writer=writer)
    model, _, _ = fitted(tg.SGD(0.1), monitor)
    writer.close()
    (file,) = tmp_path.iterdir()
    found = {
        (value.tag, event.step): value.simple_value
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    path = model.trainable_variables[0].path
    for record in monitor.records:
        assert found["gradient_norm", record.step] == pytest.approx(record.gradient_norm)
        ratio = record.variables[path].ratio
        assert found[f"step_ratio/{path}", record.step] == pytest.approx(ratio)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"Monitor\(every=0\)"):
        tg.Monitor(0)
    with pytest.raises(TypeError, match="Adam is no optimizer of tf_graft"):
        tg.Monitor(optimizer=keras.optimizers.Adam())
    with pytest.raises(TypeError, match=r"Monitor\(path=3\)"):
        tg.Monitor(path=3)
    with pytest.raises(TypeError, match=r"Monitor\(writer='logs'\): writer must be a SummaryWrit"):
        tg.Monitor(writer="logs")
    for monitor, message in (
        (tg.Monitor(), "has no optimizer"),
        (tg.Monitor(optimizer=tg.SGD(0.1)), "has no variables"),
    ):
        with pytest.raises(ValueError, match=message), monitor.step():
            pass
    assert tg.Monitor().table().split() == [
        "variable",
        "learning",
        "rate",
        "weights",
        "gradient",
        "step",
        "step",
        "/",
        "weights",
    ]


# In runs and reports.

CONFIG = """\
data: {name: digits, batch_size: 256}
model: {name: mlp, units: [8]}
optimizer: OPTIMIZER
run: {epochs: 2, progress: none, tensorboard: false, monitor: 2}
"""
GRAFT = "{name: adagraft, diagnostic: true, magnitude_optimizer: adam, direction_optimizer: sgd}"


def trained(folder, optimizer):
    text = CONFIG.replace("OPTIMIZER", optimizer)
    run.train(config.parse(text, overrides=[f"run.dir={folder}"]), say=print)
    return folder


@pytest.fixture
def command(prepared_data):
    return lambda *words: CliRunner().invoke(cli.app, list(map(str, words)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_a_run_is_monitored_and_reported(command, tmp_path):
    folder = trained(tmp_path / "run", "{name: adam, learning_rate_multipliers: {classes: 0.5}}")
    found = norms_file.NormsReport.read(folder)
    assert found.steps.tolist() == [2, 4, 6, 8, 10]
    assert sorted(found.paths) == ["classes/bias", "classes/kernel", "dense/bias", "dense/kernel"]
    rates = {layer.path: layer.learning_rate for layer in found.layers()}
    assert rates["classes/kernel"] == pytest.approx(0.0005)
    done = command("report", folder)
    assert done.exit_code == 0, done.output
    assert "5 records to step 10" in done.stdout
    assert "dense/kernel" in done.stdout
    page = (folder / "report.html").read_text()
    assert "norms of weights, gradients and steps" in page
    assert command("report", folder / "norms.csv").exit_code == 0
    done = command("report", folder, "--export", tmp_path / "rates.json")
    assert done.exit_code == 2
    assert "graft.records: no such file or directory; an AdaGraft with" in done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_a_report_on_a_graft_that_was_monitored_has_both(command, tmp_path):
    folder = trained(tmp_path / "run", GRAFT)
    done = command("report", folder)
    assert done.exit_code == 0, done.output
    assert "Norms by layer" in done.stdout
    assert "miss the graft's steps by" in done.stdout
    page = (folder / "report.html").read_text()
    assert "what the graft measured" in page
    assert "norms of weights, gradients and steps" in page


def test_a_report_of_a_file():
    """Medians by hand, of three records; the second variable comes later."""
    values = np.full((3, 2, 4), np.nan)
    values[:, 0] = [[0.1, 2, 1, 0.2], [0.1, 4, 3, 0.2], [0.1, 5, np.nan, 1.0]]
    values[2, 1] = [0.2, 0, 4, 0.5]
    report = norms_file.NormsReport(np.array([1, 2, 3]), ["a", "b"], values)
    first, second = report.layers()
    assert first == ("a", 0.1, 5, 2, 0.2, pytest.approx(0.1), pytest.approx(0.2))
    assert second[:5] == ("b", 0.2, 0, 4, 0.5)
    assert np.isnan(second.ratio)
    assert norms_file.number(second.ratio) == "-"


@pytest.mark.slow
def test_a_damaged_file_is_refused_and_a_folder_is_made(tmp_path):
    path = tmp_path / "new" / "norms.csv"
    fitted(tg.SGD(0.1), tg.Monitor(every=1, path=path))
    path.write_text(path.read_text("utf-8") + "\n1,a\n")
    with pytest.raises(ReportError, match=r"line \d+ is damaged; put back a copy"):
        fitted(tg.SGD(0.1), tg.Monitor(every=1, path=path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not a file that Monitor wrote"),
        ("a,b\n", "it is not a file that Monitor wrote"),
        ("HEAD\n", "there are no records yet"),
        ("HEAD\n1,a,1,1,1,1\n2,a,1,1\n", "line 3 is damaged; put back a copy"),
        ("HEAD\n1,a,1,1,1,x\n", "line 2 is damaged; put back a copy"),
        (None, "no such file or directory"),
    ],
)
def test_a_file_that_is_none(text, message, tmp_path):
    path = tmp_path / "x.csv"
    if text is not None:
        path.write_text(text.replace("HEAD", ",".join(norms_file.COLUMNS)))
    with pytest.raises(ReportError, match=message):
        norms_file.NormsReport.read(path)
    assert norms_file.NormsReport.read(tmp_path) is None


@pytest.mark.parametrize(
    "change",
    [
        "run.monitor=5",
        "fine_tuning.unfreeze.dense=2",
        "fine_tuning={start_from: former, rows: {table: [0, 1]}}",
    ],
)
def test_what_parameter_servers_refuse(change, monkeypatch):
    text = CONFIG.replace("OPTIMIZER", "{name: adam}").replace(", monitor: 2", "")
    parsed = config.parse(text, overrides=["strategy.name=parameter_server", change])
    with pytest.raises(config.ConfigError, match="it does not work with workers on servers"):
        place.enter(parsed)
