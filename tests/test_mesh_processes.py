"""Which processes a mesh spans, as the environment says."""

import json
import os

import pytest

from tf_graft.core.places import mesh_processes

TWO = ["a:1", "b:2"]


@pytest.fixture
def says(monkeypatch):
    """Sets the environment, which is restored with what was found."""
    for name in (mesh_processes.JOBS, mesh_processes.NUMBER, mesh_processes.COUNT, "TF_CONFIG"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def set_all(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value if isinstance(value, str) else json.dumps(value))

    return set_all


def found():
    return (
        mesh_processes.find(),
        os.environ.get(mesh_processes.JOBS),
        os.environ.get(mesh_processes.NUMBER),
    )


def of(cluster, kind="worker", index=0):
    return {"cluster": cluster, "task": {"type": kind, "index": index}}


def test_nothing_said_is_one_process(says):
    assert found() == (1, None, None)


def test_dtensor_jobs_come_before_tf_config(says):
    says(DTENSOR_JOBS="x:1,y:2,z:3", DTENSOR_CLIENT_ID="2", TF_CONFIG=of({"worker": TWO}))
    assert found() == (3, "x:1,y:2,z:3", "2")
    assert os.environ[mesh_processes.COUNT] == "3"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (of({"worker": TWO}, index=1), (2, "a:1,b:2", "1")),
        (of({"chief": ["c:0"], "worker": TWO}, "chief"), (3, "c:0,a:1,b:2", "0")),
        (of({"chief": ["c:0"], "worker": TWO}, index=1), (3, "c:0,a:1,b:2", "2")),
        (of({"worker": TWO[:1]}), (1, None, None)),
        ({}, (1, None, None)),
    ],
)
def test_workers_of_tf_config(config, expected, says):
    says(TF_CONFIG=config)
    assert found() == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"DTENSOR_JOBS": "a:1,b:2"}, "names 2 processes, and DTENSOR_CLIENT_ID must say"),
        ({"TF_CONFIG": "{"}, "is not JSON of 'cluster' and 'task'"),
        ({"TF_CONFIG": [1]}, "is not JSON of 'cluster' and 'task'"),
        ({"TF_CONFIG": of({"worker": TWO}, index=2)}, "is worker 2, and its cluster has 2"),
        ({"TF_CONFIG": of({"worker": TWO}, "ps")}, "this process is ps 0, .* has 0 of"),
        ({"TF_CONFIG": of({"worker": TWO, "ps": ["z:3"]}, "ps")}, "ps 0; a mesh is made by"),
        ({"TF_CONFIG": of({"worker": [5, 6]})}, "addresses such as 'host:2222' as the 'worker'"),
        ({"TF_CONFIG": of({"worker": TWO}, index=-1)}, "this process is worker -1"),
    ],
)
def test_what_does_not_say_which_process_this_is_is_refused(variables, message, says):
    says(**variables)
    with pytest.raises(ValueError, match=message):
        mesh_processes.find()
