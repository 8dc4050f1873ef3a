"""`tf-graft launch`: real processes, of which none is left behind, whatever happens to them."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from support import column_runs, forked
from tf_graft.processes.cluster import LOST, Cluster, free_ports
from tf_graft.training import config as configs
from tf_graft.training import launch as launcher
from tf_graft.training import place
from tf_graft.training.config import ConfigError
from tf_graft.training.launch import LaunchError, launch

CONFIGS = Path(__file__).parents[1] / "configs"
TEXT = "model: {name: mlp}\noptimizer: {name: sgd}\nrun: {epochs: 1}\n"
SERVERS = {"worker": 2, "ps": 1}
WORKERS = {"worker": 2, "ps": 0}


@pytest.fixture
def tasks_do(tmp_path, monkeypatch):
    """Launches a cluster whose tasks run what is given by name, and notes every process."""
    monkeypatch.setattr(launcher, "GRACE", 3.0)
    monkeypatch.setattr(launcher, "LINGER", 3.0)
    script = """
        import json, os, signal, subprocess, sys, time
        config = json.loads(os.environ["TF_CONFIG"])
        name = "{type}_{index}".format(**config["task"])
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        with open(sys.argv[1] + "/pids", "a") as pids:
            pids.write(f"{os.getpid()}\\n{child.pid}\\n")
        runs = sys.argv[1] + "/" + name
        with open(runs, "a") as file:
            file.write("x")
        print(name, "says", len(config["cluster"]), flush=True)
        what = json.loads(sys.argv[2])
        exec(what.get(name, what.get(name.split("_")[0], what.get("others", ""))))
    """
    program = tmp_path / "task.py"
    program.write_text(textwrap.dedent(script))

    def run(name, tasks, say=print, overrides=(), restarts=3, **what):
        config = configs.parse(f"strategy: {{name: {name}}}\n{TEXT}", overrides=overrides)
        command = [sys.executable, str(program), str(tmp_path), json.dumps(what)]
        return launch(config, command, tasks, say, restarts)

    yield run
    pids = map(int, (tmp_path / "pids").read_text().split())
    assert not left_of(pids, 10.0), "processes are left behind"


def left_of(pids, seconds):
    """Those that still run after so many seconds: what was killed may take a moment to be gone."""
    until = time.monotonic() + seconds
    left = list(pids)
    while (left := list(filter(alive, left))) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def alive(pid):
    """Whether a process runs; what only its parent has not asked about is over."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_all_end_well(tasks_do, capfd):
    said = []
    assert tasks_do("multi_worker", WORKERS, said.append) == 0
    assert said == ["Started worker 0, worker 1 on this machine."]
    assert capfd.readouterr().out == "worker_0 says 1\n"  # the chief's alone


def test_servers_are_ended_with_the_chief(tasks_do, capfd):
    waiting = {"chief": "", "others": "time.sleep(60)"}
    assert tasks_do("parameter_server", SERVERS, [].append, **waiting) == 0
    assert capfd.readouterr().out == "chief_0 says 3\n"


@pytest.mark.parametrize(
    ("name", "tasks"), [("multi_worker", WORKERS), ("parameter_server", SERVERS)]
)
def test_the_chiefs_code_is_handed_on(name, tasks, tasks_do):
    first = "worker_0" if name == "multi_worker" else "chief"
    assert tasks_do(name, tasks, **{first: "sys.exit(7)", "others": "time.sleep(60)"}) == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "ending"),
    [
        ("print('no such file'); sys.exit(3)", "ended with code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
    ],
)
def test_a_worker_that_fails_ends_the_others_and_is_named(what, ending, tasks_do):
    with pytest.raises(LaunchError, match=f"the worker 1 {ending}; all others were ended") as error:
        tasks_do("multi_worker", WORKERS, worker_1=what, others="time.sleep(60)")
    assert ("no such file" in str(error.value)) == ("code" in ending)


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed(tasks_do):
    hang = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    with pytest.raises(LaunchError, match="the worker 1 did not end with the chief; it was killed"):
        tasks_do("multi_worker", WORKERS, worker_1=hang)


