"""Digests of logits as they are on every CPU, and of what they were computed from."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np

from tests.unit.native.packed import GRID_TYPES, TYPES
from tests.unit.native.tiny import Built, Slots, Tiny, build, embedded, rope_table, token_ids

MODELS = {
    "types": Tiny(
        types=TYPES, hidden_size=256, feed_forward_size=256, num_heads=8, num_kv_heads=2, head_size=32, rope_dim=32,
        is_tied=False, has_head_norms=True, has_biases=True,
    ),
    "features": Tiny(
        types=("Q8_0", "Q4_0", "F16"), activation="gelu_tanh", pairs="adjacent", head_size=48, rope_dim=40,
        windows=(33, 0), attention_softcap=2.0, logit_softcap=3.0, embedding_scale=8.0, has_post_norms=True,
    ),
    "grids": Tiny(
        types=GRID_TYPES, hidden_size=256, feed_forward_size=256, num_heads=8, head_size=32, rope_dim=32, is_tied=False,
        has_biases=True, has_head_bias=True, activation="xielu", norm="rms_biased",
    ),
    "states": Tiny(
        types=("Q8_0", "Q4_0", "F32"), mixers=("delta_net", "short_conv", "attention", "mamba2"), num_layers=4,
        has_gates=True, embedding_scale=8.0,
    ),
    "scans": Tiny(
        types=("Q8_0", "Q4_0", "F32", "F16"), mixers=("kda", "mamba", "none", "attention", "linear"), num_layers=5,
        has_sub_norms=True, has_scales=True, has_biases=True,
    ),
    "encoder": Tiny(
        types=("Q8_0", "Q4_0", "F16"), norm="layer_biased", is_encoder=True, activation="gelu_alone", rope_dim=0,
        num_kv_heads=4, has_positions=True, has_biases=True, has_slopes=True, windows=(24, 0), num_positions=128,
    ),
    "streams": Tiny(
        types=("Q8_0", "Q4_0", "F16"), has_streams=True, has_post_norms=True, has_head_norms=True, num_layers=3,
        activation="gelu_tanh", windows=(33, 0), logit_softcap=3.0, embedding_scale=8.0,
    ),
    "chunks": Tiny(
        types=("Q8_0", "Q4_0"), windows=(33, 0), has_chunks=True, pairs="adjacent", num_experts=12,
        routing="sigmoid_of_chosen", weighs_input=True, is_tied=False,
    ),
}  # fmt: skip
INPUTS = {
    "types": "c93e5e3def5e3522",
    "features": "d05b89e5fd7b97e5",
    "grids": "e85c3bd7333d1a24",
    "states": "c3bd91c29d4294f4",
    "scans": "80e82eedc2b10ed0",
    "encoder": "450a1b6e4d41f1c2",
    "streams": "502a4863fe91ab6e",
    "chunks": "b2469821effc76d9",
}
"""Of weights, rotations and token ids. Where they differ, NumPy draws or computes others, and the logits differ too."""
LOGITS = {
    ("types", "f32"): "dc835a19012a3465",
    ("types", "f16"): "6ce74a1aa74cc285",
    ("types", "q8"): "3342d98b5a2e9fc4",
    ("types", "q4"): "adaa7320d2d99a28",
    ("types", "q16"): "925f2e951c508b9c",
    ("types", "i16"): "16d5f7fcc82e8ed8",
    ("features", "f32"): "b0cd4669e0a49712",
    ("features", "f16"): "9ce21a933c1bcc62",
    ("features", "q8"): "da4ee8cf626a41dc",
    ("features", "q4"): "d6baef5fc25d8d92",
    ("features", "q16"): "e1510f826884bbb1",
    ("features", "i16"): "92b015943f225a05",
    ("grids", "f32"): "2b9c6a5fe78b11a6",
    ("grids", "f16"): "708eb0b5ef6f2b1e",
    ("grids", "q8"): "f77507142b55d4df",
    ("grids", "q4"): "a1383b7c78862ce0",
    ("grids", "q16"): "2c7798f7e2d91a43",
    ("grids", "i16"): "352d7a7d753531cd",
    ("states", "f32"): "db9104a2f41b20bd",
    ("states", "f16"): "7a438bc35b08e268",
    ("states", "q8"): "5662433f2a06e9c7",
    ("states", "q4"): "030edd25a9551598",
    ("states", "q16"): "bccf9f87b6042fa8",
    ("states", "i16"): "026deb8ae16cbd89",
    ("scans", "f32"): "0f7cfeaa848ad5ec",
    ("scans", "f16"): "70e9846f9124cfc0",
    ("scans", "q8"): "30cb28fbcfc15bd1",
    ("scans", "q4"): "cb950fbfc5f838cb",
    ("scans", "q16"): "e12fa4c34e3c4059",
    ("scans", "i16"): "e7e6eafb3951f06b",
    ("encoder", "f32"): "55e062994883f314",
    ("encoder", "f16"): "8ab14fd53ae96a26",
    ("encoder", "q8"): "e09add3b85cefab7",
    ("encoder", "q4"): "9748f661e08a4b60",
    ("encoder", "q16"): "f5d05735cb88e065",
    ("encoder", "i16"): "b930859112b6845a",
    ("streams", "f32"): "b5ac78d89fd39152",
    ("streams", "f16"): "fb84a6c642b36e2c",
    ("streams", "q8"): "b9292de03e0194ba",
    ("streams", "q4"): "4a6aad3379576d98",
    ("streams", "q16"): "5fb53878ee83c086",
    ("streams", "i16"): "28dbe83baaf4ff9a",
    ("chunks", "f32"): "1433e3b42fdf554c",
    ("chunks", "f16"): "e2cb03c727e656e4",
    ("chunks", "q8"): "c997a2588d7238bc",
    ("chunks", "q4"): "4f7cdd7d79a29835",
    ("chunks", "q16"): "ecc52b0e27be08ea",
    ("chunks", "i16"): "bbb01b235b10c1ab",
}
"""By model and type of keys and values. Who changes the arithmetic on purpose writes down what the tests then find."""
_LENGTH = 75


def inputs(model: str) -> str:
    floats = [each.astype(np.float32).tobytes() for each in _built(model).floats.values()]
    return _digest(*floats, rope_table(MODELS[model]).tobytes(), bytes(token_ids(_LENGTH, MODELS[model])))


def logits(model: str, kv_type: str, kernels: str = "") -> str:
    """Of a sequence that comes in chunks of several sizes; of an encoder its hidden states."""
    if MODELS[model].is_encoder:
        rows = embedded(_built(model), [token_ids(_LENGTH, MODELS[model])], kv_type=kv_type, kernels=kernels)[0]
        return _digest(rows.tobytes())
    decoder = _built(model).open(kv_type=kv_type, kernels=kernels)
    rows = Slots(decoder, _built(model)).all_logits(0, token_ids(_LENGTH, MODELS[model]), [1, 1, 40, 3, 20, 1])
    decoder.close()
    assert np.isfinite(rows).all()
    return _digest(rows.tobytes())


@cache
def _built(model: str) -> Built:
    return build(MODELS[model])


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]
