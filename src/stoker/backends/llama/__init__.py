"""GGUF models on libllama, through the low-level bindings of llama-cpp-python. The only room with ctypes."""

from stoker.backends.llama.backend import LlamaBackend, LlamaOptions
from stoker.backends.llama.tokenizer import LlamaTokenizer

__all__ = ["LlamaBackend", "LlamaOptions", "LlamaTokenizer"]
