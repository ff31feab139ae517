"""Determines the LoRA adapters that a request of any API selects."""

from __future__ import annotations

from stoker.engine.question_messages import AdapterChoice
from stoker.errors import InvalidInput, ModelNotFound
from stoker.runtime.registry import ServedModel
from stoker.runtime.served import adapter_in
from stoker.server.request.fields import Lora, LoraChoice


def adapter_choices(lora: Lora | None) -> list[AdapterChoice] | None:
    """The adapters in the field `lora`; None if the field is not given.

    Raises:
        InvalidInput: an item has neither a name nor an id, or both.
    """
    if lora is None:
        return None
    return [_choice(item) for item in ([lora] if isinstance(lora, str) else lora)]


def with_named_adapter(
    choices: list[AdapterChoice] | None, model: str | None, served: ServedModel
) -> list[AdapterChoice] | None:
    """The adapters of `lora`, or the one that follows a colon in the model's name, as in `smollm2:sql`.

    For a model without adapters, the text after the colon is a tag, as in `smollm2:135m`, which `check_named` accepted.

    Raises:
        InvalidInput: the model's name and `lora` both name adapters.
    """
    adapter = adapter_in(model, served.names) if model else None
    if adapter is None or not served.runtime.card.adapters:
        return choices
    if choices is not None:
        raise InvalidInput("name adapters after the model's name or in `lora`, not in both", parameter="lora")
    return [AdapterChoice(name=adapter)]


def check_named(model: str | None, served: ServedModel, *, takes_any_name: bool) -> None:
    """Checks that the name `model` can mean the served model.

    Raises:
        ModelNotFound: the name has a suffix, the model has no adapters, and the server checks names.
    """
    if takes_any_name or not model or adapter_in(model, served.names) is None or served.runtime.card.adapters:
        return
    message = f"The model `{model}` is not served here; `{served.model_id}` is, and it has no adapters"
    raise ModelNotFound(message, model=model, parameter="model")


def _choice(item: str | LoraChoice) -> AdapterChoice:
    if isinstance(item, str):
        return AdapterChoice(name=item)
    if (item.name is None) == (item.id is None):
        raise InvalidInput("each item of `lora` must have a `name` or an `id`", parameter="lora")
    scale = 1.0 if item.scale is None else item.scale
    return AdapterChoice(name=item.name, adapter_id=item.id, scale=scale)
