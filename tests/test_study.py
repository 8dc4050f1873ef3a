"""Studies: the runs that they make, in which order, and what they say about them."""

import contextlib
import glob
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from support import forked
from tf_graft import cli
from tf_graft.processes.cluster import LAUNCHED
from tf_graft.study import execution, plan
from tf_graft.training import results
from tf_graft.training.log import Log
from tf_graft.training.source import ConfigError

ROOT = Path(__file__).parents[1]
SHORT = ROOT / "studies" / "pays_short.yaml"

STUDY = f"""
tasks:
  digits: {{config: {ROOT}/configs/digits_adagrad.yaml, set: {{run.epochs: 3}}}}
seeds: [5, 7]
arms:
  sgd:
    set: {{optimizer: {{name: sgd}}}}
    sweep: {{optimizer.learning_rate: [0.01, 0.1, 1.0]}}
  after:
    after: sgd
    set:
      optimizer: {{name: sgd, learning_rate: "{{value}}"}}
      fine_tuning.start_from: "{{run}}/model.keras"
  first:
    after: sgd
    set:
      fine_tuning.start_from: "{{first_run}}/model.keras"
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Writes a study in an empty folder, and reads it."""
    monkeypatch.chdir(tmp_path)

    def read(text=STUDY, *overrides):
        path = tmp_path / "compared.yaml"
        path.write_text(text)
        return plan.load(path, overrides)

    return read


class Process:
    """A run that ends at the second look at it."""

    LOSSES: ClassVar = {}  # by learning rate; whole numbers are the exit codes of runs that fail
    made: ClassVar = []  # the values of each run
    running: ClassVar = set()
    at_once = 0  # the most runs at a time

    def __init__(self, command, env, stdin, **_):
        assert (env[LAUNCHED], stdin) == ("1", subprocess.PIPE)  # it ends with its parent
        self.values = dict(override.split("=", 1) for override in command[5:])
        self.stdin, self.pid, self.looks = None, 2**30, 0
        Process.made.append(self.values)
        Process.running.add(self)
        Process.at_once = max(Process.at_once, len(Process.running))

    def poll(self):
        self.looks += 1
        if self.looks < 2:
            return None
        Process.running.discard(self)
        loss = self.LOSSES.get(self.values.get("optimizer.learning_rate"), 1.0)
        self.returncode = 0 if isinstance(loss, float) else loss
        folder = Path(self.values["run.dir"])
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("config.yaml", "model.keras"):
            (folder / name).write_text("")
        (folder / "steps.csv").write_text("step,epoch,loss,learning_rate\n1,0,2.0,0.1\n")
        if not self.returncode:
            numbers = {"epochs": 3, "steps": 3, "test_loss": loss, "test_accuracy": 0.5}
            results.write(folder / "summary.json", numbers)
        return self.returncode

    def wait(self, _):
        return self.poll()


@pytest.fixture
def processes(monkeypatch):
    """Runs take no time."""
    monkeypatch.setattr(execution.subprocess, "Popen", Process)
    monkeypatch.setattr(execution, "WAIT", 0.0)
    for name, value in (("LOSSES", {}), ("made", []), ("running", set()), ("at_once", 0)):
        monkeypatch.setattr(Process, name, value)
    return Process


def ran(made, jobs=1):
    """Makes the runs of a study; returns their outcomes by arm, and what was said."""
    said = []
    with execution.Execution(made, jobs, said.append) as running:
        assert running.run() is None
    return {cell.arm: running.outcomes.of(cell) for cell in made.cells}, said, running.failures


@pytest.mark.slow
def test_the_first_seed_chooses_and_the_others_run_the_best(study, processes):
    processes.LOSSES = {"0.01": 0.5, "0.1": 0.2, "1.0": math.nan}
    outcomes, said, failures = ran(study())
    assert failures == []
    swept = [values for values in processes.made if "start_from" not in str(values)]
    assert [(v["optimizer.learning_rate"], v["run.seed"]) for v in swept] == [
        ("0.01", "5"),
        ("0.1", "5"),
        ("1.0", "5"),
        ("0.1", "7"),
    ]
    assert outcomes["sgd"].value == "0.1"
    assert outcomes["sgd"].metrics == {5: 0.2, 7: 0.2}
    assert outcomes["sgd"].swept == {
        "0.01": 0.5,
        "0.1": 0.2,
        "1.0": pytest.approx(math.nan, nan_ok=True),
    }
    assert (outcomes["sgd"].mean, outcomes["sgd"].deviation) == (pytest.approx(0.2), 0)
    assert said[1] == "digits sgd 0.1 seed 5: test_loss 0.2"


