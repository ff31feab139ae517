"""Encoders with random weights as ONNX folders, as optimum writes those of sentence-transformers. Made with `onnx`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tests.bert_models import SPECIAL, Bert

Output = Literal["last_hidden_state", "sentence_embedding", "logits"]


class _Graph:
    def __init__(self, bert: Bert) -> None:
        self.bert = bert
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], **attributes))
        return output

    def weight(self, name: str) -> Any:
        return self.bert.weights[name]

    def linear(self, name: str, x: str) -> str:
        product = self.add("MatMul", x, self.constant(self.weight(f"{name}.weight").T.copy()))
        return self.add("Add", product, self.constant(self.weight(f"{name}.bias")))

    def norm(self, name: str, x: str) -> str:
        scale, bias = (self.constant(self.weight(f"{name}.{part}")) for part in ("weight", "bias"))
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def heads(self, x: str) -> str:
        count = self.bert.num_heads
        shape = self.constant(np.array([0, 0, count, self.bert.hidden_size // count], dtype=np.int64))
        return self.add("Transpose", self.add("Reshape", x, shape), perm=[0, 2, 1, 3])

    def layer(self, at: str, x: str, bias: str) -> str:
        q, k, v = (self.heads(self.linear(f"{at}attention.self.{part}", x)) for part in ("query", "key", "value"))
        scale = self.constant(np.float32(np.sqrt(self.bert.hidden_size / self.bert.num_heads)))
        scores = self.add("Div", self.add("MatMul", q, self.add("Transpose", k, perm=[0, 1, 3, 2])), scale)
        mixed = self.add("MatMul", self.add("Softmax", self.add("Add", scores, bias), axis=-1), v)
        flat = self.constant(np.array([0, 0, self.bert.hidden_size], dtype=np.int64))
        joined = self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
        x = self.norm(
            f"{at}attention.output.LayerNorm", self.add("Add", x, self.linear(f"{at}attention.output.dense", joined))
        )
        up = self.linear(f"{at}intermediate.dense", x)
        erf = self.add("Erf", self.add("Div", up, self.constant(np.float32(np.sqrt(2)))))
        gelu = self.add(
            "Mul",
            self.add("Mul", up, self.constant(np.float32(0.5))),
            self.add("Add", erf, self.constant(np.float32(1))),
        )
        return self.norm(f"{at}output.LayerNorm", self.add("Add", x, self.linear(f"{at}output.dense", gelu)))


def write_encoder_folder(
    folder: Path, bert: Bert, output: Output = "last_hidden_state", pooling: str = "", **config: Any
) -> Path:
    """A whole folder; `pooling` is what sentence-transformers calls it, and `config` is added to `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_graph(folder / "model.onnx", bert, output)
    _write_tokenizer(folder / "tokenizer.json", bert.vocabulary)
    described = {
        "model_type": "bert",
        "max_position_embeddings": bert.max_tokens,
        "hidden_size": bert.hidden_size,
        "num_attention_heads": bert.num_heads,
    }
    (folder / "config.json").write_text(json.dumps({**described, **config}))
    if pooling:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    return folder


def _write_graph(path: Path, bert: Bert, output: Output) -> None:
    graph = _Graph(bert)
    at = "embeddings."
    length = graph.add("Gather", graph.add("Shape", "input_ids"), graph.constant(np.int64(1)), axis=0)
    positions = graph.add("Range", graph.constant(np.int64(0)), length, graph.constant(np.int64(1)))
    words = graph.add("Gather", graph.constant(graph.weight(at + "word_embeddings.weight")), "input_ids")
    places = graph.add("Gather", graph.constant(graph.weight(at + "position_embeddings.weight")), positions)
    types = graph.add("Gather", graph.constant(graph.weight(at + "token_type_embeddings.weight")), "token_type_ids")
    x = graph.norm(at + "LayerNorm", graph.add("Add", graph.add("Add", words, places), types))
    mask = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    missing = graph.add("Sub", mask, graph.constant(np.float32(1)))
    wide = graph.add("Unsqueeze", missing, graph.constant(np.array([1, 2], dtype=np.int64)))
    bias = graph.add("Mul", wide, graph.constant(np.float32(1e9)))
    for index in range(bert.num_layers):
        x = graph.layer(f"encoder.layer.{index}.", x, bias)
    shape: list[Any] = ["batch", bert.hidden_size]
    if output == "last_hidden_state":
        shape = ["batch", "length", bert.hidden_size]
    else:
        x = graph.add("Gather", x, graph.constant(np.int64(0)), axis=1)
    if output == "logits":
        x, shape = graph.linear("classifier", graph.add("Tanh", graph.linear("pooler.dense", x))), ["batch", 1]
    graph.nodes.append(helper.make_node("Identity", [x], [output]))
    info = helper.make_tensor_value_info
    inputs = [
        info(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    outputs = [info(output, TensorProto.FLOAT, shape)]
    proto = helper.make_model(
        helper.make_graph(graph.nodes, "encoder", inputs, outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    proto.ir_version = 10
    onnx.save(proto, path)


def _write_tokenizer(path: Path, vocabulary: Any) -> None:
    """With a truncation, as many published files have one."""
    ids = {word: index for index, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path))
