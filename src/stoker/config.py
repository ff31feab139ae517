"""Composes the rooms' frozen configs (flags, environment, file, default) and remembers which; owns no default itself.

A key has one name everywhere: `ctx_size` in section `[engine]` of the file is `STOKER_CTX_SIZE` in the environment and
`--ctx-size` on the command line. An empty environment variable counts as not given.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import platformdirs

from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.errors import ConfigError, InvalidInput, reason_of
from stoker.models.cache import kv_dir
from stoker.runtime.config import RegistryConfig
from stoker.runtime.external.config import RuntimeConfig
from stoker.runtime.replica_config import ReplicaConfig
from stoker.server.config import ServerConfig

__all__ = ["Config", "Setting", "load_config", "setting_keys", "setting_types", "usual_file"]

Layer: TypeAlias = Mapping[str, Mapping[str, tuple[object, str]]]
"""section -> key -> (checked value, where it comes from)."""

_SECTIONS: dict[str, type[object]] = {
    "engine": EngineConfig,
    "sampling": SamplingParams,
    "server": ServerConfig,
    "supervision": SupervisionConfig,
    "replicas": ReplicaConfig,
    "runtime": RuntimeConfig,
    "registry": RegistryConfig,
}
_NOT_SETTINGS = frozenset(
    {"adapters", "has_siblings", "model", "model_path", "most_kv_tokens", "num_replicas", "preset", "sampling"}
)
"""Fields that a command fills in itself."""
_PREFIX = "STOKER_"
_OF_KUBERNETES = re.compile(r"STOKER_PORT=(tcp|udp|sctp)://")
"""The variable that Kubernetes sets for a service with the name `stoker`."""
_SURELY_MEANT = 0.92
"""Similarity of names above which one is a misspelling of the other."""
_OTHER_VARIABLES = frozenset(
    {
        *("STOKER_CONFIG", "STOKER_LOG_LEVEL", "STOKER_CACHE_DIR", "STOKER_STATE_DIR", "STOKER_URL", "STOKER_LOG_FILE"),
        *("STOKER_PACKED_DIR", "STOKER_NATIVE_AFFINITY", "STOKER_NATIVE_KERNELS"),
    }
)
"""Variables of ours that are no settings."""
_FLAGS = {"kv_cache_dir": "cache-dir", "volatile_headers": "volatile-header"}
"""Options that are called otherwise than their keys."""
_AUTO = "auto"
"""As the folder of the prefix cache: the usual one."""
_PATHS = frozenset(
    {
        "api_key_file",
        "chat_template_file",
        "kv_cache_dir",
        "llama_server_path",
        "media_path",
        "models_dir",
        "script",
        "slot_save_path",
        "tls_certificate",
        "tls_key",
        "vllm_path",
        "unix_socket",
    }
)
"""Settings that may begin with `~`: a shell leaves it as it is after `=`, and in a file only this code replaces it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that holds, and why."""

    section: str
    key: str
    value: Any
    origin: str
    """`default`, `file <path>`, `environment STOKER_…` or `flag --…`."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that is configured. `engine.model` is empty until a command names one."""

    engine: EngineConfig
    server: ServerConfig
    supervision: SupervisionConfig
    replicas: ReplicaConfig
    runtime: RuntimeConfig
    registry: RegistryConfig
    settings: tuple[Setting, ...]
    ignored_variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """`STOKER_…` variables that are set and mean nothing, and the variable that each probably means; empty = none."""
    file: Path | None = None
    """The TOML file that was read; None = there is none."""

    def is_given(self, key: str) -> bool:
        """Whether the value was configured; False = it is a default."""
        return any(setting.key == key and setting.origin != "default" for setting in self.settings)


def setting_keys(section: str) -> dict[str, Any]:
    """The keys of a section with their types, in the order in which their dataclass or Struct declares them."""
    return {key: hint for key, (hint, _) in _fields(_SECTIONS[section]).items()}


def setting_types() -> dict[str, Any]:
    """The types of all settings, by key: no two sections have the same one."""
    return {key: hint for section in _SECTIONS for key, hint in setting_keys(section).items()}