def test_larger_metrics_may_be_better(study, processes):
    processes.LOSSES = {"0.01": math.nan, "0.1": 0.2, "1.0": 0.5}
    made = study(STUDY, "higher_is_better=true", "seeds=[1]")
    assert ran(made)[0]["sgd"].value == "1.0"


def test_words_stand_for_the_run_before(study, processes):
    processes.LOSSES = {"0.01": 0.5, "0.1": 0.2}
    ran(study())
    of = "runs/compared/digits/sgd/learning_rate=0.1/seed"
    after = [v for v in processes.made if "/after/" in v["run.dir"]]
    assert [v["optimizer"] for v in after] == ["{name: sgd, learning_rate: 0.1}"] * 2
    assert [v["fine_tuning.start_from"] for v in after] == [
        f"{of}_5/model.keras",
        f"{of}_7/model.keras",
    ]
    first = [v for v in processes.made if "/first/" in v["run.dir"]]
    assert [v["fine_tuning.start_from"] for v in first] == [f"{of}_5/model.keras"] * 2


def test_an_arm_like_another_has_what_it_does_not_say_itself(study):
    made = study(
        f"""{STUDY}
  alike:
    like: sgd
    set: {{optimizer.name: adam, optimizer.weight_decay: 0.1}}
  once:
    like: alike
    sweep: {{}}
  from_the_first:
    like: after
    set: {{optimizer.learning_rate: 0.5}}
"""
    )
    of = {cell.arm: made.arm(cell) for cell in made.cells}
    assert of["alike"].set == {
        "optimizer": {"name": "sgd"},
        "optimizer.name": "adam",
        "optimizer.weight_decay": 0.1,
    }
    assert of["alike"].sweep == of["sgd"].sweep
    assert of["once"].set == of["alike"].set
    assert not of["once"].sweep
    assert of["from_the_first"].after == "sgd"
    assert [*of["from_the_first"].set][-1] == "optimizer.learning_rate"  # it changes what is there


def test_names_of_arms_may_look_like_numbers(study):
    made = study(f"{STUDY}\n  '0.1': {{like: sgd}}\n  '1e-3': {{like: '0.1', after: '0.1'}}\n")
    assert [cell.arm for cell in made.cells][-2:] == ["0.1", "1e-3"]


def test_how_far_a_run_is_takes_as_long_for_a_long_one(tmp_path):
    trial = plan.Trial(plan.Cell("task", "arm"), "", 0, tmp_path / "seed_0")
    assert execution.progress(trial) == "begins"
    trial.folder.mkdir()
    log = Log(trial.folder / "steps.csv", ["step", "loss"], 0)
    assert execution.progress(trial) == "begins"
    for step in range(1, 1001):
        log.add({"step": step, "loss": 2.5})
    log.close()
    assert execution.progress(trial) == "step 1,000, loss 2.5"
    with open(log.path, "r+") as file:
        file.readline()
        file.seek(file.tell())
        file.write("damaged")  # such rows are not looked at
        file.seek(0, 2)
        file.write("1001,2.")  # of a run that writes
    assert execution.progress(trial) == "step 1,000, loss 2.5"


@pytest.mark.slow
def test_runs_are_made_at_the_same_time_and_those_that_wait_come_later(study, processes):
    ran(study(), jobs=3)
    assert processes.at_once == 3
    at = [values["run.dir"].split("/")[3] for values in processes.made]
    assert at.index("after") > max(i for i, arm in enumerate(at[:4]) if arm == "sgd")
    assert len(at) == 3 + 1 + 4