@pytest.mark.slow
def test_a_killed_worker_of_servers_is_started_again(tasks_do, tmp_path):
    """Whoever schedules a cluster does so; the steps it has not answered are taken again."""
    die = f"if len(open({str(tmp_path / 'worker_1')!r}).read()) < 3: os.kill(os.getpid(), 9)"
    wait = f"while len(open({str(tmp_path / 'worker_1')!r}).read()) < 3: time.sleep(0.02)"
    said = []
    code = tasks_do(
        "parameter_server",
        SERVERS,
        said.append,
        chief=f"time.sleep(0.5)\n{wait}",
        worker_1=f"{die}\ntime.sleep(60)",
        others="time.sleep(60)",
    )
    assert code == 0
    again = "The worker 1 was killed by SIGKILL; it is restarted, and the run continues."
    assert said[1:] == [again, again]


@pytest.mark.slow
def test_a_worker_that_is_killed_again_and_again_ends_the_run(tasks_do):
    with pytest.raises(LaunchError, match="the worker 1 was killed by SIGKILL"):
        tasks_do(
            "parameter_server",
            SERVERS,
            worker_1="os.kill(os.getpid(), 9)",
            others="time.sleep(60)",
        )


@pytest.mark.slow
def test_a_lost_server_ends_the_run(tasks_do):
    with pytest.raises(LaunchError, match="the ps 0 was killed by SIGKILL"):
        tasks_do("parameter_server", SERVERS, ps="os.kill(os.getpid(), 9)", others="time.sleep(60)")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tasks", "alone"),
    [
        ("multi_worker", WORKERS, "worker_0"),
        ("multi_worker", WORKERS, "worker_1"),
        ("parameter_server", SERVERS, "chief_0"),
        ("parameter_server", SERVERS, "worker_1"),
    ],
)
def test_all_are_started_again_when_one_has_lost_another(name, tasks, alone, tasks_do):
    """As when a process is stopped: it does not end, and who notices ends with that code."""
    first = "worker_0" if name == "multi_worker" else "chief_0"
    once = f"if open(runs).read() == 'x': sys.exit({LOST})"
    rest = "" if name == "multi_worker" else "time.sleep(60)"
    stays = f"if open(runs).read() == 'x': time.sleep(60)\n{rest}"
    said = []
    does = {"others": stays, first: stays.removesuffix(rest)} | {alone: f"{once}\n{rest}"}
    if alone == first:
        does[alone] = once
    assert tasks_do(name, tasks, said.append, **does) == 0
    who = alone.replace("_", " ")
    assert said[1:] == [
        f"The {who} has lost another process; all are restarted, from the last saved state.",
        said[0],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies", "ending"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        (f"sys.exit({LOST})", "has lost another process"),
    ],
)
def test_all_are_started_again_when_a_worker_dies_after_the_chief_has_ended(dies, ending, tasks_do):
    """The run is complete then, and ends at once when it is started again."""
    said = []
    dies_late = f"if open(runs).read() == 'x': time.sleep(1.0); {dies}"
    assert tasks_do("multi_worker", WORKERS, said.append, worker_1=dies_late) == 0
    assert said[1:] == [
        f"The worker 1 {ending}; all are restarted, from the last saved state.",
        said[0],
    ]


@pytest.mark.slow
def test_a_run_begins_anew_once(tasks_do, tmp_path):
    """Processes that start again continue it, unless they ended before it had begun."""
    config, told = tmp_path / "run" / "config.yaml", tmp_path / "told"
    config.parent.mkdir()
    config.write_text("the former run")
    begins = f"""
again = sys.argv[-1] == "run.fresh=false"
with open({str(told)!r}, "a") as file:
    file.write("again " if again else "anew ")
count = len(open({str(told)!r}).read().split())
if count == 2:
    os.replace({str(config)!r}, {str(config)!r} + ".emptying")
if count == 3:
    open({str(config)!r}, "w").write("the new run")
if count < 5:
    os.kill(os.getpid(), 9)
"""
    overrides = ["run.fresh=true", f"run.dir={config.parent}"]
    code = tasks_do(
        "multi_worker", {"worker": 1, "ps": 0}, overrides=overrides, restarts=5, worker_0=begins
    )
    assert code == 0
    assert told.read_text().split() == ["anew"] * 3 + ["again"] * 2


def test_a_task_that_fails_is_named_rather_than_one_that_has_lost_it(tasks_do, tmp_path):
    fails = f"open({str(tmp_path / 'failing')!r}, 'w').close(); sys.exit(3)"
    wait = f"while not os.path.exists({str(tmp_path / 'failing')!r}): time.sleep(0.02)"
    with pytest.raises(LaunchError, match="the worker 1 ended with code 3"):
        tasks_do("multi_worker", WORKERS, worker_1=fails, worker_0=f"{wait}\nsys.exit({LOST})")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_handed_on_and_the_chief_may_finish(signum, tasks_do, tmp_path):
    finish = (
        "def stop(*_): sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, stop); signal.signal(signal.SIGINT, stop)\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\ntime.sleep(60)"
    )
    threading.Thread(target=when_ready, args=(tmp_path / "ready", signum)).start()
    assert tasks_do("multi_worker", WORKERS, worker_0=finish, others="time.sleep(60)") == 9