def load_config(
    flags: Mapping[str, object] | None = None, *, file: Path | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """The configuration that holds: flags over environment over file over defaults.

    Args:
        flags: values by key, already of the right type; `None` values count as not given.
        file: a TOML file. Not given: `STOKER_CONFIG`, else `stoker.toml` in the platform's configuration folder, if it
            exists.
        environ: the environment; not given: this process's.

    Raises:
        ConfigError: an unknown key or a value that cannot be used; says where it stands and what is allowed.
    """
    environ = os.environ if environ is None else environ
    found = _find_file(file, environ)
    layers = [_from_flags(flags or {}), _from_environment(environ), _from_file(found)]
    sections = {name: _merge(name, layers) for name in _SECTIONS}
    sampling = _build("sampling", sections["sampling"])
    engine = _build("engine", sections["engine"], sampling=sampling)
    server = _build("server", sections["server"])
    supervision = _build("supervision", sections["supervision"])
    replicas = _build("replicas", sections["replicas"])
    runtime = _build("runtime", sections["runtime"])
    registry = _build("registry", sections["registry"])
    settings = tuple(_settings(sections))
    unknown = _unknown_variables(environ)
    return Config(engine, server, supervision, replicas, runtime, registry, settings, unknown, found)


def engine_with(engine: EngineConfig, values: Mapping[str, object], where: str) -> EngineConfig:
    """The same configuration with some settings of its own.

    Args:
        engine: of all models.
        values: by key, as a file has them.
        where: they stand, for messages.

    Raises:
        ConfigError: an unknown key or a value that cannot be used.
    """
    hints = setting_keys("engine")
    for key in values:
        _check_known(key, hints, f"{where}: unknown key {key!r}")
    checked = {key: _checked(value, hints[key], where, key, is_text=False) for key, value in values.items()}
    try:
        return msgspec.structs.replace(engine, **checked)
    except InvalidInput as error:
        raise ConfigError(f"{where}: {error.message}", key=str(error.fields.get("parameter", ""))) from error


def _fields(cls: type[Any]) -> dict[str, tuple[Any, object]]:
    """Settable fields of a dataclass or Struct: name -> (type, default)."""
    if issubclass(cls, msgspec.Struct):
        found = {f.name: (f.type, _default(f)) for f in msgspec.structs.fields(cls)}
    else:
        hints = get_type_hints(cls)
        found = {f.name: (hints[f.name], f.default) for f in dataclasses.fields(cls)}
    return {name: field for name, field in found.items() if name not in _NOT_SETTINGS}


def _default(field: msgspec.structs.FieldInfo) -> object:
    """The default of a Struct's field; one that could be changed is made anew for each Struct."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _find_file(file: Path | None, environ: Mapping[str, str]) -> Path | None:
    chosen = str(file or environ.get("STOKER_CONFIG") or "")
    if not chosen:
        return _usual_file()
    named = Path(_in_home(chosen, "flag --config" if file else "environment STOKER_CONFIG", "config"))
    with suppress(OSError):  # but for this one, reading it says what is wrong
        if not named.exists():
            raise ConfigError(f"config file {named} does not exist", path=str(named))
    return named


def usual_file() -> Path | None:
    """Where the file is looked for if none is named, whether it is there or not; None: this user has no home."""
    with suppress(RuntimeError, OSError):
        return platformdirs.user_config_path("stoker") / "stoker.toml"
    return None


def _usual_file() -> Path | None:
    """None too where the folder may not be read."""
    usual = usual_file()
    with suppress(OSError):
        return usual if usual is not None and usual.is_file() else None
    return None


def _in_home(path: str, where: str, key: str) -> str:
    """The path with the home folder that a `~` at its beginning stands for.

    Raises:
        ConfigError: there is no such user.
    """
    found = os.path.expanduser(path)
    if path.startswith("~") and found == path:
        raise ConfigError(f"{where}: {path!r} begins with the home directory of an unknown user", key=key)
    return found


def _from_flags(flags: Mapping[str, object]) -> Layer:
    sections = {key: section for section in _SECTIONS for key in setting_keys(section)}
    layer: dict[str, dict[str, tuple[object, str]]] = {}
    for key, value in flags.items():
        if value is not None:
            origin = f"flag --{_FLAGS.get(key, key.replace('_', '-'))}"
            layer.setdefault(sections[key], {})[key] = (_with_home(value, origin, key), origin)
    return layer


def _from_environment(environ: Mapping[str, str]) -> Layer:
    layer: dict[str, dict[str, tuple[object, str]]] = {}
    for section in _SECTIONS:
        for key, hint in setting_keys(section).items():
            text = environ.get(variable := _PREFIX + key.upper(), "")
            if text and not _OF_KUBERNETES.match(f"{variable}={text}"):
                value = _checked(text, hint, f"environment variable {variable}", key, is_text=True)
                layer.setdefault(section, {})[key] = (value, f"environment {variable}")
    return layer


def _from_file(path: Path | None) -> Layer:
    if path is None:
        return {}
    layer: dict[str, dict[str, tuple[object, str]]] = {}
    for section, table in _read_toml(path).items():
        if section not in _SECTIONS and (home := next((s for s in _SECTIONS if section in setting_keys(s)), None)):
            raise ConfigError(f"{path}: `{section}` must follow the line [{home}], its section", key=section)
        _check_known(section, _SECTIONS, f"{path}: unknown section `[{section}]`")
        if not isinstance(table, dict):
            raise ConfigError(
                f"{path}: `{section}` must be a table, written as [{section}]", path=str(path), key=section
            )
        keys = setting_keys(section)
        for key, value in cast(dict[str, object], table).items():
            _check_known(key, keys, f"{path}: unknown key `{key}` in [{section}]")
            _check_tables(value, keys[key], f"{section}.{key}", path)
            checked = _checked(value, keys[key], f"{path}: `{key}` in [{section}]", key, is_text=False)
            layer.setdefault(section, {})[key] = (checked, f"file {path}")
    return layer


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors mark a text as UTF-8
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {reason_of(error)}", path=str(path)) from error


def _check_tables(value: object, hint: Any, name: str, path: Path) -> None:
    """Names the table and the key that is wrong, where a setting is a table of tables, as `registry.models` is.

    Raises:
        ConfigError: one is no table, or holds what it must not.
    """
    item = next((kind for table in get_args(hint) for kind in get_args(table)[1:] if _is_struct(kind)), None)
    if item is None or not isinstance(value, dict):
        return
    keys = {field.name: field.type for field in msgspec.structs.fields(item)}
    for inner, table in cast(dict[str, object], value).items():
        where = f"[{name}.{inner}]"
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: `{inner}` must be a table, written as {where}", path=str(path), key=inner)
        for key, given in cast(dict[str, object], table).items():
            _check_known(key, keys, f"{path}: unknown key `{key}` in {where}")
            _checked(given, keys[key], f"{path}: `{key}` in {where}", key, is_text=False)


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _check_known(name: str, known: Mapping[str, object], complaint: str) -> None:
    if name in known:
        return
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"allowed: {', '.join(known)}"
    raise ConfigError(f"{complaint}; {hint}", key=name)


def _checked(value: object, hint: Any, where: str, key: str, *, is_text: bool) -> object:
    try:
        if is_text and isinstance(value, str) and value[0] in "[{":
            checked = msgspec.json.decode(value, type=hint)
        else:
            checked = msgspec.convert(value, type=hint, strict=not is_text, str_keys=True)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(f"{where}: must be {_describe(hint)}, not {value!r}", key=key) from error
    return _with_home(checked, where, key)


def _with_home(value: object, where: str, key: str) -> object:
    if key == "kv_cache_dir" and value == _AUTO:
        return str(kv_dir())
    return _in_home(value, where, key) if key in _PATHS and isinstance(value, str) else value


def _describe(hint: Any) -> str:
    """The values a type allows, for a human."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(value) for value in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        return " or ".join(_describe(kind) for kind in kinds)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    if hint in names:
        return names[hint]
    items = get_args(hint)
    if get_origin(hint) is dict and (items[1] is Any or _is_struct(items[1])):
        return "a table"
    if len(items) == 2 and items[1] is not Ellipsis:
        return f"a table from {_describe(items[0])} to {_describe(items[1])}"
    return f"a list, each item {_describe(items[0])}" if items else str(hint)


def _merge(section: str, layers: list[Layer]) -> dict[str, tuple[object, str]]:
    merged: dict[str, tuple[object, str]] = {}
    for key, (_, default) in _fields(_SECTIONS[section]).items():
        given = (layer[section][key] for layer in layers if key in layer.get(section, {}))
        merged[key] = next(given, (default, "default"))
    return merged


def _build(section: str, values: Mapping[str, tuple[object, str]], **filled_in: object) -> Any:
    given = {key: value for key, (value, origin) in values.items() if origin != "default"}
    try:
        return _SECTIONS[section](**given, **filled_in)
    except InvalidInput as error:
        culprit = str(error.fields.get("parameter", ""))
        origin = values[culprit][1] if culprit in values else f"section [{section}]"
        raise ConfigError(f"{origin}: {error.message}", key=culprit) from error


def _settings(sections: Mapping[str, Mapping[str, tuple[object, str]]]) -> Iterator[Setting]:
    for section, values in sections.items():
        for key, (value, origin) in values.items():
            yield Setting(section, key, value, origin)


def _unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    known = {_PREFIX + key.upper() for section in _SECTIONS for key in setting_keys(section)} | _OTHER_VARIABLES
    unknown = sorted(name for name in environ if name.startswith(_PREFIX) and name not in known)
    likely = known - {"STOKER_MODELS"}  # a table, which only the file can have
    return {name: next(iter(get_close_matches(name, likely, n=1, cutoff=_SURELY_MEANT)), "") for name in unknown}
