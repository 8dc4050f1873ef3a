"""The command line: what it prints, where, and its exit codes."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tf_graft
from tf_graft import cli
from tf_graft.fit.finder import LearningRateCurve
from tf_graft.training import loop, models, plots, progress, run

# Keras 3.15's convert_to_numpy on NumPy 2, met wherever a model is saved.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

CONFIG = str(Path(__file__).parents[1] / "configs" / "digits_sgd_poly.yaml")


@pytest.fixture
def command(prepared_data, tmp_path, monkeypatch):
    """Runs `tf-graft` in an empty folder; prepared data are in another one."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli.app, list(arguments))


EACH_FIRST = """
import importlib, os, sys
sys.argv[0] = "tf-graft"
import keras, tensorflow
import tf_graft

assert "tf_graft.face" not in sys.modules
failed = []
for name in sys.argv[1:]:
    if not (child := os.fork()):
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(name, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    failed += [name] * (os.waitpid(child, 0)[1] != 0)
sys.exit(1 if failed else 0)
"""


@pytest.mark.rare  # `test_layers.py` finds circles as well
def test_a_command_may_import_any_part_of_the_package_first():
    """The command imports parts late, and not all of them."""
    package = Path(tf_graft.__file__).parent
    parts = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    names = [f"tf_graft.{part}" for part in sorted(parts) if not part.startswith("_")]
    command = [sys.executable, "-c", EACH_FIRST, *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd=package.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_terminal_without_all_characters_shows_escapes():
    environment = os.environ | {"COLUMNS": "60", "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "tf_graft", "list"]
    done = subprocess.run(command, capture_output=True, env=environment)
    assert (done.returncode, b"Backpr\\u2026" in done.stdout) == (0, True), done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_standard_output_is_a_sentence():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tf_graft", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "tf-graft: no space left on device.\n")


def test_list_names_what_configs_use(command):
    result = command("list")
    assert result.exit_code == 0
    first = {line.split()[0] for line in result.stdout.splitlines() if line}
    assert {"adagrad", "lion", "nadam", "muon", "ftrl", "poly_decay"} < first
    assert {"digits", "transformer", "resnet50"} < first
    assert "EfficientNetV2S" in result.stdout
    sizes = {line.split()[0]: line for line in result.stdout.splitlines() if line}
    assert sizes["row_wise_adagrad"].rstrip().endswith(" 4")
    assert sizes["adam"].rstrip().endswith(" 8 * columns")


@pytest.mark.slow
def test_a_dry_run_describes_the_run_and_writes_nothing(command, tmp_path):
    result = command("train", CONFIG, "run.epochs=2", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "  epochs: 2\n" in result.stdout
    line = next(line.split() for line in result.stdout.splitlines() if "classes/bias" in line)
    assert line[1] == "(10,)"
    assert "Steps: 88 (2 epochs of 44)." in result.stdout
    assert "optimizer" in result.stdout.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_dry_run_of_a_run_that_continues_needs_not_what_it_started_from(command, tmp_path):
    few = "run.epochs=1", "data.train=train[:10%]"
    assert command("train", CONFIG, "run.dir=former", *few).exit_code == 0
    started = "fine_tuning.start_from=former/model.keras", "run.dir=run", *few
    assert command("train", CONFIG, *started).exit_code == 0
    (tmp_path / "former" / "model.keras").unlink()
    result = command("train", CONFIG, *started, "--dry-run")
    assert result.exit_code == 0, result.output
    result = command("train", CONFIG, *started, "run.fresh=true", "--dry-run")
    assert "there is no file former/model.keras" in result.output


@pytest.mark.slow
def test_schedule_draws_and_prints_the_rate(command, tmp_path):
    result = command("schedule", CONFIG, "run.epochs=2")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "digits_sgd_poly_schedule.png").read_bytes().startswith(b"\x89PNG")
    rows = [line.split() for line in result.stdout.splitlines()[1:-1]]
    assert rows[0] == ["0", "0"]
    assert rows[-1][0] == "87"
    assert [path.name for path in tmp_path.iterdir()] == ["digits_sgd_poly_schedule.png"]


@pytest.mark.slow
def test_schedule_tells_what_each_variable_of_a_matrix_optimizer_gets(command, undrawn):
    muon = "{name: muon, learning_rate: {name: fixed_lr, learning_rate: 0.02}, others: sgd}"
    few = "run.epochs=2", "model={name: mlp}"
    result = command("schedule", CONFIG, f"optimizer={muon}", *few)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    first = next(line.split() for line in lines if line.split()[:1] == ["0"])
    assert first[1:] == ["0.02", "0.01"], result.output
    matrices = [line for line in lines if re.search(r"\d+ x \d+$", line.strip())]
    assert matrices
    assert all(" 0.02 " in line for line in matrices), result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "change"),
    [
        (CONFIG, "optimizer.gradient_accumulation_steps=2"),
        (
            CONFIG,
            "optimizer={name: larc, optimizer: {name: sgd, gradient_accumulation_steps: 2, RATE}}",
        ),
        (CONFIG.replace("sgd_poly", "openseq2seq"), "openseq2seq.iter_size=2"),
    ],
)
def test_schedule_goes_through_a_wrapper_and_counts_updates(config, change, command, undrawn):
    rate = "learning_rate: {name: poly_decay, learning_rate: 0.05, decay_steps: total}"
    result = command("schedule", config, change.replace("RATE", rate))
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()[1:-1]]
    (middle, rate), (last, end) = rows[4], rows[-1]
    assert last == "329"  # 15 epochs of 44 steps, two to an update
    assert int(middle) == 188
    assert 0 < float(end) < 0.001 < float(rate) < 0.03


