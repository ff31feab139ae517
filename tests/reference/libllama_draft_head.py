"""libllama's own draft heads (contexts of type MTP), one prompt at a time: what ours are held against."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.backends.llama.native import library

_SET = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
_GET = "_Z26llama_get_embeddings_nextnP13llama_context"
"""Of src/llama-ext.h, which has no bindings: C++ names."""


def libllama_guess(path: Path, token_ids: list[int]) -> NDArray[np.float32]:
    """Logits of the token after a prompt whose last token the model has not seen, from the head."""
    lib = library()
    params = lib.llama_model_default_params()
    params.use_extra_bufts, params.load_mtp = False, True
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    width = lib.llama_model_n_embd(model)
    states = np.zeros((len(token_ids), width), dtype=np.float32)
    states[1:] = _hidden_states(lib, model, token_ids[:-1], width)
    context = _context(lib, model, len(token_ids), kind=lib.LLAMA_CONTEXT_TYPE_MTP)
    batch = lib.llama_batch_ext_init(context)
    for place, token_id in enumerate(token_ids):
        index = lib.llama_batch_ext_add_token(batch, 0, token_id)
        row = states[place].ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        assert lib.llama_batch_ext_set_embd_token(batch, index, lib.llama_embd(row, 1, width))
        assert lib.llama_batch_ext_set_pos(batch, index, (ctypes.c_int32 * 1)(place))
        assert lib.llama_batch_ext_set_output_logits(batch, index, place == len(token_ids) - 1)
    assert lib.llama_process(context, lib.LLAMA_PROCESS_TYPE_DECODE, batch) == 0
    logits = lib.llama_get_logits_ith(context, len(token_ids) - 1)
    num_tokens = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    found = np.ctypeslib.as_array(logits, shape=(num_tokens,)).copy()
    lib.llama_batch_ext_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
    return found


def _hidden_states(lib: Any, model: Any, token_ids: list[int], width: int) -> NDArray[np.float32]:
    """Of the layers before the head."""
    context = _context(lib, model, len(token_ids))
    own = ctypes.CDLL(str(lib._lib._name))
    switch, get = own[_SET], own[_GET]
    switch.argtypes, switch.restype = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool], None
    get.argtypes, get.restype = [ctypes.c_void_p], ctypes.POINTER(ctypes.c_float)
    switch(context, True, False)
    array = (lib.llama_token * len(token_ids))(*token_ids)
    assert lib.llama_decode(context, lib.llama_batch_get_one(array, len(token_ids))) == 0
    found = np.ctypeslib.as_array(get(context), shape=(len(token_ids), width)).copy()
    lib.llama_free(context)
    return found


def _context(lib: Any, model: Any, num_tokens: int, kind: int = 0) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = num_tokens
    params.n_threads = params.n_threads_batch = 1
    params.ctx_type = kind
    return lib.llama_init_from_model(model, params)
