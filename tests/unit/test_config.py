"""Where a setting comes from, and what is said about one that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.config import Config, load_config, setting_keys
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError
from stoker.server.config import ServerConfig

NO_ENVIRONMENT: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _no_user_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config_home"))
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: tmp_path / "config_home" / name)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def origin(config: Config, key: str) -> str:
    return next(setting.origin for setting in config.settings if setting.key == key)


def test_without_anything_the_rooms_own_defaults_hold() -> None:
    config = load_config(environ=NO_ENVIRONMENT)
    assert config.engine == EngineConfig()
    assert config.server == ServerConfig()
    assert {setting.origin for setting in config.settings} == {"default"}


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", "[engine]\nctx_size = 1\nkv_tokens = 2\nparallel = 3\n")
    environ = {"STOKER_CTX_SIZE": "10", "STOKER_KV_TOKENS": "20"}
    config = load_config({"ctx_size": 100, "threads": None}, file=file, environ=environ)
    assert (config.engine.ctx_size, config.engine.kv_tokens, config.engine.parallel) == (100, 20, 3)
    assert config.engine.threads is None
    assert origin(config, "ctx_size") == "flag --ctx-size"
    assert origin(config, "kv_tokens") == "environment STOKER_KV_TOKENS"
    assert origin(config, "parallel") == f"file {file}"
    assert origin(config, "threads") == "default"
    assert config.is_given("parallel")
    assert not config.is_given("threads")


def test_every_section_is_composed(tmp_path: Path) -> None:
    text = "[sampling]\ntemperature = 0\nstop = ['a', 'b']\n[server]\nport = 9\n[supervision]\nhealthy_s = 5\n"
    config = load_config(file=write(tmp_path / "a.toml", text), environ=NO_ENVIRONMENT)
    assert config.engine.sampling.temperature == 0
    assert config.engine.sampling.stop_strings == ("a", "b")
    assert config.server.port == 9
    assert config.supervision.healthy_s == 5


def test_a_value_that_is_false_or_zero_counts_as_given() -> None:
    config = load_config({"temperature": 0.0, "strict_models": False}, environ={"STOKER_STRICT_MODELS": "true"})
    assert config.engine.sampling.temperature == 0
    assert config.server.strict_models is False


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("STOKER_SEED", "7", "seed", 7),
        ("STOKER_TEMPERATURE", "0.5", "temperature", 0.5),
        ("STOKER_STOP", "END", "stop", "END"),
        ("STOKER_STOP", '["A", "B"]', "stop", ["A", "B"]),
        ("STOKER_STOP_TOKEN_IDS", "[1, 2]", "stop_token_ids", [1, 2]),
        ("STOKER_LOGIT_BIAS", '{"5": -1.5}', "logit_bias", {5: -1.5}),
        ("STOKER_IGNORE_EOS", "true", "ignore_eos", True),
    ],
)
def test_the_environment_is_read_by_type(variable: str, text: str, key: str, value: object) -> None:
    assert getattr(load_config(environ={variable: text}).engine.sampling, key) == value


def test_an_empty_variable_is_not_given() -> None:
    assert origin(load_config(environ={"STOKER_CTX_SIZE": ""}), "ctx_size") == "default"


def test_variables_that_mean_nothing_are_listed() -> None:
    environ = {"STOKER_CTXSIZE": "1", "STOKER_SERVICE_HOST": "x", "STOKER_CACHE_DIR": "/x", "OTHER": "1"}
    ignored = load_config(environ={**environ, "STOKER_PACKED_DIR": "/y", "STOKER_MODEL": "m"}).ignored_variables
    assert ignored == {"STOKER_CTXSIZE": "STOKER_CTX_SIZE", "STOKER_MODEL": "", "STOKER_SERVICE_HOST": ""}


def test_address_that_kubernetes_gives_for_a_service_called_stoker_is_no_port() -> None:
    config = load_config(environ={"STOKER_PORT": "tcp://10.0.0.1:8080", "STOKER_PORT_8080_TCP": "tcp://10.0.0.1:8080"})
    assert origin(config, "port") == "default"
    with pytest.raises(ConfigError, match="STOKER_PARALLEL"):
        load_config(environ={"STOKER_PARALLEL": "tcp://10.0.0.1:8080"})


def test_setting_outside_of_its_section_is_told_where_it_belongs(tmp_path: Path) -> None:
    file = write(tmp_path / "x.toml", "ctx_size = 3\n")
    with pytest.raises(ConfigError, match=r"`ctx_size` must follow the line \[engine\], its section"):
        load_config(file=file, environ=NO_ENVIRONMENT)


def test_the_file_is_found_by_variable_or_in_the_users_folder(tmp_path: Path) -> None:
    usual = write(tmp_path / "config_home/stoker/stoker.toml", "[engine]\nparallel = 2\n")
    named = write(tmp_path / "named.toml", "[engine]\nparallel = 4\n")
    assert load_config(environ=NO_ENVIRONMENT).engine.parallel == 2
    config = load_config(environ={"STOKER_CONFIG": str(named)})
    assert config.engine.parallel == 4
    assert origin(config, "parallel") == f"file {named}"
    assert load_config(file=usual, environ={"STOKER_CONFIG": str(named)}).engine.parallel == 2


def test_the_file_may_lie_at_home_or_be_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "mine.toml", "[engine]\nparallel = 2\n")
    assert load_config(environ={"STOKER_CONFIG": "~/mine.toml"}).engine.parallel == 2
    reader, writer = os.pipe()
    os.write(writer, b"[engine]\nparallel = 3\n")
    os.close(writer)
    assert load_config(file=Path(f"/dev/fd/{reader}"), environ=NO_ENVIRONMENT).engine.parallel == 3
    os.close(reader)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[engine]\nctx_sice = 1\n", ["unknown key `ctx_sice` in [engine]", "did you mean `ctx_size`"]),
        ("[engine]\nzzz = 1\n", ["unknown key `zzz` in [engine]; allowed: name, backend", "kv_tokens"]),
        ("[engin]\n", ["unknown section `[engin]`", "did you mean `engine`"]),
        ("engine = 1\n", ["`engine` must be a table"]),
        ("[engine]\nmodel = 'x'\n", ["unknown key `model`"]),
        ("[engine]\nctx_size = 'big'\n", ["`ctx_size` in [engine]", "must be a whole number, not 'big'"]),
        ("[engine]\nctx_size = 1.5\n", ["must be a whole number, not 1.5"]),
        ("[engine]\nbackend = 'gpu'\n", ["must be one of auto, native, llama, onnx"]),
        ("[sampling]\nstop = 1\n", ["must be a string or a list, each item a string"]),
        ("[sampling]\nlogit_bias = 1\n", ["must be a table from a whole number to a number"]),
        ("[server]\nstrict_models = 1\n", ["must be true or false, not 1"]),
        ("[sampling]\ntemperature = 101\n", ["`temperature` must be between 0 and 100"]),
        ("[engine]\nparallel = 0\n", ["`parallel` must be between 1 and 1024"]),
        ("[engine\n", ["cannot be read as TOML"]),
        ("[engine]\nctx_size = " + "[" * 100_000, ["cannot be read as TOML"]),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_key_and_allowed_values(
    tmp_path: Path, text: str, said: list[str]
) -> None:
    file = write(tmp_path / "a.toml", text)
    with pytest.raises(ConfigError) as caught:
        load_config(file=file, environ=NO_ENVIRONMENT)
    for part in [str(file), *said]:
        assert part in caught.value.message


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(file=file, environ=NO_ENVIRONMENT)
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(environ={"STOKER_CONFIG": str(file)})
    with pytest.raises(ConfigError, match="directory"):
        load_config(file=tmp_path, environ=NO_ENVIRONMENT)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        load_config(file=file, environ=NO_ENVIRONMENT)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"STOKER_CTX_SIZE": "big"}, "environment variable STOKER_CTX_SIZE: must be a whole number, not 'big'"),
        ({"STOKER_STOP": '["a"'}, "environment variable STOKER_STOP: must be a string or a list"),
        ({"STOKER_TOP_P": "2"}, "environment STOKER_TOP_P: `top_p` must be between 0 and 1"),
        ({"STOKER_STALL_KILL_S": "-5"}, "environment STOKER_STALL_KILL_S: `stall_kill_s` must be above 0 seconds"),
        (
            {"STOKER_LOAD_TIMEOUT_S": "nan"},
            "environment STOKER_LOAD_TIMEOUT_S: `load_timeout_s` must be above 0 seconds",
        ),
        ({"STOKER_BACKOFF_MAX_S": "inf"}, "environment STOKER_BACKOFF_MAX_S: `backoff_max_s` must be above 0 seconds"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environ=environ)
    assert said in caught.value.message


def test_a_flag_out_of_range_is_named() -> None:
    with pytest.raises(ConfigError, match=r"flag --top-p: `top_p` must be between 0 and 1"):
        load_config({"top_p": 1.5}, environ=NO_ENVIRONMENT)


def test_keys_are_unique_over_all_sections() -> None:
    keys = [key for section in ("engine", "sampling", "server", "supervision") for key in setting_keys(section)]
    assert len(keys) == len(set(keys))


def test_replicas_are_a_number_or_a_range_wherever_they_come_from(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", "[replicas]\nreplicas = 3\nscale_hold_s = 5\n")
    assert load_config(file=file, environ=NO_ENVIRONMENT).replicas.max_replicas == 3
    config = load_config(file=file, environ={"STOKER_REPLICAS": "2-5"}).replicas
    assert (config.min_replicas, config.max_replicas, config.scale_hold_s) == (2, 5, 5)
    assert load_config({"replicas": "7"}, environ=NO_ENVIRONMENT).replicas.min_replicas == 7
    with pytest.raises(ConfigError, match="must be a whole number or a string, not 1"):
        load_config(file=write(tmp_path / "b.toml", "[replicas]\nreplicas = 1.5\n"), environ=NO_ENVIRONMENT)


def test_every_sampling_parameter_is_a_setting() -> None:
    assert set(setting_keys("sampling")) == set(SamplingParams.__slots__)


@pytest.mark.parametrize("key", ["kv_cache_dir", "models_dir", "api_key_file", "slot_save_path", "tls_key"])
def test_a_home_that_nobody_has_is_named_wherever_it_stands(key: str, tmp_path: Path) -> None:
    section = next(name for name in ("engine", "server", "registry") if key in setting_keys(name))
    file = write(tmp_path / "a.toml", f"[{section}]\n{key} = '~no.such.user/x'\n")
    with pytest.raises(ConfigError, match=f"`{key}`.*home directory of an unknown user"):
        load_config(file=file, environ=NO_ENVIRONMENT)
    with pytest.raises(ConfigError, match=f"STOKER_{key.upper()}: .*home directory"):
        load_config(environ={f"STOKER_{key.upper()}": "~no.such.user/x"})
    with pytest.raises(ConfigError, match=r"flag --.*home directory"):
        load_config({key: "~no.such.user/x"}, environ=NO_ENVIRONMENT)


def test_a_config_file_may_lie_in_no_such_home() -> None:
    with pytest.raises(ConfigError, match=r"flag --config: .*home directory"):
        load_config(file=Path("~no.such.user/a.toml"), environ=NO_ENVIRONMENT)
    with pytest.raises(ConfigError, match=r"STOKER_CONFIG: .*home directory"):
        load_config(environ={"STOKER_CONFIG": "~no.such.user/a.toml"})


def test_every_path_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = write(tmp_path / "a.toml", "[server]\ntls_key = '~/key.pem'\n[engine]\nkv_cache_dir = '~/kept'\n")
    config = load_config({"tls_certificate": "~/all.pem"}, file=Path("~/a.toml"), environ=NO_ENVIRONMENT)
    assert (config.server.tls_key, config.server.tls_certificate) == (f"{tmp_path}/key.pem", f"{tmp_path}/all.pem")
    assert config.engine.kv_cache_dir == f"{tmp_path}/kept"
    assert origin(config, "tls_key") == f"file {file}"


def test_a_config_file_that_cannot_even_be_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too long"):
        load_config(file=tmp_path / ("x" * 300), environ=NO_ENVIRONMENT)


@pytest.mark.parametrize("has_home", [True, False])
def test_where_the_usual_file_cannot_be_looked_for_there_is_none(
    has_home: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder(name: str) -> Path:
        if not has_home:
            raise RuntimeError("could not determine the home directory")
        return tmp_path / ("x" * 300) / name

    monkeypatch.setattr("platformdirs.user_config_path", folder)
    assert load_config(environ=NO_ENVIRONMENT).engine == EngineConfig()


def test_an_option_is_called_as_it_is_on_the_command_line() -> None:
    config = load_config({"kv_cache_dir": "/a", "volatile_headers": ["b"]}, environ=NO_ENVIRONMENT)
    assert origin(config, "kv_cache_dir") == "flag --cache-dir"
    assert origin(config, "volatile_headers") == "flag --volatile-header"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[registry.models.fast]\nsource = 5", r"`source` in \[registry\.models\.fast\]: must be a string, not 5"),
        ("[registry.models.fast]\nsuorce = 'a'", r"unknown key `suorce` in .*models\.fast\].*mean `source`"),
        ("[registry.models.fast]\nengine = 5", r"`engine` in .*models\.fast\]: must be a table, not 5"),
        ("[registry.models]\nfast = 'a'", r"`fast` must be a table, written as \[registry\.models\.fast\]"),
        ("[registry]\nmodels = 5", r"`models` in \[registry\]: must be a table, not 5"),
    ],
)
def test_a_mistake_in_a_models_own_table_is_named(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_config(file=write(tmp_path / "a.toml", text), environ=NO_ENVIRONMENT)


def test_a_file_may_be_marked_as_utf8(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", "\ufeff[engine]\nctx_size = 5\n")
    assert load_config(file=file, environ=NO_ENVIRONMENT).engine.ctx_size == 5