@pytest.mark.slow
def test_total_begins_after_a_warmup_of_an_epoch(command):
    warmup = "optimizer.learning_rate.warmup_steps="
    said = [
        command("schedule", CONFIG, "run.epochs=2", f"{warmup}{steps}")
        for steps in ("44", "epoch")  # which has 44
    ]
    assert said[0].exit_code == 0, said[0].output
    assert said[0].stdout == said[1].stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "last"),
    [
        # 88 steps: 44 in an epoch, and two epochs
        ("{name: one_cycle, max_lr: 1, total_steps: total}", "4e-06"),
        (
            "{name: warmup_stable_decay, learning_rate: 1, warmup_steps: epoch, decay_steps: 10, "
            "total_steps: total}",
            "0.1",
        ),
        (
            "{name: power_linear_decay, learning_rate: 1, decay_steps: total, power: 0, offset: 4}",
            "0.125",
        ),
        (
            "{name: sequence, milestones: [epoch], schedules: [{name: warmup, schedule: 1, steps: "
            "epoch}, {name: poly_decay, learning_rate: 1, decay_steps: total}]}",
            "0.0227",
        ),
    ],
)
def test_total_and_epoch_in_schedules_end_with_the_run(rate, last, command, undrawn):
    result = command("schedule", CONFIG, "run.epochs=2", f"optimizer.learning_rate={rate}")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-2].split() == ["87", last]


@pytest.mark.slow
def test_momentum_and_averages_in_time(command):
    cycle = "{name: one_cycle, max_lr: 1.0, total_steps: total}"
    momentum = f"{{name: cyclical_momentum, schedule: {cycle}}}"
    averages = "{name: swa, start: epoch, period: epoch}"
    for given, code, message in (
        (f"learning_rate: {cycle}, momentum: {momentum}, use_ema: {averages}", 0, ""),
        ("momentum: {name: piecewise_constant, learning_rate: 2}", 2, "momentum"),
        ("use_ema: {name: mean}", 2, "its 'name' must be 'ema' or 'swa'"),
    ):
        result = command("schedule", CONFIG, "run.epochs=2", f"optimizer={{name: sgd, {given}}}")
        assert result.exit_code == code, result.output
        assert message in result.stderr


