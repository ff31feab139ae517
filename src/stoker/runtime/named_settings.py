"""Applies settings that name models (aliases, pins and keep-alive times), and checks that each name means one model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stoker.errors import ConfigError, InvalidInput
from stoker.runtime.config import RegistryConfig
from stoker.runtime.keep_alive import parse_keep_alive
from stoker.runtime.model_spec import ModelSpec
from stoker.runtime.served import short_name


@dataclass(frozen=True, slots=True)
class NamedSettings:
    """The settings `--alias`, `--pin` and `--keep-alive`."""

    aliases: Mapping[str, str]
    """Alias -> model."""
    pinned: frozenset[str]
    keep_alive_s: Mapping[str, float]
    """Keep-alive times in seconds, by model; the empty name stands for all other models."""

    @classmethod
    def of(cls, registry: RegistryConfig) -> NamedSettings:
        """Reads the settings.

        Raises:
            ConfigError: an alias is given twice or names no model, or a keep-alive is no duration.
        """
        keep_alive = {name: _keep_alive(text) for name, text in map(_pair, registry.keep_alive)}
        aliases = {alias: model for alias, model in map(_pair, registry.alias) if alias}
        if len(aliases) < len(registry.alias):
            raise ConfigError("--alias takes NAME=MODEL, each name once", key="alias")
        return cls(aliases, frozenset(registry.pin), keep_alive)

    def applied(self, spec: ModelSpec) -> ModelSpec:
        """The model's specification with the settings applied."""
        further = (alias for alias, model in self.aliases.items() if model in spec.names)
        said = [self.keep_alive_s[name] for name in (*spec.names, "") if name in self.keep_alive_s]
        return replace(
            spec,
            names=tuple(dict.fromkeys((*spec.names, *further))),
            is_pinned=spec.is_pinned or not self.pinned.isdisjoint(spec.names),
            keep_alive_s=said[0] if said else spec.keep_alive_s,
        )

    def check(self, specs: Sequence[ModelSpec], *, is_open: bool) -> None:
        """Checks that every name means one model, and that the settings name only models that exist.

        Args:
            specs: models, with the settings applied.
            is_open: further models may be served, which the settings may name.

        Raises:
            ConfigError: a name means two models, or none.
        """
        twice = [model for model, count in Counter(spec.model_id for spec in specs).items() if count > 1]
        if twice:
            raise ConfigError(
                f"{twice[0]!r} is named twice; --replicas 2 starts two engines for one model", key="model"
            )
        owners: dict[str, str] = {}
        for name, owner in ((name, spec.model_id) for spec in specs for name in spec.names):
            if owners.setdefault(name, owner) != owner:
                raise ConfigError(f"{name!r} would be both {owners[name]} and {owner}: every name is for one model")
        unknown = sorted({*self.aliases.values(), *self.pinned, *self.keep_alive_s} - {""} - owners.keys())
        if unknown and not is_open:
            raise ConfigError(f"--alias, --pin and --keep-alive: there is no model {unknown[0]!r}", key="alias")


def without_shared_names(specs: Sequence[ModelSpec]) -> Iterator[ModelSpec]:
    """The models without short names that several of them share: files of one name in two folders keep their paths."""
    owners = Counter(name for spec in specs for name in spec.names)
    for spec in specs:
        short = {short_name(name) for name in spec.names if short_name(name) != name}
        yield replace(spec, names=tuple(name for name in spec.names if owners[name] == 1 or name not in short))


def _pair(item: str) -> tuple[str, str]:
    """The parts before and after the first `=`; without a `=`, an empty string and the whole text."""
    name, is_there, value = item.partition("=")
    return (name, value) if is_there else ("", name)


def _keep_alive(text: str) -> float:
    try:
        return parse_keep_alive(text)
    except InvalidInput as error:
        raise ConfigError(f"--keep-alive: {error.message}", key="keep_alive") from error