@pytest.mark.slow
def test_a_chief_that_completes_the_run_after_a_signal_decides_the_code(tasks_do, tmp_path):
    """Its worker stops at the signal, with another code."""
    finish = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\ntime.sleep(60)"
    )
    threading.Thread(target=when_ready, args=(tmp_path / "ready", signal.SIGTERM)).start()
    assert tasks_do("multi_worker", WORKERS, worker_0=finish, others="time.sleep(60)") == 0


@pytest.mark.slow
def test_a_chief_that_does_not_heed_a_signal_is_killed(tasks_do, tmp_path):
    deaf = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\ntime.sleep(60)"
    )
    threading.Thread(target=when_ready, args=(tmp_path / "ready", signal.SIGTERM)).start()
    with pytest.raises(LaunchError, match="the worker 0 did not stop; it was killed"):
        tasks_do("multi_worker", WORKERS, worker_0=deaf, others="time.sleep(60)")


def when_ready(path, signum):
    until = time.monotonic() + 20
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(os.getpid(), signum)


@pytest.mark.slow
def test_tasks_end_when_the_launcher_is_killed(tmp_path):
    """What the tasks themselves do: they notice that their standard input has closed."""
    task = (
        "import os, time; from tf_graft.processes.cluster import end_with_launcher\n"
        f"end_with_launcher(); open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w')\n"
        "time.sleep(100)"
    )
    code = (
        "import sys, time; from tf_graft.processes.cluster import Cluster\n"
        f"with Cluster([sys.executable, '-c', {task!r}], {{'worker': 2}}): time.sleep(100)"
    )
    environment = os.environ | {"PYTHONPATH": str(column_runs.ROOT)}
    process = subprocess.Popen([forked.python(), "-c", code], env=environment)
    try:
        until = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        pids = [int(path.name) for path in tmp_path.iterdir()]
        assert len(pids) == 2
    finally:
        process.kill()
        process.wait()
    assert not left_of(pids, 20.0)


def test_a_cluster_that_cannot_be_started_leaves_nothing():
    with pytest.raises(FileNotFoundError), Cluster(["/no/such/program"], {"worker": 2}):
        pass


def test_ports_are_distinct():
    assert len(set(free_ports(20))) == 20


@pytest.mark.parametrize(
    ("strategy", "tasks", "message"),
    [
        ("", WORKERS, "this config runs in one process, with tf-graft train"),
        ("strategy: {name: mirrored}", WORKERS, ":1: this config runs in one process"),
        ("strategy: {name: parameter_server}", WORKERS, "needs servers: --ps 1"),
        ("strategy: {name: multi_worker}", SERVERS, "--ps is for the strategy parameter_server"),
    ],
)
def test_what_does_not_go_together_is_refused(strategy, tasks, message):
    config = configs.parse(f"{strategy}\n{TEXT}")
    with pytest.raises(ConfigError, match=message):
        launch(config, ["false"], tasks)


def of_worker(number, cluster):
    return {"cluster": cluster, "task": {"type": "worker", "index": number}}