@pytest.mark.slow
def test_an_error_in_a_schedule_of_a_sequence_is_one_sentence(command):
    inner = "[{name: poly_decay, learning_rate: 1, decay_steps: 0}, 0.1]"
    for milestones, message in (
        ("[3]", "decay_steps=0"),
        ("[x]", "milestones"),
        ("3", "milestones"),
    ):
        rate = f"{{name: sequence, schedules: {inner}, milestones: {milestones}}}"
        result = command("schedule", CONFIG, f"optimizer.learning_rate={rate}")
        assert result.exit_code == 2
        assert message in result.stderr or "decay_steps=0" in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_find_draws_and_suggests_and_leaves_no_run(command, tmp_path):
    result = command("find", CONFIG, "--steps", "30", "--low", "0.001")
    assert result.exit_code == 0, result.output
    suggested = float(result.stdout.split()[3].strip(".;"))
    assert 0.001 < suggested < 10
    assert (tmp_path / "digits_sgd_poly_find.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["digits_sgd_poly_find.png"]


@pytest.mark.slow
def test_find_computes_on_one_device(command):
    config = CONFIG.replace("sgd_poly", "mirrored")
    result = command("find", config, "--steps", "5", "--output", "new/here.png")
    assert result.exit_code == 0, result.output
    assert "Drawn in new/here.png." in result.stdout


@pytest.mark.parametrize(
    ("losses", "line"),
    [
        ([1.0, 2.0, 3.0, 4.0], "The loss does not fall at any of these learning rates."),
        ([5.0, 4.0, 1.0, 0.5], "Suggested learning rate: 0.21."),
        (
            [5.0, 4.0, 3.0, 0.5],
            "Suggested learning rate: 0.31; the loss falls fastest at the end, so try --high 8.",
        ),
    ],
)
def test_find_says_what_to_do(losses, line):
    losses = np.array(losses)
    curve = LearningRateCurve(np.array([0.1, 0.2, 0.4, 0.8]), losses, losses, False)
    assert cli._suggested(curve, 0.8) == line


@pytest.mark.slow
def test_find_suggests_although_the_picture_cannot_be_written(command, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "curve.png")

    monkeypatch.setattr(plots, "save", full)
    result = command("find", CONFIG, "--steps", "30", "--low", "0.001")
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith("Suggested learning rate:")
    assert "no space left" in result.stderr


@pytest.mark.parametrize("name", ["find", "schedule"])
def test_a_picture_in_a_file_is_refused_before_anything_is_done(name, command, tmp_path):
    (tmp_path / "file").touch()
    result = command(name, CONFIG, "--output", "file/curve.png")
    assert result.exit_code == 1, result.output
    assert result.stderr in ("file: file exists.\n", "file/curve.png: not a directory.\n")


@pytest.mark.parametrize("name", ["find", "schedule"])
def test_a_picture_of_another_program_is_kept(name, command, tmp_path):
    picture = tmp_path / "curve.png"
    picture.write_bytes(b"\x89PNG mine")
    result = command(name, CONFIG, "--output", "curve.png")
    assert result.exit_code == 2, result.output
    assert (
        result.stderr
        == "curve.png is not of tf-graft, and stays as it is; give another --output.\n"
    )
    assert picture.read_bytes() == b"\x89PNG mine"


@pytest.mark.slow
def test_a_picture_is_drawn_again(command, tmp_path):
    for epochs in (1, 2):
        result = command("schedule", CONFIG, f"run.epochs={epochs}", "--output", "curve.png")
        assert result.exit_code == 0, result.output


@pytest.mark.slow
@pytest.mark.parametrize("high", ["inf", "1e39"])
def test_find_refuses_a_rate_that_float32_has_not(high, command, tmp_path):
    result = command("find", CONFIG, "--high", high)
    assert result.exit_code == 2, result.output
    assert "high must be finite and above 1e-06" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["find", "schedule"])
def test_a_picture_is_a_png(name, command, tmp_path):
    result = command(name, CONFIG, "--output", "curve.yaml")
    assert result.exit_code == 2, result.output
    assert "curve.yaml must end in .png." in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [("--low", "20"), ("--low", "0"), ("--steps", "2")])
def test_find_refuses_a_range_that_is_none(option, command, tmp_path):
    result = command("find", CONFIG, *option)
    assert result.exit_code == 2
    assert option[0] in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "nowhere.yaml: no such file or directory."),
        ([CONFIG, "run.epoch=1"], "unknown key 'epoch' in 'run'; did you mean 'epochs'?"),
        ([CONFIG, "optimizer.momentum=-1"], "momentum must"),
        ([CONFIG, "optimizer.learning_rate.power=0"], "power must"),
    ],
)
def test_an_error_is_one_sentence_on_stderr_and_code_2(arguments, message, command, tmp_path):
    for name in ("train", "schedule", "find"):
        result = command(name, *arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["file", "file/run", "loop", "x" * 300, "/dev/null"])
def test_a_folder_that_cannot_be_made_is_one_sentence(place, command, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    result = command("train", CONFIG, f"run.dir={place}")
    assert result.exit_code == 2
    assert " cannot be used (" in result.stderr
    assert result.stderr.endswith("; fix that, or choose another run.dir.\n")
    assert result.stderr.count("\n") == 1


def test_a_data_set_that_cannot_be_had_is_one_sentence_at_once(command, monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY"):  # where nobody listens
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    mnist = str(Path(CONFIG).with_name("mnist_cnn.yaml"))
    result = command("train", mnist, "data.dir=here")
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "mnist_cnn.yaml:6: 'mnist' is not in here (data.dir) and cannot be downloaded (no "
        "connection to storage.googleapis.com); digits, text, words need no network: "
        "data.name=digits.\n"
    )
    result = command("train", mnist, "data.dir=here", "data.name=my_flowers")
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "no data set 'my_flowers', and none is prepared in here (data.dir); did you mean "
        "'tf_flowers'?\n"
    )


