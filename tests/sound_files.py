"""Small recordings in several formats, and a projector with random weights that hears."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from numpy.typing import NDArray

from stoker.media.wav import as_wav

RATE = 16_000
SOUND_ROWS = 375
"""What up to 30 seconds of sound become."""
_WIDTH, _HIDDEN, _LAYERS, _BANDS, _STACK, _PLACES = 64, 128, 2, 80, 4, 1500


def tone(seconds: float = 1.0, hertz: float = 440.0, rate: int = RATE) -> NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def wav(seconds: float = 1.0, hertz: float = 440.0, rate: int = RATE) -> bytes:
    return as_wav(tone(seconds, hertz, rate).astype("<f4").tobytes(), rate)


def encoded(samples: NDArray[np.float32], format: str, codec: str, rate: int = RATE) -> bytes:
    """The samples, which have `RATE`, as another format has them."""
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray((samples[None] * 32768).round().astype("int16"), format="s16", layout="mono")
        frame.sample_rate = RATE
        size = stream.codec_context.frame_size or 0
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate, frame_size=size)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return file.getvalue()


def write_sound_projector(path: Path, size: int, *, stack: int = _STACK) -> Path:
    """A projector of Ultravox's kind for a text model with embeddings of `size` numbers."""
    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", "ultravox")
    sizes = {"embedding_length": _WIDTH, "feed_forward_length": _HIDDEN, "block_count": _LAYERS}
    sizes |= {
        "projection_dim": size,
        "num_mel_bins": _BANDS,
        "attention.head_count": 4,
        "projector.stack_factor": stack,
    }
    for name, value in sizes.items():
        writer.add_uint32(f"clip.audio.{name}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    for name, values in _tensors(size, stack).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(size: int, stack: int) -> dict[str, NDArray[np.generic]]:
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> NDArray[np.generic]:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float16)

    def vector(length: int, value: float = 0.0) -> NDArray[np.generic]:
        return np.full(length, value, np.float32)

    found: dict[str, NDArray[np.generic]] = {
        "a.position_embd.weight": (rng.standard_normal((_PLACES, _WIDTH)) * 0.02).astype(np.float32),
        "a.post_ln.weight": vector(_WIDTH, 1.0),
        "a.post_ln.bias": vector(_WIDTH),
        "mm.a.mlp.1.weight": matrix(2 * _WIDTH, _WIDTH * stack),
        "mm.a.mlp.2.weight": matrix(size, _WIDTH),
        "mm.a.norm_pre.weight": vector(_WIDTH * stack, 1.0),
        "mm.a.norm_mid.weight": vector(_WIDTH, 1.0),
    }
    for index, channels in ((1, _BANDS), (2, _WIDTH)):
        found[f"a.conv1d.{index}.weight"] = matrix(_WIDTH, channels, 3)
        found[f"a.conv1d.{index}.bias"] = np.zeros((_WIDTH, 1), np.float32)
    for layer in range(_LAYERS):
        block = f"a.blk.{layer}."
        found |= {
            f"{block}{name}.weight": matrix(_WIDTH, _WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_out")
        }
        found |= {f"{block}{name}.bias": vector(_WIDTH) for name in ("attn_q", "attn_v", "attn_out", "ffn_down")}
        found |= {f"{block}ffn_up.weight": matrix(_HIDDEN, _WIDTH), f"{block}ffn_down.weight": matrix(_WIDTH, _HIDDEN)}
        found[f"{block}ffn_up.bias"] = vector(_HIDDEN)
        for name in ("ln1", "ln2"):
            found |= {f"{block}{name}.weight": vector(_WIDTH, 1.0), f"{block}{name}.bias": vector(_WIDTH)}
    return found
