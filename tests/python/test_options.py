"""Options are the same in C++, in configurations, in the program, in signatures and in docstrings."""

import inspect
import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

import ovq
from common import make_inputs

NAME, TEXT = "normalize", "rescale the key centroids to unit norm after each write"
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(ovq.__file__).parents[2] / "ovq"  # beside the package in a build tree


def run_program(*arguments):
    if not PROGRAM.is_file():
        pytest.skip("there is no program beside this package")
    return subprocess.run([PROGRAM, *arguments], check=True, capture_output=True, text=True).stdout


def fields_of(description):
    return {field["name"]: field for field in json.loads(description)}


def default_of(field):
    """As Python has it: None where a zero stands for something else."""
    return None if "zero" in field or field["type"] == "optional number" else field["default"]


@pytest.mark.parametrize("kind", ovq.layers.MIXERS)
def test_signatures_and_docstrings_of_layers(kind):
    fields, layer = fields_of(torch.ops.ovq.mixer_options(kind)), ovq.layers.MIXERS[kind]
    own = inspect.signature(layer).parameters
    assert list(own)[0] == "dim" and set(own) - {"dim", "device", "dtype"} == set(fields)
    for name, field in fields.items():
        default = own[name].default
        if default is inspect.Parameter.empty:
            assert name == "heads"
        else:
            assert default == default_of(field) and type(default) is type(default_of(field)), name
        shown = "" if default in (None, inspect.Parameter.empty) else rf" \({re.escape(repr(default))}\)"
        assert re.search(rf"^ +{name}{shown}: ", layer.__doc__, re.M), name
        for value in field.get("values", ()):
            assert f'"{value}"' in layer.__doc__, (name, value)


def test_signatures_and_docstrings_of_functions():
    fields = fields_of(torch.ops.ovq.ovq_options())
    assert {name: default_of(field) for name, field in fields.items()} == ovq.state.OPTIONS
    assert list(fields) == list(ovq.state.OPTIONS)
    own = inspect.signature(ovq.ovq_attention).parameters
    assert [name for name in own if name in fields] == list(fields)
    for name, field in fields.items():
        shown = "" if default_of(field) is None else rf" \({re.escape(repr(default_of(field)))}\)"
        assert re.search(rf"^ +{name}{shown}: ", ovq.ovq_attention.__doc__, re.M), name
    generate = inspect.signature(ovq.LanguageModel.generate).parameters
    for name, field in fields_of(torch.ops.ovq.generate_options()).items():
        assert generate[name].default == default_of(field), name


def test_config_json(tmp_path):
    options = {"mixers": {"ovq": {NAME: True}}}
    assert ovq.make_mixer("ovq", 8, heads=1, **options["mixers"]["ovq"]).config[NAME] is True
    assert ovq.make_mixer("ovq", 8, heads=1).config[NAME] is False
    with pytest.raises(ValueError, match=f"{NAME} is 3; must be true or false"):
        ovq.make_mixer("ovq", 8, heads=1, **{NAME: 3})
    model = ovq.LanguageModel.preset("tiny/sw-ovq")
    config = model.config
    config["mixers"]["ovq"][NAME] = True
    ovq.LanguageModel(config).save(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["mixers"]["ovq"][NAME] is True
    assert f", {NAME}" in run_program("inspect", str(tmp_path / "model"))


def test_help_of_the_program():
    line = next(line for line in run_program("inspect", "--options", "ovq").splitlines() if line.startswith(NAME))
    assert re.fullmatch(rf"{NAME} +false +true, false +{TEXT}", line.rstrip())
    fields = json.loads(run_program("inspect", "--options", "ovq", "--json"))
    assert {"name": NAME, "type": "bool", "default": False, "text": TEXT} in fields


@pytest.mark.parametrize("what", [ovq.ovq_attention, ovq.OVQAttention])
def test_keyword_and_docstring(what):
    parameter = inspect.signature(what).parameters[NAME]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert f"    {NAME} (False): {TEXT}." in what.__doc__


def test_schema():
    arguments = {a.name: a for a in torch.ops.ovq.ovq_attention.default._schema.arguments}
    assert arguments[NAME].default_value is False


def test_state_file(tmp_path):
    for value in (True, False):
        _, state = ovq.ovq_attention(*make_inputs(time=20), chunk=8, return_state=True, **{NAME: value})
        state.save(tmp_path / "state.ovq")
        assert ovq.State.load(tmp_path / "state.ovq").options[NAME] is value


def test_unknown_ones_are_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'normalise'"):
        ovq.ovq_attention(*make_inputs(time=4), normalise=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'normalise'"):
        ovq.OVQAttention(8, 1, normalise=True)
