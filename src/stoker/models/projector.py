"""The projector of a model, a GGUF file beside it that turns images and audio into rows. It is found, not loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.core.media import MediaKind
from stoker.errors import ConfigError, ModelError, ModelFileNotFound
from stoker.models.gguf import GGUFFile, models_in, read_gguf

_ARCHITECTURES = ("clip", "mmproj")
_PREFERENCE = ("bf16", "f16", "f32", "q8_0")
"""Words of the file's name. Of several projectors the one with the first of these words is taken."""
_GEMMA4_ROWS, _GEMMA3_MERGE = 1120, 4
_OVERHEAD, _LEAST_BYTES = 1.4, 150 << 20


@dataclass(frozen=True, slots=True)
class Projector:
    """A projector's file and what it says about itself."""

    path: Path
    kinds: tuple[MediaKind, ...]
    """What it makes rows of."""
    longest_whole: int = 0
    """Most rows of an image that see each other, and so are computed in one step; 0 = rows see those before them."""


def read_projector(path: Path, *, max_tokens: int = 0) -> Projector:
    """What a file that `find_projector` found says about itself.

    Args:
        path: the file.
        max_tokens: most tokens of an image, where they depend on its size; 0 = the projector's own limit.

    Raises:
        ModelFileInvalid: it cannot be read.
    """
    with read_gguf(path) as gguf:
        encoders: dict[MediaKind, str] = {"image": "clip.has_vision_encoder", "audio": "clip.has_audio_encoder"}
        kinds: tuple[MediaKind, ...] = tuple(kind for kind, key in encoders.items() if gguf.get_bool(key))
        return Projector(path, kinds, _longest_whole(gguf, max_tokens) if "image" in kinds else 0)


def _longest_whole(gguf: GGUFFile, max_tokens: int) -> int:
    """As llama.cpp counts them: Gemma 3 has one square of rows, Gemma 4 as many rows as an image deserves."""
    kind = gguf.get_str("clip.vision.projector_type") or gguf.get_str("clip.projector_type") or ""
    if kind.startswith("gemma4"):
        return max(_GEMMA4_ROWS, max_tokens)
    if kind != "gemma3":
        return 0
    side, patch = (gguf.get_int(f"clip.vision.{name}") or 0 for name in ("image_size", "patch_size"))
    merge = gguf.get_int("clip.vision.projector.scale_factor") or _GEMMA3_MERGE
    return (side // max(1, patch * merge)) ** 2


def find_projector(model: Path, wanted: str) -> Path | None:
    """The projector that a model is served with.

    Args:
        model: the model's file.
        wanted: a path; `auto` = a GGUF file in the model's folder with `mmproj` in its name; `off` = none.

    Raises:
        ModelFileNotFound: there is no such file.
        ConfigError: the file is no projector.
    """
    if wanted == "off":
        return None
    if wanted != "auto":
        return _checked(Path(wanted).expanduser().absolute())
    found = [path for path in sorted(model.parent.glob("*.gguf")) if "mmproj" in path.name.lower() and path != model]
    fitting = [path for path in found if _is_of(path, model, len(found))]
    return _checked(min(fitting, key=_rank)) if fitting else None


def projector_bytes(projector: Path | None) -> int:
    """Memory that a projector is likely to take, with what it computes in."""
    return 0 if projector is None else encoder_bytes(projector.stat().st_size)


def encoder_bytes(num_bytes: int) -> int:
    """Memory that an encoder with weights of this size is likely to take, with what it computes in."""
    return max(_LEAST_BYTES, int(_OVERHEAD * num_bytes))


def _is_of(projector: Path, model: Path, num_projectors: int) -> bool:
    """In a folder of several models a projector belongs to the one whose name its own name has in it."""
    if len(models_in(model.parent)) <= 1:
        return True
    stem = projector.stem.lower().replace("mmproj", "").strip("-_.")
    for word in _PREFERENCE:
        stem = stem.removesuffix(word).strip("-_.")
    return bool(stem) and stem in model.stem.lower()


def _rank(path: Path) -> tuple[int, str]:
    name = path.name.lower()
    # `bf16` has `f16` in it, and is looked for first.
    return next((rank for rank, word in enumerate(_PREFERENCE) if word in name), len(_PREFERENCE)), name


def _checked(path: Path) -> Path:
    if not path.is_file():
        raise ModelFileNotFound(f"--mmproj: there is no file {path}")
    try:
        with read_gguf(path) as gguf:
            architecture = gguf.architecture
    except ModelError as error:
        raise ConfigError(f"--mmproj: {path} cannot be read: {error.message}", key="mmproj") from error
    if architecture not in _ARCHITECTURES:
        message = f"--mmproj: {path} is a model ({architecture}), not a projector"
        raise ConfigError(message, key="mmproj")
    return path
