"""A `tokenizer.json` as a tiktoken encoding, where the two give the same ids for every text; else the reason why not.

The file lists merges: pairs of tokens, in the order in which they are applied. tiktoken has no pairs: it joins any two
neighbours whose bytes are a token, the token with the lowest id first. Both do the same if

- ids grow along the list of merges, and
- each token's own bytes are encoded as that token.

For then, by induction over the ids: inside a stretch of text that is about to become token c, and whose ends no merge
has crossed, the merges before c have done what they do to the bytes of c alone. That leaves the pair from which the
list makes c, so there is no other pair that tiktoken could join to c. It also makes tiktoken's short cut harmless, which
takes a whole piece that is a token for that token; `ignore_merges` in the file means the same short cut.

The regular expressions that split the text first are run by two engines, Oniguruma and Rust's. Only what means the same
in both is accepted: general categories, `\\s`, literals, classes, groups, look-ahead, and quantifiers. Anchors, `.`, `\\w`
and `{1,3}+` differ or depend on options. A pattern that does not match all text is found when it happens: the bytes
of the tokens are counted.
"""

import itertools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int32

# What `ByteLevel` splits by when it is asked to: the published GPT-2 pattern, as the `tokenizers` library writes it.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# tiktoken looks for special tokens with a regular expression that, with none, matches everywhere and costs 40 % of
# the time. This one is never allowed, so it is never taken for a token. Its id is above all others.
_NO_TOKEN = "\0<no token>"

_CATEGORY = r"\\p\{(?:L|N|Lu|Ll|Lt|Lm|Lo|M|P|S)\}"
_ESCAPE = r"\\[rntsS]|\\[^\w\s]"
_CLASS_ITEM = rf"{_CATEGORY}|{_ESCAPE}|[^\W_]-[^\W_]|[^\\\[\]^&~-]"
# Ignoring case is accepted for the published clitics only: for `ss` or `ff` one engine also matches one character.
_CLITICS = r"\(\?i:(?:\[sdmt\]\|ll\|ve\|re|'s\|'t\|'re\|'ve\|'m\|'ll\|'d)\)"
_SAME_IN_BOTH = re.compile(
    rf"(?:{_CATEGORY}|{_ESCAPE}|\[\^?(?:{_CLASS_ITEM})+\]|{_CLITICS}|\(\?[:!=]|[)|]"
    r"|[*+?][+?]?(?![*+?{])|\{\d+(?:,\d*)?\}(?![*+?{])|[^\\\[\](){}*+?|^$.])+"
)
# Texts that show most differences at once; both encoders must agree on them.
_PROBES = (
    "The quick brown fox, it's 'LL I'VE don't\t\tx\r\n\r\n  y   \n z 1234567 3.14 a_b foo(bar) --> «é»",
    "   leading and trailing   ",
    "漢字かな한국어 עברית 🙂👩‍👩‍👧 e\u0301 \u200b\x00\x7f\x85\u2028\ufeff½²Ⅷ ǅ ſ'ſ",
    "\n",
)


@dataclass(frozen=True)
class ByteBpe:
    """What tiktoken needs, and the bytes that each id stands for."""

    encoding: Any
    sizes: Int32[np.ndarray, " V"]


class NotExpressible(Exception):
    """The file means something that tiktoken cannot do; the message says what."""


def byte_bpe(spec: dict[str, Any], hf: Any) -> ByteBpe:
    """The same encoding through tiktoken.

    Args:
        spec: the parsed `tokenizer.json`.
        hf: the same, opened by `tokenizers`, with `encode_special_tokens` set.
    Raises:
        NotExpressible: tiktoken would give other ids, or is not installed.
    """
    try:
        import tiktoken
    except ImportError:
        raise NotExpressible("tiktoken is not installed") from None
    pattern = _pattern(spec)
    ranks = _ranks(spec)
    no_token = max(ranks.values()) + 1
    try:
        encoding = tiktoken.Encoding(
            "tokenizer.json", pat_str=pattern, mergeable_ranks=ranks, special_tokens={_NO_TOKEN: no_token}
        )
    except ValueError as error:
        raise NotExpressible(f"tiktoken cannot read its pattern ({str(error)[:200]})") from None
    for text in _PROBES:
        if encoding.encode_ordinary(text) != hf.encode(text, add_special_tokens=False).ids:
            raise NotExpressible(f"tiktoken encodes {text!r} differently")
    sizes = np.zeros(no_token, np.int32)
    sizes[list(ranks.values())] = [len(token) for token in ranks]
    return ByteBpe(encoding, sizes)


