"""libllama's own EAGLE-3 and assistants of Gemma 4, one prompt at a time: what ours are held against."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.backends.llama.native import library

_SET_LAYER = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
_GET_LAYER = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"
_SET_STATES = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
_GET_STATES = "_Z26llama_get_embeddings_nextnP13llama_context"
"""Of src/llama-ext.h, which has no bindings: C++ names."""

_FLOATS = ctypes.POINTER(ctypes.c_float)


def eagle_logits(model: Path, eagle: Path, token_ids: list[int], layers: tuple[int, ...]) -> NDArray[np.float32]:
    """Logits of the token after a prompt whose last token the model has not seen."""
    lib = library()
    with _opened(lib, model, len(token_ids)) as target, _opened(lib, eagle, len(token_ids), target) as drafter:
        width = lib.llama_model_n_embd(lib.llama_get_model(target))
        for layer in layers:
            _call(lib, _SET_LAYER, None, target, ctypes.c_uint32(layer), ctypes.c_bool(True))
        _compute(lib, target, token_ids[:-1])
        inputs = [
            np.ctypeslib.as_array(
                _call(lib, _GET_LAYER, _FLOATS, target, ctypes.c_uint32(layer)), shape=(len(token_ids) - 1, width)
            ).copy()
            for layer in layers
        ]
        _call(lib, _SET_STATES, None, drafter, ctypes.c_bool(True), ctypes.c_bool(True))
        fused = _fused(lib, drafter, np.concatenate(inputs, axis=-1))
        return _logits(lib, drafter, token_ids[1:], range(len(fused)), fused)


def assistant_logits(model: Path, assistant: Path, token_ids: list[int]) -> NDArray[np.float32]:
    """Logits of the token after a prompt whose last token the model has not seen."""
    lib = library()
    with (
        _opened(lib, model, len(token_ids)) as target,
        # A context that shares keys empties the cells when it is made.
        _opened(lib, assistant, len(token_ids), target, kind=lib.LLAMA_CONTEXT_TYPE_MTP) as drafter,
    ):
        width = lib.llama_model_n_embd(lib.llama_get_model(target))
        _call(lib, _SET_STATES, None, target, ctypes.c_bool(True), ctypes.c_bool(False))
        _compute(lib, target, token_ids[:-1])
        states = np.ctypeslib.as_array(
            _call(lib, _GET_STATES, _FLOATS, target), shape=(len(token_ids) - 1, width)
        ).copy()
        return _logits(lib, drafter, token_ids[-1:], [len(token_ids) - 1], states[-1:])


@contextmanager
def _opened(lib: Any, path: Path, num_tokens: int, other: Any = None, kind: int = 0) -> Generator[Any]:
    params = lib.llama_model_default_params()
    params.use_extra_bufts = False
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    assert model, path
    sizes = lib.llama_context_default_params()
    sizes.n_ctx = sizes.n_batch = sizes.n_ubatch = max(256, num_tokens)
    sizes.n_threads = sizes.n_threads_batch = 1
    sizes.ctx_type = kind
    if other is not None:
        sizes.ctx_other = other
    context = lib.llama_init_from_model(model, sizes)
    assert context, path
    yield context
    lib.llama_free(context)
    lib.llama_model_free(model)


def _call(lib: Any, name: str, result: Any, context: Any, *arguments: Any) -> Any:
    function = ctypes.CDLL(str(lib._lib._name))[name]
    function.argtypes = [ctypes.c_void_p, *(type(argument) for argument in arguments)]
    function.restype = result
    return function(context, *arguments)


def _compute(lib: Any, context: Any, token_ids: list[int]) -> None:
    array = (lib.llama_token * len(token_ids))(*token_ids)
    assert lib.llama_decode(context, lib.llama_batch_get_one(array, len(token_ids))) == 0


def _fused(lib: Any, context: Any, features: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the encoder of EAGLE-3 makes of these."""
    batch = lib.llama_batch_ext_init(context)
    features = np.ascontiguousarray(features)
    for place, row in enumerate(features):
        given = lib.llama_embd(row.ctypes.data_as(_FLOATS), 1, features.shape[1])
        index = lib.llama_batch_ext_add_embd(batch, 0, given)
        assert index == place
        assert lib.llama_batch_ext_set_pos(batch, index, (ctypes.c_int32 * 1)(place))
        assert lib.llama_batch_ext_set_output_logits(batch, index, True)
    assert lib.llama_process(context, lib.LLAMA_PROCESS_TYPE_ENCODE, batch) == 0
    width = lib.llama_model_n_embd(lib.llama_get_model(context))
    found = np.ctypeslib.as_array(_call(lib, _GET_STATES, _FLOATS, context), shape=(len(features), width)).copy()
    lib.llama_batch_ext_free(batch)
    return found


def _logits(
    lib: Any, context: Any, token_ids: list[int], positions: Any, states: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Of the last of some tokens, each with a state."""
    batch = lib.llama_batch_ext_init(context)
    states = np.ascontiguousarray(states)
    for place, (token_id, position) in enumerate(zip(token_ids, positions, strict=True)):
        index = lib.llama_batch_ext_add_token(batch, 0, token_id)
        row = states[place].ctypes.data_as(_FLOATS)
        assert lib.llama_batch_ext_set_embd_token(batch, index, lib.llama_embd(row, 1, states.shape[1]))
        assert lib.llama_batch_ext_set_pos(batch, index, (ctypes.c_int32 * 1)(position))
        assert lib.llama_batch_ext_set_output_logits(
            batch, index, True
        )  # EAGLE-3 gives all rows, whatever is asked for
    assert lib.llama_process(context, lib.LLAMA_PROCESS_TYPE_DECODE, batch) == 0
    num_tokens = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(lib.llama_get_model(context)))
    found = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, len(token_ids) - 1), shape=(num_tokens,)).copy()
    lib.llama_batch_ext_free(batch)
    return found
