"""Models on this disk: list, show, cp, rm and create; version and help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker import __version__
from stoker.backends.llama import GPU, GPUs
from stoker.cli.commands import COMMANDS, SYNONYMS
from stoker.engine.config import AdapterSpec, adapter_spec
from stoker.models.aliases import read_aliases
from stoker.models.cache import file_sha256, write_receipt
from stoker.models.presets import read_presets
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.cli.conftest import Stoker
from tests.unit.models.tiny_gguf import SHAPE, write_tiny_gguf

NAME = "hf:Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf"


@pytest.fixture
def pulled(tmp_path: Path) -> Path:
    """A file that was downloaded as a well-known model."""
    file = tmp_path / "cache" / "models" / "hf" / "Qwen" / "Qwen3-4B-GGUF" / "Qwen3-4B-Q4_K_M.gguf"
    file.parent.mkdir(parents=True)
    write_tiny_gguf(file, **SHAPE)
    write_receipt(file, NAME, "a test", file, file_sha256(file))
    return file


def test_empty_list_says_how_to_get_a_model(stoker: Stoker) -> None:
    assert "`stoker pull MODEL`" in stoker("list").err
    done = stoker("list", "--json")
    assert (json.loads(done.out), done.err) == ([], "")


def test_a_download_is_listed_by_its_short_name(stoker: Stoker, pulled: Path) -> None:
    assert stoker("cp", "qwen3:4b", "mine").code == 0
    (row,) = json.loads(stoker("list", "--json").out)
    assert (row["model"], row["aliases"], row["path"]) == ("qwen3:4b", ["mine", NAME], str(pulled))
    assert row["size_bytes"] == pulled.stat().st_size
    assert stoker("list").out.splitlines()[0].split() == ["MODEL", "ALSO", "CALLED", "SIZE", "MODIFIED"]


@pytest.mark.parametrize("name", ["qwen3:4b", NAME])
def test_a_download_is_removed_by_each_of_its_names(stoker: Stoker, pulled: Path, name: str) -> None:
    assert stoker("rm", name).err == f"removed {name}\n"
    assert not pulled.exists()
    assert stoker("rm", name).code == 3


def test_another_name_is_removed_alone(stoker: Stoker, pulled: Path) -> None:
    stoker("cp", "qwen3:4b", "mine")
    assert stoker("rm", "mine:latest").code == 0
    assert pulled.exists()


def test_show_says_what_a_file_is(stoker: Stoker, pulled: Path) -> None:
    facts = json.loads(stoker("show", "qwen3:4b", "--json").out)
    assert (facts["source"], facts["path"], facts["here"]) == ("hf:Qwen/Qwen3-4B-GGUF:Q4_K_M", str(pulled), True)
    assert facts["architecture"] == "llama"  # the file's own word, not that of the table
    assert "qwen3:4b" in stoker("show", "qwen3:4b").out


def test_a_folder_is_shown_and_run_as_its_only_model(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the folder has the name of a well-known model."""
    (tmp_path / "llama3.2").mkdir()
    path = write_tiny_model(tmp_path / "llama3.2" / "m.gguf", TinyModel())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_BACKEND", "auto")
    for name in (str(path.parent), "llama3.2"):
        facts = json.loads(stoker("show", name, "--json").out)
        assert (Path(facts["path"]).absolute(), facts["here"]) == (path, True)
        answer = json.loads(stoker("run", name, "Hi", "--raw", "--max-tokens", "2", "--json").out)
        assert answer["usage"]["completion_tokens"] == 2
    path.with_name("n.gguf").touch()
    for command in (["show"], ["run", "Hi"], ["serve", "--port", "0"]):
        done = stoker(command[0], "./llama3.2", *command[1:])
        assert done.code == 3
        assert "with 2 models; name one of its files: m.gguf, n.gguf" in done.err