def encode(bpe: ByteBpe, text: str) -> Int32[np.ndarray, " n"]:
    """The ids of `text`."""
    return np.asarray(bpe.encoding.encode_to_numpy(text, disallowed_special=())).view(np.int32)


def stages_of(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer, those of sequences one after the other."""
    if pre_tokenizer is None:
        return []
    if pre_tokenizer.get("type") == "Sequence":
        return [stage for inner in pre_tokenizer.get("pretokenizers", []) for stage in stages_of(inner)]
    return [pre_tokenizer]


def byte_of_symbol() -> dict[str, int]:
    """Which byte each character of the byte-level alphabet stands for, as GPT-2 published it.

    Printable characters of Latin-1 stand for themselves; the others take the characters from U+0100 on, in order.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + index): byte for index, byte in enumerate(moved)}


def _pattern(spec: dict[str, Any]) -> str:
    if spec.get("normalizer") is not None:
        raise NotExpressible("it normalizes the text")
    stages = stages_of(spec.get("pre_tokenizer"))
    kinds = [stage.get("type") for stage in stages]
    if not stages or kinds[-1] != "ByteLevel" or kinds[:-1] not in ([], ["Split"]):
        raise NotExpressible(f"its pre-tokenizer is {kinds or 'absent'}: expected ByteLevel, or Split and ByteLevel")
    if stages[-1].get("add_prefix_space"):
        raise NotExpressible("it adds a space before the text")
    splits_by_itself = bool(stages[-1].get("use_regex", True))
    if splits_by_itself == (len(stages) == 2):
        raise NotExpressible("it splits the text twice" if splits_by_itself else "it does not split the text")
    if splits_by_itself:
        return GPT2_PATTERN
    split = stages[0]
    pattern = (split.get("pattern") or {}).get("Regex")
    if split.get("behavior") != "Isolated" or split.get("invert") or not isinstance(pattern, str):
        raise NotExpressible("its Split is not by a regular expression whose matches are the pieces")
    if not _SAME_IN_BOTH.fullmatch(pattern):
        raise NotExpressible(f"its pattern {pattern!r} may mean something else to tiktoken")
    return pattern


def _ranks(spec: dict[str, Any]) -> dict[bytes, int]:
    from tokenizers import models

    model = spec["model"]
    if model.get("type", "BPE") != "BPE":
        raise NotExpressible(f"its model is {model.get('type')}, not BPE")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(option):
            raise NotExpressible(f"its model sets `{option}`")
    ignore_merges = bool(model.get("ignore_merges"))
    vocab: dict[str, int] = model["vocab"]
    merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    added = {token["content"]: token for token in spec.get("added_tokens") or []}
    for content, token in added.items():
        if not token.get("special"):
            raise NotExpressible(f"its added token {content!r} is not special, so it is looked for in the text")
        if content in vocab and ignore_merges:
            raise NotExpressible(f"its special token {content!r} is also an ordinary one")

    targets = [vocab["".join(pair)] for pair in merges]
    if any(earlier > later for earlier, later in itertools.pairwise(targets)):
        raise NotExpressible("its merges are not in the order of their ids")
    byte_of = byte_of_symbol()
    plain = models.BPE(vocab, merges)
    ranks: dict[bytes, int] = {}
    for token, token_id in vocab.items():
        if token in added or not token or not byte_of.keys() >= set(token):
            continue
        if len(token) > 1:
            pieces = plain.tokenize(token)
            # A token that no merge makes may still be a whole piece, by the short cut; from two pieces tiktoken
            # would join it anywhere, from three or more never.
            if len(pieces) > 1 and not (ignore_merges and len(pieces) > 2):
                raise NotExpressible(f"its token {token!r} is not what its own bytes are encoded as")
        ranks[bytes(byte_of[symbol] for symbol in token)] = token_id
    if any("".join(pair) in added for pair in merges):
        raise NotExpressible("a special token is also made by a merge")
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise NotExpressible(f"the byte 0x{missing:02x} has no token")
    return ranks