@pytest.mark.slow
def test_what_is_there_is_not_made_again_and_what_failed_is(study, processes):
    processes.LOSSES = {"0.1": 1}
    outcomes, said, failures = ran(study())
    assert [failure.trial.name for failure in failures] == ["digits sgd 0.1 seed 5"]
    assert "digits sgd 0.1 seed 5: failed." in said
    assert outcomes["sgd"].value == ""  # not all of its values are tried
    assert outcomes["after"].metrics == {}
    count = len(processes.made)
    assert count == 3
    Path("runs/compared/digits/sgd/learning_rate=0.1/seed_5").rename("elsewhere")
    processes.LOSSES = {"0.1": 0.1}
    outcomes, _, failures = ran(study())
    assert failures == []
    assert outcomes["sgd"].value == "0.1"
    assert processes.made[count]["optimizer.learning_rate"] == "0.1"
    assert len(processes.made) == count + 1 + 1 + 4
    count = len(processes.made)
    ran(study())
    assert len(processes.made) == count


@pytest.mark.slow
@pytest.mark.parametrize("content", ["{", "[]", "\0"])
def test_a_run_whose_numbers_are_damaged_is_made_again(content, study, processes):
    ran(study())
    count = len(processes.made)
    folder = Path("runs/compared/digits/sgd/learning_rate=0.01/seed_5")
    (folder / "summary.json").write_text(content)
    _, _, failures = ran(study())
    assert failures == []
    assert [values["run.dir"] for values in processes.made[count:]] == [str(folder)]


@pytest.mark.slow
def test_runs_of_other_values_are_refused(study, processes):
    ran(study())
    changed = STUDY.replace("run.epochs: 3", "run.epochs: 2")
    with pytest.raises(ConfigError, match=r"seed_5 holds a run of another config: run\.epochs was"):
        ran(study(changed))
    Path("runs/compared/digits/sgd/learning_rate=0.01/seed_5.yaml").unlink()
    with pytest.raises(ConfigError, match=r"seed_5\.yaml is missing; remove the folder"):
        ran(study())


def test_a_metric_that_runs_do_not_have_is_named(study, processes):
    with pytest.raises(ConfigError, match="no number 'test_bits', but epochs, steps, test_loss"):
        ran(study(STUDY, "metric=test_bits"))
    with pytest.raises(ConfigError, match="no number 'tensorflow', but epochs, steps, test_loss"):
        ran(study(STUDY, "metric=tensorflow"))


ORDERS = f"""
tasks:
  digits: {{config: {ROOT}/configs/digits_adagrad.yaml, set: {{run.steps_per_execution: 4}}}}
set: {{optimizer.learning_rate: 0.1}}
arms:
  adam:
    set: {{optimizer: {{name: adam, learning_rate: 0.001}}}}
    sweep: {{optimizer.learning_rate: [0.0003, 0.003]}}
  base: {{set: {{optimizer.learning_rate: 0.5}}}}
  mid: {{like: base, set: {{optimizer: {{name: lion, learning_rate: 0.02}}}}}}
  last: {{like: mid, set: {{optimizer.learning_rate: 0.03}}}}
"""


def configs_of(made):
    """The configs of a study's runs, by their arms and values."""
    trials = [trial for cell in made.cells for trial in made.searches(cell)]
    return {(trial.cell.arm, trial.value): made.config(trial) for trial in trials}


def test_what_is_said_closest_to_a_run_wins(study):
    made = configs_of(study(ORDERS))
    rates = {run: config.optimizer.model_dump()["learning_rate"] for run, config in made.items()}
    assert rates == {
        ("adam", "0.0003"): 0.0003,
        ("adam", "0.003"): 0.003,
        ("base", ""): 0.5,
        ("mid", ""): 0.02,
        ("last", ""): 0.03,
    }


def test_an_override_changes_one_key_of_the_configs(study):
    changes = ["tasks.digits.set.run.epochs=1", "set.data.batch_size=8"]
    made = study(ORDERS, *changes, "arms.mid.set.optimizer.beta_1=0.8", "arms.adam.sweep={}")
    for config in configs_of(made).values():
        assert (config.run.epochs, config.run.steps_per_execution) == (1, 4)
        assert (config.data.name, config.data.batch_size) == ("digits", 8)
    mid = configs_of(made)["mid", ""].optimizer.model_dump()
    assert mid == {"name": "lion", "learning_rate": 0.02, "beta_1": 0.8}
    made = study(ORDERS, "arms.adam.sweep.optimizer.learning_rate=[0.7, 0.8]")
    assert [value for arm, value in configs_of(made) if arm == "adam"] == ["0.7", "0.8"]