def test_show_names_the_gpus_of_the_machine(stoker: Stoker, pulled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "devices" not in json.loads(stoker("show", "qwen3:4b", "--json").out)
    card = GPU(name="CUDA0", description="a card", free_bytes=3 << 30, total_bytes=4 << 30, shares_ram=False)
    monkeypatch.setattr("stoker.backends.llama.gpus_by_child", lambda: GPUs(kind="cuda", devices=(card,)))
    found = json.loads(stoker("show", "qwen3:4b", "--json").out)["devices"]
    assert found == ["CUDA0 (a card, 3072 of 4096 MiB free)"]


def test_show_knows_well_known_models_before_they_come(stoker: Stoker) -> None:
    facts = json.loads(stoker("show", "gpt-oss", "--json").out)
    assert (facts["license"], facts["here"]) == ("Apache-2.0", False)


@pytest.mark.parametrize(
    ("name", "said"), [("org/repo", "`stoker pull org/repo` downloads it"), ("nothing", "no model")]
)
def test_show_downloads_nothing(stoker: Stoker, name: str, said: str) -> None:
    done = stoker("show", name)
    assert done.code == 3
    assert said in done.err


def test_a_preset_is_created_shown_copied_and_used(stoker: Stoker, pulled: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    options = ["-s", "Say arr.", "--temperature", "0", "--stop", "x", "-c", "64", "--template", str(template)]
    done = stoker("create", "pirate", "--from", "qwen3:4b:latest", *options)
    assert (done.code, done.err) == (0, "created pirate: try `stoker run pirate`\n")
    preset = read_presets()["pirate"]
    assert (preset.model, preset.system, preset.ctx_size) == ("qwen3:4b", "Say arr.", 64)
    assert preset.sampling == {"temperature": 0.0, "stop": ["x"]}
    assert preset.template == "{{ messages[0].content }}"
    facts = json.loads(stoker("show", "pirate", "--json").out)
    assert (facts["based_on"], facts["system"], facts["path"]) == ("qwen3:4b", "Say arr.", str(pulled))
    assert stoker("cp", "pirate", "corsair").code == 0
    assert read_presets()["corsair"] == preset
    assert {row["model"] for row in json.loads(stoker("list", "--json").out)} == {"qwen3:4b", "pirate", "corsair"}


def test_the_sampling_of_a_preset_holds(stoker: Stoker) -> None:
    stoker("create", "short", "--from", "smollm2", "-n", "3")
    assert stoker("run", "--raw", "short", "Hi").out == "smo\n"
    assert stoker("run", "--raw", "short", "Hi", "-n", "5").out == "smoll\n"


@pytest.mark.parametrize("command", [("create", "x", "--from", "nosuch"), ("cp", "nosuch", "x")])
def test_what_is_no_model_gets_no_other_name(stoker: Stoker, command: tuple[str, ...]) -> None:
    done = stoker(*command)
    assert done.code == 3
    assert "no model 'nosuch'" in done.err
    assert not read_presets()
    assert not read_aliases()


def test_a_path_means_the_same_file_in_every_folder(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.gguf", "a.gguf"):
        Path(name).touch()
    assert stoker("create", "x", "--from", "./m.gguf", "--lora", "a=a.gguf:0.5", "--lora", "a.gguf").code == 0
    assert stoker("cp", "m.gguf", "y").code == 0
    preset = read_presets()["x"]
    assert preset.model == read_aliases()["y"] == str(tmp_path / "m.gguf")
    assert [adapter_spec(text) for text in preset.lora] == [
        AdapterSpec(name="a", path=str(tmp_path / "a.gguf"), scale=0.5),
        AdapterSpec(name="a", path=str(tmp_path / "a.gguf"), scale=1.0),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--lora", "a=/nowhere.gguf"), "--lora: there is no file /nowhere.gguf"),
        (("--ctx-size", "0"), "--ctx-size must be at least 1"),
    ],
)
def test_create_checks_what_a_preset_is_made_of(stoker: Stoker, options: tuple[str, ...], said: str) -> None:
    done = stoker("create", "x", "--from", "smollm2", *options)
    assert done.code == 2
    assert said in done.err


def test_options_win_over_a_modelfile(stoker: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "Modelfile"
    file.write_text("FROM gemma3\nSYSTEM Say arr.\nPARAMETER top_k 3\nPARAMETER temperature 1\n")
    assert stoker("create", "x", "-f", str(file), "--temperature", "0").code == 0
    assert read_presets()["x"].sampling == {"top_k": 3, "temperature": 0.0}
    assert read_presets()["x"].model == "gemma3"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["x"], "no base model: name it with --from MODEL"),
        (["x", "-f", "/no/such/file"], "--file: /no/such/file cannot be read: No such file"),
        (["x", "--from", "gemma3", "--temperature", "-1"], "`temperature` must be between"),
        (["smollm2", "--from", "gemma3"], "is a model of the catalog"),
    ],
)
def test_what_cannot_be_a_preset(stoker: Stoker, args: list[str], said: str) -> None:
    done = stoker("create", *args)
    assert done.code == 2
    assert said in done.err


def test_version_names_what_is_at_work(stoker: Stoker) -> None:
    facts = json.loads(stoker("version", "--json").out)
    assert facts["stoker"] == __version__
    assert set(facts) == {"stoker", "python", "machine", "llama backend", "onnx backend"}
    assert __version__ in stoker("version").out


def test_help_is_a_command_too(stoker: Stoker) -> None:
    assert stoker("help", "pull").out == stoker("pull", "--help").out
    assert stoker("help").out == stoker("--help").out
    assert stoker("help", "cache", "list").out == stoker("cache", "list", "--help").out


def test_commands_of_other_programs_are_translated(stoker: Stoker) -> None:
    assert set(SYNONYMS.values()) <= set(COMMANDS)
    assert not set(SYNONYMS) & set(COMMANDS)
    assert stoker("ls").err == "error: no such command 'ls': it is called `stoker list` here (see `stoker -h`)\n"


@pytest.mark.parametrize("model", ["smollm2", "qwen3:4b", "./x.gguf", "org/repo:Q8_0"])
def test_model_in_place_of_a_command_is_recognized(stoker: Stoker, model: str) -> None:
    said = f"error: no such command '{model}'. To run this model: `stoker run {model}` (see `stoker -h`)\n"
    assert stoker(model, "Hi").err == said
    assert "stoker run" not in stoker("foo").err


def test_verbose_may_stand_before_the_command(stoker: Stoker) -> None:
    assert "Traceback" in stoker("-v", "run", "smollm2", "Hi", "--backend", "onnx").err


def test_quantize_refuses_what_would_be_lost(stoker: Stoker, pulled: Path) -> None:
    assert "exists already" in stoker("quantize", str(pulled), str(pulled), "Q8_0").err
    assert "is the model itself" in stoker("quantize", str(pulled), str(pulled), "Q8_0", "--force").err
    assert "TYPE must be one of" in stoker("quantize", str(pulled), "x.gguf", "Q99").err


def test_quantize_writes_a_smaller_model(stoker: Stoker, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    model, target = write_tiny_model(tmp_path / "m.gguf", TinyModel()), tmp_path / "q.gguf"
    done = stoker("quantize", str(model), str(target), "q8_0", "--requantize")
    assert (done.code, done.out) == (0, f"{target}\n")
    assert json.loads(stoker("show", str(target), "--json").out)["quantization"] == "Q8_0"
    assert [path.name for path in tmp_path.glob(".*part*")] == []
