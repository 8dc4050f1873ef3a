"""Names that are misspelt in a config: known without TensorFlow, and refused with a suggestion."""

import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from tf_graft.core.arguments.registry import KERAS, OURS
from tf_graft.training import class_names as names
from tf_graft.training.config import ConfigError, load

CONFIGS = Path(__file__).parents[1] / "configs"
# Shown in guides instead.
WITHOUT = {
    *("adadelta", "lamb", "momentum", "novograd", "rmsprop"),
    *("adaptivegradientclipping", "gradientcentralization", "larc", "multioptimizer", "wrapped"),
}


def test_the_optimizers_found_in_the_sources_are_those_that_are_registered():
    ours = {cls.__name__ for cls in OURS.classes() if cls.__module__.startswith("tf_graft.")}
    assert names.of_package() == ours
    assert {cls.__name__ for cls in KERAS.classes()} <= names.of_keras("optimizers")


def test_the_models_found_in_the_sources_are_those_of_keras():
    models = {k for k, x in vars(keras.applications).items() if k[0].isupper() and callable(x)}
    assert names.of_keras("applications") == models


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        ("digits_adagrad", "model.name=mpl", "no model 'mpl'; did you mean 'mlp'?"),
        ("digits_adagrad", "model.name=ResNet51", "no model 'ResNet51'; did you mean 'resnet50'?"),
        (
            "digits_adagrad",
            "optimizer.name=adagrd",
            "no optimizer 'adagrd'; did you mean 'adagrad'",
        ),
        (
            "digits_adagraft",
            "optimizer.direction_optimizer.name=momentun",
            "no optimizer 'momentun'; did you mean 'momentum'?",
        ),
    ],
)
def test_a_misspelt_name(config, change, message):
    with pytest.raises(ConfigError) as error:
        names.check_optimizers(*load(CONFIGS / f"{config}.yaml", [change]))
    assert f"override '{change}': {message}" in str(error.value)


def test_every_config_has_names_that_exist():
    for path in CONFIGS.glob("*.yaml"):
        names.check_optimizers(*load(path))


def test_a_config_of_another_path_is_suggested(monkeypatch):
    monkeypatch.chdir(CONFIGS.parent)
    with pytest.raises(ConfigError, match=r"did you mean configs.digits_adagrad.yaml\?"):
        load("digits_adagrad")


@pytest.mark.slow
def test_a_misspelt_name_ends_before_tensorflow_is_imported():
    code = (
        "import sys; sys.argv[0] = 'tf-graft'\n"
        "from tf_graft.cli import app\n"
        "try:\n    app()\nfinally:\n    assert 'tensorflow' not in sys.modules\n"
    )
    words = [sys.executable, "-c", code, "train", str(CONFIGS / "digits_adagrad.yaml")]
    done = subprocess.run([*words, "optimizer.name=adagrd"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean 'adagrad'?" in done.stderr


def test_every_optimizer_is_in_a_config():
    configs = {path: path.read_text() for path in CONFIGS.rglob("*.yaml")}
    named = re.findall(r"name: (\w+)", "".join(configs.values()))
    known = {cls.lower() for cls in names.of_package()}
    assert known - {name.replace("_", "") for name in named} == WITHOUT
    for path in CONFIGS.glob("rules/*.yaml"):
        config, _ = load(path)
        assert config.optimizer.name == path.stem
        assert f"tf-graft train configs/rules/{path.name}" in configs[path]