@pytest.mark.parametrize(
    ("sections", "overrides", "task", "message"),
    [
        (
            "strategy: {name: mirrored}\nmesh: {batch: 2}",
            [],
            None,
            ":2: mesh: a run has a strategy or a mesh, not both.",
        ),
        (
            "strategy: {name: mirrored, devices: 3}",
            [],
            None,
            "batch_size=32 cannot be divided evenly over 3 devices.",
        ),
        (
            "strategy: {name: parameter_server}",
            ["run.steps_per_execution=2"],
            None,
            "a worker takes one step at a time; leave it at 1.",
        ),
        ("mesh: {batch: 3}", [], None, "evenly over 3 devices of the mesh's 'batch'."),
        ("mesh: {batch: 2}", ["run.jit_compile=true"], None, "a mesh has its own compiler"),
        ("strategy: {name: multi_worker}", [], None, ":1: TF_CONFIG .* tf-graft launch"),
        ("strategy: {name: parameter_server}", [], None, "tf-graft launch --workers 2 --ps 1"),
        ("strategy: {name: multi_worker}", [], "{", "TF_CONFIG in the environment is not JSON"),
        (
            "strategy: {name: multi_worker}",
            [],
            '{"task": {}, "cluster": {}}',
            "must say which task",
        ),
        *(
            ("strategy: {name: multi_worker}", [], json.dumps(of_worker(number, cluster)), message)
            for number, cluster, message in (
                (0, {"worker": []}, "must list addresses such as 'host:2222' as the 'worker'"),
                (0, {"worker": [5]}, "must list addresses"),
                (0, {"worker": "a:1"}, "must list addresses"),
                (0, {"worker": ["a"]}, "must list addresses"),
                (7, {"worker": ["a:1"]}, "is worker 7, and its cluster has 1 of that kind"),
                (-1, {"worker": ["a:1"]}, "is worker -1, and"),
                (0, {"ps": ["a:1"]}, "is worker 0, and its cluster has 0 of that kind"),
                (0, {"worker": ["a:1", "a:1"]}, "gives a:1 to two tasks"),
                (0, ["a:1"], "is not JSON of 'cluster'"),
                ("x", {"worker": ["a:1"]}, "is not JSON of 'cluster'"),
            )
        ),
        (
            "strategy: {name: parameter_server}",
            [],
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
            "the cluster in TF_CONFIG needs 'worker' and 'ps' tasks.",
        ),
    ],
)
def test_places_that_are_refused(sections, overrides, task, message, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if task is not None:
        monkeypatch.setenv("TF_CONFIG", task)
    config = configs.parse(f"{sections}\n{TEXT}", overrides=overrides)
    with pytest.raises(ConfigError, match=message):
        place.enter(config)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("strategy: {name: mirrord}", "mirrord.*mirrored"),
        ("strategy: {name: mirrored, shards: 2}", "unknown key 'shards'"),
        ("mesh: {rows: 2}", "unknown key 'rows' in 'mesh'"),
        ("mesh: {layouts: {kernel: [rows]}}", "'rows'"),
        ("mesh: {batch: 0}", "batch is 0; it should be greater than or equal to 1."),
    ],
)
def test_sections_that_are_refused(section, message):
    with pytest.raises(ConfigError, match=message):
        configs.parse(f"{section}\n{TEXT}")


# The real thing.


def tf_graft(*arguments, folder, timeout=250, **more):
    """Runs the command line; returns its code and what it said."""
    environment = os.environ | {"PYTHONPATH": str(column_runs.ROOT)}
    process = subprocess.Popen(
        [forked.python(), "-m", "tf_graft", *map(str, arguments)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **more,
    )
    try:
        said, _ = process.communicate(timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return process.returncode, said


SHORT = ("run.epochs=2", "run.tensorboard=false", "run.progress=line")


@pytest.mark.rare
def test_workers_and_replicas_learn_what_one_device_learns(tmp_path):
    config = CONFIGS / "digits_multi_worker.yaml"
    one, replicas = tmp_path / "one.yaml", tmp_path / "replicas.yaml"
    one.write_text(config.read_text().replace("strategy:\n  name: multi_worker\n", ""))
    replicas.write_text(
        config.read_text().replace("name: multi_worker", "name: mirrored\n  devices: 2")
    )
    several = "run.steps_per_execution=11"
    for name, *command in (
        ("workers", "launch", config, several),
        ("replicas", "train", replicas, several),
        ("one", "train", one),
    ):
        last = ("run.epochs=1", f"run.dir={name}")
        code, said = tf_graft(*command, *SHORT, *last, folder=tmp_path)
        assert code == 0, said
    for name, log in itertools.product(("workers", "replicas"), ("steps.csv", "metrics.csv")):
        column_runs.assert_logs_agree(tmp_path / name / log, tmp_path / "one" / log)


@pytest.mark.rare
def test_parameter_servers_learn(tmp_path):
    config = CONFIGS / "digits_parameter_server.yaml"
    code, said = tf_graft("launch", "--ps", 2, config, *SHORT, "run.dir=a", folder=tmp_path)
    assert code == 0, said
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["steps"] == 88
    assert summary["test_accuracy"] > 0.6
    code, said = tf_graft(
        "launch", "--ps", 2, config, *SHORT, "run.dir=a", "run.epochs=3", folder=tmp_path
    )
    assert code == 0, said
    assert "Resuming a after step 88 of 132." in said
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["steps"] == 132
