"""What the help says, where it has that from, and what options of other programs are answered with."""

from __future__ import annotations

import re
from typing import get_args, get_type_hints

import msgspec
import pytest

from stoker.cli.command import EXAMPLES, SYNONYMS, UNNEEDED, meanings
from stoker.cli.commands import COMMANDS
from stoker.cli.options import ENGINE, MODELS, SAMPLING, SECURITY, SERVER
from stoker.config import setting_keys
from stoker.engine.config import EngineConfig
from stoker.llm.inputs import EngineOptions
from tests.unit.cli.conftest import Stoker

SETTINGS = {**ENGINE, **SAMPLING, **SERVER, **MODELS, **SECURITY}
SECTIONS = ("engine", "sampling", "server", "replicas", "runtime", "registry")
ANOTHER_FORM = {"lora", "draft_model"}
"""What `LLM` takes in a form of its own."""


def test_the_meaning_of_a_setting_stands_with_the_setting_alone() -> None:
    stated_again = [key for key, hint in SETTINGS.items() if get_args(hint)[1].help is not None]
    assert stated_again == []
    assert {key for key in SETTINGS if len(meanings()[key]) < 15} == set()


def test_no_two_options_mean_the_same() -> None:
    texts = [meanings()[key] for key in SETTINGS]
    assert len(set(texts)) == len(texts)


def test_every_option_is_a_setting() -> None:
    assert set(SETTINGS) <= {key for section in SECTIONS for key in setting_keys(section)}


def test_keywords_of_a_model_are_settings_of_the_same_type() -> None:
    types = {field.name: field.type for field in msgspec.structs.fields(EngineConfig)}
    given = {name: kind for name, kind in get_type_hints(EngineOptions).items() if name not in ANOTHER_FORM}
    assert given == {name: types[name] for name in given}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("threads", "[default: one per physical core that this process may use]"),
        ("control_vector_layers", "[default: all but the first]"),
        ("max_queue", "[default: 256]"),
        ("autoload", "[default: yes]"),
        ("swap_after_s", "[default: 5]"),
        ("cache_type_k", "[default: --kv-type]"),
    ],
)
def test_defaults_are_those_of_the_settings(key: str, said: str) -> None:
    assert meanings()[key].endswith(said)


def test_the_list_of_commands_fits_a_screen(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = stoker("--help").out.splitlines()
    assert len(shown) < 24
    assert max(map(len, shown)) <= 80
    assert [name for name in COMMANDS if name not in ("version", "help") and name not in "\n".join(shown)] == []


def test_options_are_grouped_and_rare_ones_come_last(stoker: Stoker) -> None:
    shown = stoker("serve", "--help-all").out
    panels = ["Model", "Server", "Security", "Sampling", "Cache", "General", "GPU and ONNX", "Advanced"]
    places = [shown.index(f"\n{panel}:\n") for panel in panels]
    assert places == sorted(places)
    assert stoker("serve", "-h").out == stoker("serve", "--help").out


def test_the_short_help_has_what_most_need_and_says_where_the_rest_is(stoker: Stoker) -> None:
    short, long = stoker("serve", "-h").out, stoker("serve", "--help-all").out
    assert "--port" in short
    assert "--tensor-split" not in short
    assert "--tensor-split" in long
    assert re.search(r"\d+ more options: stoker serve --help-all", short)
    assert "more options" not in long
    assert short.count("\n") < long.count("\n") / 2


def test_help_ends_with_lines_that_can_be_pasted(stoker: Stoker) -> None:
    assert "\n  stoker serve smollm2 --port 8000\n" in stoker("serve", "-h").out


def test_help_after_the_end_of_options_is_text(stoker: Stoker) -> None:
    assert stoker("run", "fine", "--", "--help-all").out == "fine\n"


@pytest.mark.parametrize("command", [name for name in EXAMPLES if " " not in name])
def test_examples_use_options_that_there_are(stoker: Stoker, command: str) -> None:
    shown = stoker(command, "--help-all").out + stoker(command, "--help").out
    used = {option for line in EXAMPLES[command] for option in re.findall(r"(?<= )--?[a-z-]+", line)}
    assert [option for option in used if option not in shown] == []


def test_short_options_stand_for_the_long_ones(stoker: Stoker) -> None:
    shown = stoker("chat", "-h").out
    for pair in ("-n, --max-tokens", "-t, --threads", "-c, --ctx-size", "-s, --system"):
        assert pair in shown
    assert stoker("run", "fine", "Hi", "-n", "3", "-t", "1", "-c", "64", "-s", "Be brief").out == "fin\n"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--temp", "0"], "--temperature"),
        (["--temp=0"], "--temperature"),
        (["-ngl", "10"], "--gpu-layers"),
        (["--max-model-len", "64"], "--ctx-size"),
    ],
)
def test_an_option_of_another_program_is_translated(stoker: Stoker, given: list[str], meant: str) -> None:
    done = stoker("run", "fine", "Hi", *given)
    assert done.code == 2
    assert f"no such option: {given[0].partition('=')[0]}. Did you mean {meant}?" in done.err


@pytest.mark.parametrize(
    ("command", "given", "said"),
    [
        ("serve", "--jinja", "It is not needed: chat templates are always used"),
        ("serve", "--enable-prefix-caching", "It is not needed: the prefix cache is always on"),
        ("run", "-cnv", "It is not needed: without PROMPT, a terminal gets a conversation"),
        ("chat", "--nowordwrap", "Did you mean --plain?"),
        ("run", "--hidethinking", "Did you mean --no-think?"),
    ],
)
def test_an_option_that_is_not_needed_here_is_explained(stoker: Stoker, command: str, given: str, said: str) -> None:
    done = stoker(command, "fine", given)
    assert done.code == 2
    assert f"no such option: {given}. {said}" in done.err


def test_no_option_that_there_is_is_called_unneeded(stoker: Stoker) -> None:
    shown = " ".join(stoker(name, "--help-all").out for name in ("serve", "run", "chat", "batch"))
    words = set(shown.replace(",", " ").split())
    assert words & set(UNNEEDED) == set()


def test_ranges_are_told_in_words(stoker: Stoker) -> None:
    assert "Number of lines to show. [default: 50; 1 to 1000000]" in " ".join(stoker("logs", "-h").out.split())
    assert "<int range>" not in "".join(stoker(name, "-h").out for name in ("logs", "search", "export", "top"))


def test_an_option_without_its_value_refers_to_the_help_of_its_command(stoker: Stoker) -> None:
    said = "error: option '--stop' requires an argument (see `stoker run -h`)\n"
    assert stoker("run", "fine", "Hi", "--stop").err == said
    assert "(see `stoker cache list -h`)" in stoker("cache", "list", "--cache-dir").err


def test_an_option_that_is_an_argument_here_is_explained(stoker: Stoker) -> None:
    assert "Give it as the argument MODEL" in stoker("run", "-m", "fine").err


def test_a_value_that_looks_like_another_programs_option_is_a_value(stoker: Stoker) -> None:
    assert stoker("run", "fine", "Hi", "--stop", "--temp").out == "fine\n"


def test_every_translation_is_into_an_option_that_there_is(stoker: Stoker) -> None:
    shown = "".join(stoker(name, "--help-all").out for name in ("serve", "run", "chat"))
    assert [ours for ours in SYNONYMS.values() if ours not in shown] == []
