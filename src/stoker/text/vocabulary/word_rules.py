r"""The pre-tokenizers of model families, by their names in GGUF files: rules that split a text into words before BPE.

A rule is a list of regular expressions. Each expression splits the pieces that the previous ones left into its matches
and the text between them. The expressions are those of the models' `tokenizer.json` as libllama applies them,
including its deviations: `\p{Ll}` means any letter, and non-ASCII spaces belong to no class but `\s`.
See `LLAMA_VOCAB_PRE_TYPE_*` in <https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp>.
"""

from __future__ import annotations

from dataclasses import dataclass

from stoker.errors import ModelUnsupported

_S_OR_T = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _gpt4(digits: str) -> str:
    return rf"{_S_OR_T}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _gpt4o(digits: str, suffix: str = "", upper: str = r"\p{Upper}", lower: str = r"\p{Lower}") -> str:
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_LLAMA3 = _gpt4(r"\p{N}{1,3}")
_QWEN2 = _gpt4(r"\p{N}")
_ASCII_PUNCTUATED = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = rf"{_ASCII_PUNCTUATED}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_CJK = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+"
_CJK_WIDE = r"[\x{0800}-\x{9fa5}\x{ac00}-\x{d7ff}&&\S]+"
_MARKED = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+(?:{_S_OR_T})?"
_SENTENCE_PARTS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_LINES = r"[^\n]+|\n+"
_CASED = (
    r"A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}"
    r"\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}"
    r"\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}"
    r"\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}"
    r"\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}"
    r"\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}"
    r"\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}"
    r"\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}"
    r"\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}"
    r"\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}"
    r"\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}"
    r"\x{118a0}-\x{118df}\x{1e900}-\x{1e943}"
)
_ASIAN = (
    r"\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{8c48}-\x{faff}\x{3040}-\x{30ff}\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}"
    r"\x{0e40}-\x{0eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}"
    r"\x{1100}-\x{11ff}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordRule:
    """How a BPE vocabulary splits and encodes words, and its default special tokens."""

    patterns: tuple[str, ...]
    """Regular expressions for `compile_pattern`, applied in order."""
    ignores_merges: bool = False
    """A word that is a token becomes that token, even if the merges lead to other tokens."""
    adds_bos: bool = False
    adds_sep: bool = False
    has_default_bos: bool = True
    is_byte_level: bool = True
    """Tokens are spelled in GPT-2's 256 letters for bytes; otherwise as text, with `▁` for a space."""
    keeps_newline_runs: bool = False
    """A run of newlines that is a token becomes that token."""

    @property
    def looks_far_ahead(self) -> bool:
        """Whether the splits of a run of digits depend on where the run ends."""
        return any("(?=" in pattern for pattern in self.patterns)


def _rule(*patterns: str) -> WordRule:
    return WordRule(patterns=patterns)


_DIGITS_GPT2 = _rule(r"\p{N}", _GPT2)
_PLAIN_GPT2 = _rule(_GPT2)
_PLAIN_LLAMA3 = WordRule(patterns=(_LLAMA3,), ignores_merges=True, adds_bos=True)
_PLAIN_QWEN2 = _rule(_QWEN2)
_LIKE_DEEPSEEK3 = _rule(r"\p{N}{1,3}", _CJK, _DEEPSEEK3)
_LIKE_GPT4O = _rule(_gpt4o(r"\p{N}{1,3}", rf"(?:{_S_OR_T})?"))
_BERT_GPT2 = WordRule(patterns=(_GPT2,), adds_sep=True)
_GEMMA4 = WordRule(patterns=(_LINES,), is_byte_level=False, keeps_newline_runs=True, adds_bos=True)
# Groups of three digits from the right. The text before a number stays with its first group.
_GROUPED_DIGITS = r"[^\p{N}]*(?:\p{N}{1,2}(?=(?:\p{N}{3})*(?!\p{N}))|\p{N}{3})"
_BAILING = rf"{_S_OR_T}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"

_RULES: dict[tuple[str, ...], WordRule] = {
    ("", "default"): _rule(r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"): (
        _PLAIN_LLAMA3
    ),
    ("dbrx", "smaug-bpe"): _rule(_LLAMA3),
    ("chatglm-bpe",): WordRule(patterns=(_LLAMA3,), has_default_bos=False),
    ("glm4", "glm5"): WordRule(patterns=(_LLAMA3,), has_default_bos=False, ignores_merges=True),
    ("jais-2",): _rule(
        _LLAMA3.removesuffix(r"|\s+(?!\S)|\s+")
        + "".join(rf"|\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
        + r"|\s"
    ),
    ("minicpm5",): WordRule(patterns=(r"\p{N}{1,3}", _gpt4(r"\p{N}+")), ignores_merges=True),
    ("deepseek-llm",): _rule(
        r"[\r\n]", rf"\s?[{_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟、。]+", r"\s+\z", _CJK_WIDE, r"\p{N}+"
    ),
    ("deepseek-coder",): _rule(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_WIDE, r"\p{N}"),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): _LIKE_DEEPSEEK3,
    ("spark2_5",): _rule(
        r"\p{N}{1,3}",
        _CJK,
        rf"{_ASCII_PUNCTUATED}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
    ),
    ("youtu",): WordRule(
        patterns=(
            r"[\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+|[！…“”‘’—：；，\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+"
            rf"|[\x{{3105}}-\x{{312f}}]+|{_CJK}",
            rf"{_MARKED}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
        ),
        ignores_merges=True,
    ),
    ("falcon",): _rule(r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9][0-9][0-9]"),
    ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"): _DIGITS_GPT2,
    (
        "gpt-2",
        "phi-2",
        "jina-es",
        "jina-de",
        "gigachat",
        "jina-v2-es",
        "jina-v2-de",
        "a.x-4.0",
        "mellum",
        "modern-bert",
        "mpt",
        "olmo",
        "jais",
        "exaone4",
        "trillion",
        "granite-docling",
    ): _PLAIN_GPT2,
    ("jina-v1-en", "jina-v2-code", "roberta-bpe"): _BERT_GPT2,
    (
        "qwen2",
        "deepseek-r1-qwen",
        "kormo",
        "f2llmv2",
        "megrez",
        "stablelm2",
        "hunyuan",
        "solar-open",
        "grok-2",
    ): _PLAIN_QWEN2,
    ("qwen35",): _rule(
        rf"{_S_OR_T}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
    ),
    ("ufakzeka",): _rule(rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"),
    ("laguna",): _rule(_LINES, _QWEN2),
    ("poro-chat", "bloom", "gpt3-finnish"): _rule(_SENTENCE_PARTS),
    ("viking",): _rule(_SENTENCE_PARTS, r"\p{N}"),
    ("tekken",): WordRule(patterns=(_gpt4o(r"\p{N}"),), ignores_merges=True, adds_bos=True),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): _LIKE_GPT4O,
    ("granite-embed-multi-97m",): WordRule(
        patterns=(_gpt4o(r"\p{N}{1,3}", rf"(?:{_S_OR_T})?", r"\p{UpperM}", r"\p{LowerM}"),), ignores_merges=True
    ),
    ("tiny_aya", "cohere2moe"): _rule(
        _GROUPED_DIGITS, rf"{_MARKED}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    ),
    ("chameleon",): WordRule(
        patterns=(
            r"<sentinel:[0-9]+>",
            r"IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ),
    ("superbpe",): _rule(r"\p{N}+", r"(?=(?:[0-9]{3})+(?![0-9]))"),
    ("bailingmoe", "bailingmoe2", "llada-moe"): _rule(_BAILING),
    ("seed-coder",): _rule(rf"{_S_OR_T}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"),
    ("kimi-k2",): _rule(
        rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?\p{{LNotHan}}+(?:{_S_OR_T})?|\p{{N}}{{1,3}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
    ),
    ("afmoe",): _rule(
        _GROUPED_DIGITS,
        rf"[{_ASIAN}]+",
        _DEEPSEEK3,
    ),
    ("exaone-moe",): _rule(
        rf"{_S_OR_T}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    ("gemma4", "granite-embed-multi-311m"): _GEMMA4,
    ("sarvam-moe",): WordRule(patterns=(_LINES,), is_byte_level=False),
}

_BY_NAME = {name: rule for names, rule in _RULES.items() for name in names}


def word_rule(name: str) -> WordRule | None:
    """The rule of this name; None = the name is unknown."""
    return _BY_NAME.get(name)


def rule_for(model: str, pre_tokenizer: str) -> WordRule | None:
    """The word rule of a vocabulary; None for kinds of vocabularies that are not BPE.

    Args:
        model: the kind of tokenizer, as in `tokenizer.ggml.model` of a GGUF file.
        pre_tokenizer: the name of the rule; empty in old files.

    Raises:
        ModelUnsupported: the kind of tokenizer or the rule is not supported; the message names it.
    """
    if model in ("llama", "bert", "t5"):
        return None
    if model not in ("gpt2", "gemma4"):
        raise ModelUnsupported(f"tokenizers of the kind `{model}` are not supported without libllama")
    name = "gemma4" if model == "gemma4" else pre_tokenizer
    rule = word_rule(name)
    if rule is None:
        raise ModelUnsupported(f"the pre-tokenizer `{name}` is not supported without libllama", pre_tokenizer=name)
    return rule


def word_rule_names() -> list[str]:
    """The names of all rules, sorted. The empty name is for files without a name."""
    return sorted(_BY_NAME)
