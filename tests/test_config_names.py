"""Names in a config that stand for nothing are refused, with a suggestion."""

import re
from pathlib import Path

import pytest

from tf_graft.core.arguments.registry import OURS
from tf_graft.training import configured_optimizer as optimizer
from tf_graft.training.config import ConfigError, load

CONFIGS = Path(__file__).parents[1] / "configs"
# Shown in guides instead.
WITHOUT = {
    *("adadelta", "lamb", "momentum", "novograd", "rmsprop"),
    *("adaptivegradientclipping", "gradientcentralization", "larc", "wrapped"),
}


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        ("digits_adagrad", "model.name=mpl", "no model 'mpl'; did you mean 'mlp'?"),
        ("digits_adagrad", "model.name=MLP", "name is the text 'MLP'; it should be 'mlp'."),
        ("digits_adagrad", "model.name=ResNet51", "no model 'ResNet51'; did you mean 'resnet50'?"),
        (
            "digits_adagrad",
            "optimizer.name=adagrd",
            "get('adagrd'): there is no such optimizer; did you mean 'adagrad'?",
        ),
        (
            "digits_adagraft",
            "optimizer.direction_optimizer.name=momentun",
            "get('momentun'): there is no such optimizer; did you mean 'momentum'?",
        ),
    ],
)
def test_a_misspelt_name(config, change, message):
    with pytest.raises(ConfigError) as error:
        optimizer.build(load(CONFIGS / f"{config}.yaml", [change]), 40, None)
    assert str(error.value) == f"override '{change}': {message}"


def test_a_config_of_another_path_is_suggested(monkeypatch):
    monkeypatch.chdir(CONFIGS.parent)
    with pytest.raises(ConfigError, match=r"did you mean configs.digits_adagrad.yaml\?"):
        load("digits_adagrad")


def test_every_optimizer_is_in_a_config():
    configs = {path: path.read_text() for path in CONFIGS.rglob("*.yaml")}
    named = re.findall(r"name: (\w+)", "".join(configs.values()))
    known = {c.__name__.lower() for c in OURS.classes() if c.__module__.startswith("tf_graft.")}
    assert known - {name.replace("_", "") for name in named} == WITHOUT
    for path in CONFIGS.glob("rules/*.yaml"):
        assert load(path).optimizer.name == path.stem
        assert f"tf-graft train configs/rules/{path.name}" in configs[path]