@pytest.mark.slow
def test_a_run_after_another_one_is_refused_once_that_was_made_anew(study, processes):
    ran(study())
    first = Path("runs/compared/digits/sgd/learning_rate=0.01/seed_5")
    sums = Path("runs/compared/digits/after/seed_7.sha256").read_text()
    assert sums.split()[1] == "runs/compared/digits/sgd/learning_rate=0.01/seed_7/steps.csv"
    assert not first.with_suffix(".sha256").exists()
    first.rename("elsewhere")
    ran(study())  # the same numbers
    (first / "steps.csv").write_text("step,epoch,loss,learning_rate\n1,0,3.0,0.1\n")
    with pytest.raises(
        ConfigError, match=r"after/seed_5 holds a run that used another runs/.*/sgd"
    ):
        ran(study())
    for folder in Path("runs/compared/digits").glob("*/seed_5"):
        folder.rename(f"{folder.parent.name}_elsewhere")
    with pytest.raises(ConfigError, match="first/seed_7 holds a run that used another"):
        ran(study())
    Path("runs/compared/digits/first/seed_7").rename("first_7_elsewhere")
    assert ran(study())[2] == []
    for seed in (5, 7):
        Path(f"runs/compared/digits/first/seed_{seed}").rename(f"elsewhere_{seed}")
    alone = STUDY.replace('"{first_run}/model.keras"', "null")
    assert ran(study(alone))[2] == []
    assert ran(study(alone))[2] == []


@pytest.mark.slow
def test_a_run_that_could_not_begin_may_be_asked_for_again_with_other_values(study, processes):
    processes.LOSSES = {"0.1": 1}
    ran(study())
    folder = Path("runs/compared/digits/sgd/learning_rate=0.1/seed_5")
    folder.rename("elsewhere")  # as if it had failed before it wrote anything
    assert folder.with_suffix(".yaml").exists()
    processes.LOSSES = {}
    for path in Path("runs/compared/digits/sgd").glob("*/seed_5"):
        path.rename(f"elsewhere_{path.parent.name}")
    assert ran(study(STUDY.replace("run.epochs: 3", "run.epochs: 2")))[2] == []


@pytest.mark.slow
def test_runs_that_diverged_have_a_row_without_a_mean(study, processes):
    processes.LOSSES = {"0.01": math.nan, "0.1": math.inf, "1.0": -math.inf}
    study()
    done = CliRunner().invoke(cli.app, ["study", "compared.yaml"])
    assert done.exit_code == 0, done.output
    rows = Path("runs/compared/table.md").read_text().splitlines()
    assert rows[2] == "| digits | sgd | 0.01 | 2 | diverged |  |  |  |"
    assert rows[3].startswith("| digits | after |  | 2 | 1 | 0 |")
    assert Path("runs/compared/study.png").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("  sgd:\n", "  s/gd:\n"), "s/gd"),
        (("after: sgd", "after: later"), "'after' is after 'later', which is no earlier arm"),
        (("after: sgd", "like: after"), "'after' is like 'after', which is no earlier arm"),
        (("[0.01, 0.1, 1.0]", "[0.01]"), "the sweep of 'sgd' holds one value"),
        (("[0.01, 0.1, 1.0]", "[0.01, 0.01]"), "the sweep of 'sgd' holds 0.01 twice"),
        (("seeds: [5, 7]", "seeds: [5, 5]"), "seeds holds 5 twice"),
        (("seeds: [5, 7]", "seed: 5"), "unknown key 'seed'; did you mean 'seeds'"),
        (("optimizer.learning_rate:", "optimizer.learning rate:"), "learning rate"),
        (("{name: sgd}", "sgd"), "arm 'sgd'"),
        (("run.epochs: 3", "run.epoch: 3"), "unknown key 'epoch'"),
        (("run.epochs: 3", "run.seed: 3"), "its seeds are those of the study"),
        (("run.epochs: 3", "run.dir: there"), "its folder is the study's"),
        (("digits_adagrad.yaml", "digits_adagraf.yaml"), "digits_adagraf.yaml"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused_at_once(change, says, study):
    assert STUDY.count(change[0])
    with pytest.raises(ConfigError) as refused:
        study(STUDY.replace(*change, 1))
    assert says in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(ROOT.glob("studies/*.yaml")), ids=lambda path: path.stem)
