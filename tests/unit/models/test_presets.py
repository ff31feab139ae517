"""Presets: what is kept of them, what is refused, and what a Modelfile makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.errors import InvalidInput
from stoker.models.aliases import add_alias
from stoker.models.modelfile import modelfile_of, read_modelfile
from stoker.models.presets import Preset, read_presets, remove_preset, write_preset
from stoker.models.removal import remove_model

PIRATE = Preset(model="smollm2", system="Say arr.", sampling={"temperature": 0.0})


@pytest.mark.usefixtures("cache")
def test_a_preset_is_kept_replaced_and_removed() -> None:
    write_preset("pirate", PIRATE)
    assert read_presets() == {"pirate": PIRATE}
    write_preset("pirate", Preset(model="gemma3"))
    assert read_presets()["pirate"].model == "gemma3"
    assert remove_preset("pirate")
    assert not remove_preset("pirate")
    assert read_presets() == {}


@pytest.mark.usefixtures("cache")
def test_removing_a_preset_leaves_its_model() -> None:
    write_preset("pirate", PIRATE)
    remove_model("pirate")
    assert read_presets() == {}


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("name", "preset", "complaint"),
    [
        ("a b", PIRATE, "cannot be the name of a model"),
        ("smollm2", Preset(model="gemma3"), "is a model of the catalog"),
        ("mine", PIRATE, "is another name of a model"),
        ("second", Preset(model="pirate"), "'pirate' is a preset; name its base model, 'smollm2'"),
        ("own", Preset(model="own"), "'own' is a preset"),
    ],
)
def test_names_that_cannot_be(name: str, preset: Preset, complaint: str) -> None:
    add_alias("mine", "smollm2")
    write_preset("pirate", PIRATE)
    with pytest.raises(InvalidInput, match=complaint):
        write_preset(name, preset)


def test_a_file_without_sense_holds_no_presets(cache: Path) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models" / "presets.json").write_text("[1]")
    assert read_presets() == {}


def test_a_modelfile() -> None:
    text = '''# a comment
FROM llama3.2
PARAMETER temperature 0.5
PARAMETER num_ctx 4096
PARAMETER num_predict 20
PARAMETER stop "<end>"
parameter stop Human:
SYSTEM """You are Mario.
Answer as Mario."""
ADAPTER ./mario.gguf
LICENSE MIT
'''
    assert read_modelfile(text) == Preset(
        model="llama3.2",
        system="You are Mario.\nAnswer as Mario.",
        sampling={"temperature": 0.5, "max_tokens": 20, "stop": ["<end>", "Human:"]},
        lora=["./mario.gguf"],
        ctx_size=4096,
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("SYSTEM Hi", "no line FROM"),
        (
            "FROM a\nTEMPLATE {{ .Prompt }}",
            "line 2 of the Modelfile, TEMPLATE: Ollama's templates are in Go's language",
        ),
        ("FROM a\nPARAMETER tfs_z 1", "PARAMETER tfs_z: only num_ctx, stop, temperature"),
        ("FROM a\nPARAMETER top_k many", "PARAMETER top_k: 'many' is not a number"),
        ("FROM a\nMESSAGE user Hi", "example messages are not supported"),
        ("FROM a\nWHATEVER b", "WHATEVER: it is not supported"),
        ("FROM a\n???", "line 2 of the Modelfile is not an instruction"),
    ],
)
def test_what_has_no_meaning_in_a_modelfile_is_named(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        read_modelfile(text)


def test_a_block_that_is_never_closed_ends_with_the_file() -> None:
    assert read_modelfile('FROM a\nSYSTEM """one\ntwo').system == "one\ntwo"


def test_the_modelfile_of_a_preset_describes_it() -> None:
    preset = Preset(
        model="smollm2",
        system="You are a pirate.\nBe brief.",
        sampling={"stop": ["a b", "c"], "temperature": 0.5, "max_tokens": 3},
        lora=["/a.gguf"],
        ctx_size=64,
    )
    assert read_modelfile(modelfile_of(preset)) == preset
    assert modelfile_of(Preset(model="smollm2")) == "FROM smollm2\n"