@pytest.mark.slow
def test_train_ends_with_the_results_and_where_they_are(command):
    result = command("train", CONFIG, "run.epochs=1", "run.dir=a", "model.units=8")
    assert result.exit_code == 0, result.output
    assert "44/44" in result.stdout
    assert "Done: test accuracy" in result.stdout
    assert "a/plot.png" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "arguments"),
    [("typer", ["list"]), ("ruamel.yaml", ["train", CONFIG]), ("tensorflow_datasets", ["list"])],
)
def test_without_the_extras_it_says_what_to_install(missing, arguments):
    script = f"""import sys; sys.modules[{missing!r}] = None
sys.argv = {["tf-graft", *arguments]}
from tf_graft.cli import main
main()"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == cli.NEEDS_EXTRAS


def interrupted(command, monkeypatch, module, name, arguments, times=1):
    """Runs `train` with Ctrl-C, `times` times, when a function is called."""
    before = getattr(module, name)

    def disturbed(*given, **more):
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return before(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, disturbed)
        result = command(
            "train", CONFIG, "run.dir=a", "model.units=8", "data.batch_size=64", *arguments
        )
    assert result.exit_code == 130, result.output
    return result.stderr


@pytest.mark.slow
def test_ctrl_c_says_what_is_kept(command, monkeypatch, tmp_path):
    """Before a run begins, before its first state is saved, and in a run that continues."""
    early = interrupted(command, monkeypatch, models, "build", [])
    assert early == "Interrupted. The run had not begun: nothing was written to a.\n"
    assert not (tmp_path / "a").exists()
    at_start = interrupted(command, monkeypatch, progress, "announced", [])
    assert at_start.startswith("Interrupted. a has no saved state yet: the same command starts at")
    log = loop.RecordedModel, "notes", []
    assert "a has no saved state yet" in interrupted(command, monkeypatch, *log, times=2)
    stopped = interrupted(command, monkeypatch, *log)
    assert run.STOPPING not in stopped  # is written to the terminal itself
    assert "Stopped by Ctrl-C after step 1, which is saved" in stopped
    later = interrupted(command, monkeypatch, progress, "announced", [])
    assert later == "Interrupted. a keeps the state after step 1, from which a run continues.\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mpl", "digits"], "no model 'mpl'; did you mean 'mlp'?"),
        (
            ["mlp", "digits", "--optimizer", "adagrd"],
            "such optimizer; did you mean 'adagrad'?",
        ),
        (["mlp", "digit"], "no data set 'digit'"),
        (["mlp", "../../etc"], "name is the text '../../etc'; it is not a name."),
        (["transformer", "digits"], "'transformer' is for characters, the data are images."),
        (["two_tower", "digits"], "'two_tower' also needs data.fields and data.label"),
        (["mlp", "digits", "--optimizer", "layerwise_rates"], "also needs rates"),
        (["mlp", "digits", "here.yaml"], "here.yaml exists, and stays as it is"),
    ],
)
def test_new_refuses_in_one_sentence(arguments, says, command, tmp_path):
    (tmp_path / "here.yaml").write_text("mine")
    result = command("new", *arguments)
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "here.yaml").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"here.yaml"}


@pytest.mark.slow
def test_new_makes_the_folder_of_its_file(command, tmp_path):
    result = command("new", "mlp", "digits", "of/mine/a.yaml")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Written to of/mine/a.yaml. Train it: tf-graft train of/mine/a.yaml\n"
    assert (tmp_path / "of" / "mine" / "a.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "optimizer"),
    [
        ("cnn", "digits", "ada_graft"),
        ("transformer", "text", "ftrl"),
        ("MobileNet", "digits", "soap"),
    ],
)
def test_what_new_writes_can_be_trained(model, data, optimizer, command, tmp_path):
    result = command("new", model, data, "--optimizer", optimizer)
    assert result.exit_code == 0, result.output
    file = f"{data}_{model.lower()}.yaml"
    assert result.stdout.endswith(f"tf-graft train {file}\n")
    lines = (tmp_path / file).read_text().splitlines()
    assert max(map(len, lines)) <= 100
    assert any(re.match(r"  batch_size: 32 +# the number of examples in a batch", x) for x in lines)
    result = command("train", file, "--dry-run")
    assert result.exit_code == 0, result.output
