"""How text is cut into words before byte-level BPE, by the names that GGUF's `tokenizer.ggml.pre` gives.

The names and what they mean are llama.cpp's (src/llama-vocab.cpp); the patterns are those of the models' own tokenizer.json files. A
word is cut further by each pattern in turn; what a pattern does not match stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased_words(suffix: str) -> str:
    lead = r"[^\r\n\p{L}\p{N}]?"
    return f"{lead}{_UPPER}*{_LOWER}+{suffix}|{lead}{_UPPER}+{_LOWER}*{suffix}"


_PATTERNS: dict[str, tuple[str, ...]] = {
    "gpt2": (_GPT2,),
    "digits": (r"\p{N}", _GPT2),
    "llama3": (rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_OTHERS}|{_TAIL}",),
    "qwen2": (rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_OTHERS}|{_TAIL}",),
    "qwen35": (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}",),
    "tekken": (rf"{_cased_words('')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}",),
    "gpt4o": (rf"{_cased_words(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}",),
    "deepseek3": (
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _TAIL,
    ),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}


@dataclass(frozen=True, slots=True)
class PreType:
    """What one `tokenizer.ggml.pre` means: its patterns, whether a word that is itself a token skips the merges (`whole_words`), and
    whether a BOS is added when the file does not say."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The cuts, followed by the map from bytes to GPT-2's alphabet."""
        cuts: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _table() -> dict[str, PreType]:
    groups = {
        PreType(_PATTERNS["gpt2"]): "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 a.x-4.0 mellum gigachat",
        PreType(_PATTERNS["digits"]): "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        PreType(_PATTERNS["llama3"], whole_words=True, adds_bos=True): "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        PreType(_PATTERNS["llama3"]): "dbrx smaug-bpe glm4 chatglm-bpe",
        PreType(_PATTERNS["qwen2"]): "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2",
        PreType(_PATTERNS["qwen35"]): "qwen35",
        PreType(_PATTERNS["tekken"], whole_words=True, adds_bos=True): "tekken",
        PreType(_PATTERNS["gpt4o"]): "gpt-4o llama4 kanana2",
        PreType(_PATTERNS["deepseek3"]): "deepseek-v3 hunyuan-dense",
        PreType(_PATTERNS["default"]): "default",
    }
    return {name: pre_type for pre_type, names in groups.items() for name in names.split()}


PRE_TYPES = _table()
