"""Reads the tokenizer of a model in Hugging Face format, from `tokenizer.json`."""

from __future__ import annotations

from stoker.errors import ModelFileNotFound
from stoker.models.json_folder import JSONFolder
from stoker.models.onnx_description import OnnxDescription
from stoker.text.tokenizer_json import JSONTokenizer, read_hints


def read_tokenizer(folder: JSONFolder, facts: OnnxDescription) -> JSONTokenizer:
    """The tokenizer that `tokenizer.json` describes.

    Args:
        folder: the files of the model.
        facts: the description of the model from its files.

    Raises:
        ModelFileNotFound: there is no `tokenizer.json`.
        ModelFileInvalid: `tokenizer.json` cannot be used.
        ModelUnsupported: the tokenizer's conversion from tokens to bytes is not supported.
    """
    text = folder.read_text("tokenizer.json")
    if text is None:
        looked = ", ".join(dict.fromkeys(str(place) for place in folder.folders))
        raise ModelFileNotFound(f"{folder.name} has no tokenizer.json (looked in {looked})", path=looked)
    hints = read_hints(
        folder.read_json("tokenizer_config.json"), bos_token_id=facts.bos_token_id, eos_token_ids=facts.eos_token_ids
    )
    return JSONTokenizer(text, hints)