def test_the_studies_of_this_repository_can_be_run(path):
    assert plan.load(path).cells


def test_values_are_parts_of_the_names_of_folders(study):
    made = study(STUDY.replace("[0.01, 0.1, 1.0]", "[0.01, {name: noam, d_model: 8}]"))
    folders = [trial.folder for trial in made.searches(made.cells[0])]
    assert all(len(folder.relative_to("runs").parts) == 5 for folder in folders)
    assert len(set(folders)) == 2


@pytest.mark.slow
def test_the_command_writes_a_table_numbers_and_a_picture(study, processes):
    processes.LOSSES = {"0.01": 0.5, "0.1": 0.25}
    study()
    done = CliRunner().invoke(cli.app, ["study", "compared.yaml", "--jobs", "2"])
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("The table and the picture are in runs/compared.\n")
    rows = Path("runs/compared/table.md").read_text().splitlines()
    assert rows[2] == "| digits | sgd | 0.1 | 2 | 0.25 | 0 | 0.25 | 0.25 |"
    numbers = json.loads(Path("runs/compared/outcomes.json").read_text())
    assert numbers[0] == {
        **{"task": "digits", "arm": "sgd", "value": "0.1", "metrics": {"5": 0.25, "7": 0.25}},
        "swept": {"0.01": 0.5, "0.1": 0.25, "1.0": 1.0},
    }
    assert Path("runs/compared/study.png").read_bytes().startswith(b"\x89PNG")
    processes.LOSSES = {"0.01": 3}
    done = CliRunner().invoke(cli.app, ["study", "compared.yaml", "seeds=[8]"])
    assert done.exit_code == 1
    assert "digits sgd 0.01 seed 8 failed:" in done.stdout


# `tf-graft` itself is a process that starts anew: when it is killed, nothing ends its runs for it.
FORKS_RUNS = "import sys; from tf_graft import cli; sys.executable = sys.argv.pop(1); cli.main()"
SHORTER = ["tasks.digits.set.run.epochs=1", "seeds=[0]", "--jobs", "2"]


@contextlib.contextmanager
def started(folder):
    """A study in a process, which is killed if it still runs at the end."""
    command = [sys.executable, "-c", FORKS_RUNS, forked.python(), "study", str(SHORT), *SHORTER]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def at_work(folder):
    """Returns the processes whose working directory is a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += [process.name] if os.readlink(process / "cwd") == str(folder) else []
    return found


def until(holds, seconds=120):
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() < begun + seconds
        time.sleep(0.2)


@pytest.mark.slow
def test_a_study_that_is_killed_and_stopped_goes_on(prepared_data, tmp_path):
    def ended():
        # `Path.glob` fails if a file goes while it looks
        found = glob.glob("runs/**/summary.json", root_dir=tmp_path, recursive=True)
        return {path: (tmp_path / path).stat().st_mtime for path in found}

    for sign, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 143), (None, 0)):
        before = ended()
        with started(tmp_path) as running:
            if sign:
                until(lambda: len(ended()) > len(before))  # noqa: B023  (called at once)
                running.send_signal(sign)
            said, _ = running.communicate(timeout=300)
        assert running.returncode == code, said
        assert ("Stopped: the same command continues." in said) == (sign == signal.SIGTERM)
        until(lambda: not at_work(tmp_path), 30)
        assert before.items() <= ended().items()  # no run is made twice
    numbers = json.loads((tmp_path / "runs" / "pays_short" / "outcomes.json").read_text())
    arms = {each["arm"]: each["metrics"] for each in numbers}
    assert arms.keys() == {"adam", "sgd", "graft", "exported"}
    assert all(0 < loss < 2.3 for metrics in arms.values() for loss in metrics.values())
