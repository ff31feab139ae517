"""Small GGUF files of models that cannot be cut back, with random weights: Mamba, and the hybrid Jamba."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

NUM_LAYERS = 4
EMBEDDING, INNER, STATE, CONV, RANK = 64, 128, 16, 4, 8
HEADS, KV_HEADS, FEED_FORWARD = 4, 2, 128
NUM_BYTES = 256
EOS = NUM_BYTES
VOCAB = NUM_BYTES + 1


class _Model:
    def __init__(self, path: Path, architecture: str) -> None:
        self.writer = GGUFWriter(path, architecture)
        self._random = np.random.default_rng(7)
        self._write_sizes()
        self._write_vocabulary()
        self.put("token_embd.weight", VOCAB, EMBEDDING)
        self.put("output.weight", VOCAB, EMBEDDING, scale=8.0)
        self.ones("output_norm.weight", EMBEDDING)

    def put(self, name: str, *shape: int, scale: float = 1.0) -> None:
        values = self._random.normal(0, scale / np.sqrt(shape[-1]), shape)
        self.writer.add_tensor(name, values.astype(np.float32))

    def ones(self, name: str, *shape: int) -> None:
        self.writer.add_tensor(name, np.ones(shape, dtype=np.float32))

    def mamba_layer(self, layer: int, *, has_norms: bool) -> None:
        block = f"blk.{layer}."
        self.put(block + "ssm_in.weight", 2 * INNER, EMBEDDING, scale=2.0)
        self.put(block + "ssm_conv1d.weight", INNER, CONV, scale=2.0)
        self.put(block + "ssm_conv1d.bias", INNER)
        self.put(block + "ssm_x.weight", RANK + 2 * STATE, INNER, scale=2.0)
        self.put(block + "ssm_dt.weight", INNER, RANK, scale=2.0)
        self.put(block + "ssm_dt.bias", INNER)
        self.writer.add_tensor(block + "ssm_a", -np.tile(np.arange(1, STATE + 1, dtype=np.float32) / 50, (INNER, 1)))
        self.ones(block + "ssm_d", INNER)
        self.put(block + "ssm_out.weight", EMBEDDING, INNER, scale=2.0)
        for name, size in [("dt", RANK), ("b", STATE), ("c", STATE)] if has_norms else ():
            self.ones(f"{block}ssm_{name}_norm.weight", size)

    def attention_layer(self, layer: int) -> None:
        block, head = f"blk.{layer}.", EMBEDDING // HEADS
        self.put(block + "attn_q.weight", EMBEDDING, EMBEDDING, scale=3.0)
        self.put(block + "attn_k.weight", KV_HEADS * head, EMBEDDING, scale=3.0)
        self.put(block + "attn_v.weight", KV_HEADS * head, EMBEDDING)
        self.put(block + "attn_output.weight", EMBEDDING, EMBEDDING)

    def feed_forward(self, layer: int) -> None:
        block = f"blk.{layer}."
        self.ones(block + "ffn_norm.weight", EMBEDDING)
        self.put(block + "ffn_gate.weight", FEED_FORWARD, EMBEDDING)
        self.put(block + "ffn_up.weight", FEED_FORWARD, EMBEDDING)
        self.put(block + "ffn_down.weight", EMBEDDING, FEED_FORWARD)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()

    def _write_sizes(self) -> None:
        writer = self.writer
        writer.add_block_count(NUM_LAYERS)
        writer.add_context_length(4096)
        writer.add_embedding_length(EMBEDDING)
        writer.add_vocab_size(VOCAB)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_ssm_conv_kernel(CONV)
        writer.add_ssm_inner_size(INNER)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_time_step_rank(RANK)

    def _write_vocabulary(self) -> None:
        """The bytes as GPT-2 spells them, and an end of text."""
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = iter(range(256, 512))
        tokens = [chr(byte) if byte in printable else chr(next(hidden)) for byte in range(NUM_BYTES)]
        self.writer.add_tokenizer_model("gpt2")
        self.writer.add_tokenizer_pre("gpt-2")
        self.writer.add_token_list([*tokens, "<|endoftext|>"])
        self.writer.add_token_types([1] * NUM_BYTES + [3])
        self.writer.add_token_merges(["a b"])
        self.writer.add_eos_token_id(EOS)


def write_mamba(path: Path) -> Path:
    """Purely recurrent: the state of a sequence has the same size at every length."""
    model = _Model(path, "mamba")
    model.writer.add_feed_forward_length(0)
    model.writer.add_head_count(0)
    for layer in range(NUM_LAYERS):
        model.ones(f"blk.{layer}.attn_norm.weight", EMBEDDING)
        model.mamba_layer(layer, has_norms=False)
    model.close()
    return path


def write_jamba(path: Path) -> Path:
    """Hybrid: every other layer is attention, so a sequence has a state and KV."""
    model = _Model(path, "jamba")
    model.writer.add_feed_forward_length(FEED_FORWARD)
    model.writer.add_head_count(HEADS)
    model.writer.add_head_count_kv([KV_HEADS * (layer % 2) for layer in range(NUM_LAYERS)])
    for layer in range(NUM_LAYERS):
        model.ones(f"blk.{layer}.attn_norm.weight", EMBEDDING)
        if layer % 2:
            model.attention_layer(layer)
        else:
            model.mamba_layer(layer, has_norms=True)
        model.feed_forward(layer)
    model.close()
    return path
