"""Encodes images and recordings with libmtmd, which may crash the process. It gets pixels and samples, never files."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.backends.llama.native import library, log_callback, log_lines
from stoker.backends.row_maker import Pixels, Rows
from stoker.core.media import MediaKind
from stoker.errors import ModelFileInvalid, ModelUnsupported

_TEXT, _IMAGE = 0, 1
_PLAIN_LOADING = 0
"""The load mode of libllama; no other mode can be combined with `no_alloc`."""
_OWN_LIMIT = -1
_TRIAL_SIDE, _TRIAL_SAMPLES = 64, 16_000


class MtmdProjector:
    """A loaded projector (mmproj) and the metadata of its text model, whose weights are not loaded. Satisfies
    `RowMaker`.

    Args:
        model: the text model's file.
        projector: the projector's file.
        threads: number of threads that compute.
        token_limits: minimum and maximum tokens of an image, where they depend on its size; 0 = the projector's own.

    Raises:
        ModelUnsupported: libllama is not installed, or cannot use this projector with this model.
        ModelFileInvalid: the text model cannot be read.
    """

    def __init__(self, model: Path, projector: Path, *, threads: int, token_limits: tuple[int, int] = (0, 0)) -> None:
        lib = library()
        from llama_cpp import mtmd_cpp

        mtmd_cpp.mtmd_log_set(log_callback(), None)  # pyright: ignore
        self._lib, self._mtmd = lib, mtmd_cpp
        self._tokenized: tuple[bytes, Any] | None = None
        """The key and the chunks of the last file that was encoded."""
        with log_lines.capture_errors() as errors:
            self._model = lib.llama_model_load_from_file(str(model).encode(), _description_only(lib))
            if not self._model:
                raise ModelFileInvalid(f"{model} cannot be read: {'; '.join(errors)}", path=str(model))
            self.width: int = lib.llama_model_n_embd_inp(self._model)
            params = mtmd_cpp.mtmd_context_params_default()
            params.use_gpu, params.print_timings, params.warmup, params.n_threads = False, False, False, threads
            params.image_min_tokens, params.image_max_tokens = (limit or _OWN_LIMIT for limit in token_limits)
            self._context = mtmd_cpp.mtmd_init_from_file(str(projector).encode(), self._model, params)
            if not self._context:
                reason = "; ".join(errors) or "libmtmd does not support it"
                raise ModelUnsupported(f"the projector {projector.name} cannot be used with {model.name}: {reason}")
        kinds: dict[MediaKind, bool] = {
            "image": mtmd_cpp.mtmd_support_vision(self._context),
            "audio": mtmd_cpp.mtmd_support_audio(self._context),
        }
        self.kinds: tuple[MediaKind, ...] = tuple(kind for kind, is_there in kinds.items() if is_there)
        self.sample_rate: int = max(0, mtmd_cpp.mtmd_get_audio_sample_rate(self._context))

    def try_out(self) -> None:
        """See `RowMaker.try_out`. Fails if rows are not finite, or if the text model lacks tokens of the layout."""
        for kind in self.kinds:
            if kind == "image":
                trial = Pixels(kind, _TRIAL_SIDE, _TRIAL_SIDE, bytes(3 * _TRIAL_SIDE**2))
            else:
                trial = Pixels(kind, _TRIAL_SAMPLES, 1, bytes(4 * _TRIAL_SAMPLES))
            parts = self.layout(trial)
            if any(isinstance(part, int) and part < 0 for part in parts):
                message = "the vocabulary of the text model lacks tokens that the projector puts around an image"
                raise ModelUnsupported(message)
            if not np.isfinite(self.encode(trial, 0, b"")).all():
                raise ModelUnsupported("the projector gives no numbers")

    def layout(self, pixels: Pixels) -> list[int | Rows]:
        """See `RowMaker.layout`."""
        found: list[int | Rows] = []
        with self._chunks(Pixels(pixels.kind, pixels.width, pixels.height)) as chunks:
            for chunk in self._each(chunks):
                found += self._part(chunk)
        return found

    def encode(self, pixels: Pixels, part: int, key: bytes) -> NDArray[np.float32]:
        """See `RowMaker.encode`."""
        chunks = self._kept(pixels, key)
        mtmd = self._mtmd
        media = [c for c in self._each(chunks) if mtmd.mtmd_input_chunk_get_type(c) != _TEXT]
        if not 0 <= part < len(media):
            raise ModelFileInvalid(f"there is no part {part} of {len(media)}")
        with log_lines.capture_errors() as errors:
            if mtmd.mtmd_encode_chunk(self._context, media[part]) != 0:
                raise ModelFileInvalid(f"it cannot be encoded: {'; '.join(errors)}")
        length = mtmd.mtmd_input_chunk_get_n_tokens(media[part])
        values = mtmd.mtmd_get_output_embd(self._context)
        return np.ctypeslib.as_array(values, (length * self.width,)).reshape(length, self.width).copy()

    def close(self) -> None:
        """Frees everything. Calling it twice is allowed."""
        self._forget()
        if self._context:
            self._mtmd.mtmd_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = None

    def _part(self, chunk: Any) -> list[int | Rows]:
        mtmd = self._mtmd
        kind = mtmd.mtmd_input_chunk_get_type(chunk)
        if kind == _TEXT:
            count = ctypes.c_size_t()
            tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
            return [int(tokens[index]) for index in range(count.value)]
        grid = None
        if kind == _IMAGE and mtmd.mtmd_decode_use_mrope(self._context):
            grid = self._grid(mtmd.mtmd_input_chunk_get_tokens_image(chunk))
        is_whole = bool(mtmd.mtmd_decode_use_non_causal(self._context, chunk))
        return [Rows(mtmd.mtmd_input_chunk_get_n_tokens(chunk), grid, is_whole)]

    def _grid(self, tokens: Any) -> tuple[int, int]:
        """The numbers of columns and rows of an image, from the place of its last row."""
        last = self._mtmd.mtmd_image_tokens_get_n_tokens(tokens) - 1
        place = self._mtmd.mtmd_image_tokens_get_decoder_pos(tokens, 0, last)
        return place.x + 1, place.y + 1

    def _kept(self, pixels: Pixels, key: bytes) -> Any:
        if self._tokenized is None or not key or self._tokenized[0] != key:
            if pixels.data is None:
                raise KeyError(key)
            self._forget()
            self._tokenized = key, self._tokenize(pixels)
        return self._tokenized[1]

    def _forget(self) -> None:
        if self._tokenized is not None:
            self._mtmd.mtmd_input_chunks_free(self._tokenized[1])
            self._tokenized = None

    @contextmanager
    def _chunks(self, pixels: Pixels) -> Generator[Any]:
        chunks = self._tokenize(pixels)
        try:
            yield chunks
        finally:
            self._mtmd.mtmd_input_chunks_free(chunks)

    def _each(self, chunks: Any) -> list[Any]:
        mtmd = self._mtmd
        return [mtmd.mtmd_input_chunks_get(chunks, index) for index in range(mtmd.mtmd_input_chunks_size(chunks))]

    def _tokenize(self, pixels: Pixels) -> Any:
        mtmd = self._mtmd
        text = mtmd.mtmd_input_text()
        text.text = mtmd.mtmd_default_marker()
        text.text_len, text.add_special, text.parse_special = len(text.text), False, True
        bitmap = self._bitmap(pixels)
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
            with log_lines.capture_errors() as errors:
                code = mtmd.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1)
            if code != 0:
                mtmd.mtmd_input_chunks_free(chunks)
                raise ModelFileInvalid(f"it cannot be made ready for the projector: {'; '.join(errors)}")
            return chunks
        finally:
            mtmd.mtmd_bitmap_free(bitmap)

    def _bitmap(self, pixels: Pixels) -> Any:
        mtmd, data = self._mtmd, pixels.data
        if pixels.kind == "image":
            assert data is None or len(data) == 3 * pixels.width * pixels.height
            buffer = None if data is None else (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
            return mtmd.mtmd_bitmap_init(pixels.width, pixels.height, buffer)
        assert data is None or len(data) == 4 * pixels.width
        samples = None if data is None else (ctypes.c_float * pixels.width).from_buffer_copy(data)
        return mtmd.mtmd_bitmap_init_from_audio(pixels.width, samples)


def _description_only(lib: Any) -> Any:
    params = lib.llama_model_default_params()
    params.no_alloc, params.load_mode, params.n_gpu_layers = True, _PLAIN_LOADING, 0
    return params
