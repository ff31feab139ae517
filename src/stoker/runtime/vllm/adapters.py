"""LoRA adapters of a model in vLLM, in PEFT's format: reads them, passes them to vLLM, and chooses one per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.engine.cards import AdapterCard
from stoker.engine.config import AdapterSpec, EngineConfig, adapter_specs
from stoker.engine.question_messages import AdapterChoice
from stoker.errors import AdapterInvalid, AdapterNotFound, ConfigError, UnsupportedParameter
from stoker.models.json_folder import JSONFolder

_RANKS = (8, 16, 32, 64, 128, 256, 512)
"""Values that vLLM accepts for `--max-lora-rank`."""
_FACTS = "adapter_config.json"


@dataclass(frozen=True, slots=True)
class PEFTAdapters:
    """The adapters of one model, which do not change while vLLM runs."""

    cards: tuple[AdapterCard, ...] = ()

    def arguments(self) -> list[str]:
        """The command line arguments of vLLM for the adapters; empty if there are none.

        Raises:
            AdapterInvalid: the rank of an adapter is larger than vLLM supports.
        """
        if not self.cards:
            return []
        largest = max(self.cards, key=lambda card: card.rank)
        rank = next((rank for rank in _RANKS if rank >= largest.rank), None)
        if rank is None:
            message = f"{largest.path} has the rank {largest.rank}, and vLLM takes at most {_RANKS[-1]}"
            raise AdapterInvalid(message, path=largest.path)
        modules = [f"{card.name}={card.path}" for card in self.cards]
        return ["--enable-lora", "--max-lora-rank", str(rank), "--lora-modules", *modules]

    def chosen(self, choices: Sequence[AdapterChoice] | None) -> str | None:
        """The name of the adapter that a request uses; None = the model alone.

        Args:
            choices: the request's adapters; None = it chooses none, and the default adapter is used.

        Raises:
            AdapterNotFound: no adapter has this name or id.
            UnsupportedParameter: the request uses several adapters, or a scale other than 0 or 1.
        """
        if choices is None:
            return next((card.name for card in self.cards if card.scale), None)
        wanted = [(self._find(choice), choice.scale) for choice in choices]
        names = [card.name for card, scale in wanted if scale]
        if len(names) > 1 or any(scale not in (0.0, 1.0) for _, scale in wanted):
            message = "vLLM supports one adapter per request, with scale 1"
            raise UnsupportedParameter(message, parameter="lora")
        return names[0] if names else None

    def _find(self, choice: AdapterChoice) -> AdapterCard:
        found = next((card for card in self.cards if choice.name == card.name), None)
        if found is None and choice.name is None:
            found = next((card for card in self.cards if choice.adapter_id == card.adapter_id), None)
        if found is None:
            name, known = choice.name or str(choice.adapter_id), ", ".join(card.name for card in self.cards)
            message = f"there is no adapter `{name}`; there is {known or 'none'}"
            raise AdapterNotFound(message, adapter=name, parameter="lora")
        return found


def read_adapters(config: EngineConfig) -> PEFTAdapters:
    """The configured adapters.

    Raises:
        AdapterInvalid: a path is not a folder in PEFT's format.
        ConfigError: several adapters apply by default, or one with a scale other than 1.
    """
    cards = tuple(_read(spec, number) for number, spec in enumerate(adapter_specs(config)))
    scales = [card.scale for card in cards if card.scale]
    if scales not in ([], [1.0]):
        message = "--lora: vLLM supports one default adapter, with scale 1; give the others names"
        raise ConfigError(message, key="lora")
    return PEFTAdapters(cards)


def _read(spec: AdapterSpec, number: int) -> AdapterCard:
    path = Path(spec.path).absolute()
    rank = JSONFolder(folders=(path,)).read_json(_FACTS).get("r")
    weights = [file for file in path.glob("adapter_model.*") if file.is_file()]
    if not isinstance(rank, int) or rank < 1 or not weights:
        message = f"{path} is not an adapter for vLLM, which needs folders with {_FACTS} and adapter_model.safetensors"
        raise AdapterInvalid(message, path=str(path))
    return AdapterCard(
        adapter_id=number,
        name=spec.name,
        path=str(path),
        scale=spec.scale,
        rank=rank,
        size_bytes=sum(file.stat().st_size for file in weights),
    )
