"""What a results file claims about its metric, against what is known outside of it.

Bits per byte can be compared where they are of the same documents, counted in the same bytes, by the same formula. The sets below
are known by digest, so a set that was cut, and bytes that were counted otherwise, are found.
"""

import dataclasses
import math
from collections.abc import Iterator

from marin.speedrun.arithmetic import findings as arithmetic
from marin.speedrun.arithmetic.findings import close
from marin.speedrun.results import C4_EN_BPB, RunInfo
from marin.speedrun.tracks import C4_EN, FINEWEB_VALIDATION, FINEWEB_VALIDATION_TOKENS
from marin.speedrun.verdict import Finding

_SAME = 1e-9  # relative: of a figure that is stated twice
_USUAL_BYTES_A_TOKEN = 10.0  # 3 to 5 for published tokenizers, up to 7 for such whose tokens span words
_BYTES_A_TOKEN_OF_GPT2 = (4.0, 5.5)  # on English web text, where it has about 4.3 to 4.6 (from memory)
_BYTES_A_TOKEN = (0.4, 24.0)  # from a byte-level model with many documents' ends to the longest vocabularies


@dataclasses.dataclass(frozen=True)
class KnownSet:
    """A set of evaluation documents that this repository can make again."""

    name: str
    digest: str
    num_bytes: int
    num_documents: int


KNOWN_SETS = (
    KnownSet("python_docs/heldout", "34e8108935b6ec14d6b3eb233af599832722c82930e838a277958106f7ed7067", 353_495, 535),
)


def check_claims(info: RunInfo) -> list[Finding]:
    return [*_check_metric(info), *_check_set(info), *_check_loss_per_token(info)]


def _check_metric(info: RunInfo) -> Iterator[Finding]:
    block = info.evaluation
    if block is None:
        return
    if info.c4_en_bpb is not None and block.name != C4_EN:
        yield arithmetic.error(
            C4_EN_BPB, f"bits per byte on C4-EN are stated, but the evaluation is of {block.name[:60]!r}"
        )
    elif (
        info.c4_en_bpb is not None
        and block.levanter_bits_per_byte is not None
        and not close(info.c4_en_bpb, block.levanter_bits_per_byte, _SAME)
    ):
        what = (
            "the sum over all bytes"
            if block.bits_per_byte is not None and close(info.c4_en_bpb, block.bits_per_byte, _SAME)
            else "another figure"
        )
        message = f"{info.c4_en_bpb:.6g} is {what}, the published rows have the mean over batches, here {block.levanter_bits_per_byte:.6g}"
        yield arithmetic.error(C4_EN_BPB, message, block.levanter_bits_per_byte)
    elif info.c4_en_bpb is None and block.name == C4_EN and block.bits_per_byte is not None:
        message = "the evaluation is of C4-EN, and the mean over batches that its rows are ranked by is not stated"
        yield arithmetic.error(C4_EN_BPB, message, block.levanter_bits_per_byte)
    elif info.c4_en_bpb is not None and block.bits_per_byte is not None and block.levanter_bits_per_byte is None:
        yield arithmetic.error(
            "evaluation.levanter_bits_per_byte",
            "bits per byte on C4-EN are stated, and the evaluation lacks the mean over batches that they are",
        )
    version = (block.model_extra or {}).get("metric_version")
    if version not in (None, 1):
        yield arithmetic.error(
            "evaluation.metric_version",
            f"measured with version {str(version)[:20]!r} of the metric, figures here are of version 1",
        )
    if info.digests and info.digests.evaluation_set and block.digest and info.digests.evaluation_set != block.digest:
        yield arithmetic.error(
            "digests.evaluation_set", "the digest of the evaluation set is not that of the evaluation"
        )
    one, other = block.bits_per_byte, block.levanter_bits_per_byte
    if one and other and one > 0 and not 0.7 < other / one < 1.5:
        yield arithmetic.error(
            "evaluation.levanter_bits_per_byte",
            f"two ways to average the same losses give {one:.4g} and {other:.4g}: they are not of one evaluation",
        )
    if block.bytes and block.tokens and block.bytes > 0 and block.tokens > 0:
        nats = None if one is None else one * math.log(2) * block.bytes / block.tokens
        if nats is not None and block.loss is not None and not math.isclose(block.loss, nats, rel_tol=1e-6):
            yield arithmetic.error(
                "evaluation.loss",
                f"{block.loss:.6g} nats a token are not {one:.6g} bits a byte: of {block.bytes:,} bytes and {block.tokens:,} tokens they"
                f" would be {nats:.6g}",
                nats,
            )
        ratio = block.bytes / block.tokens
        if not _BYTES_A_TOKEN[0] <= ratio <= _BYTES_A_TOKEN[1]:
            yield arithmetic.error(
                "evaluation.bytes",
                f"{block.bytes:,} bytes in {block.tokens:,} tokens: no tokenizer has {ratio:.3g} bytes a token",
            )
        elif ratio > _USUAL_BYTES_A_TOKEN:
            message = f"{ratio:.3g} bytes a token: a tokenizer that has passages of the evaluation set for tokens looks so; say which one it is"
            yield arithmetic.unchecked("evaluation.tokens", message)


def _check_set(info: RunInfo) -> Iterator[Finding]:
    block = info.evaluation
    if block is None:
        return
    for known in KNOWN_SETS:
        if block.digest == known.digest:
            if block.bytes is not None and block.bytes != known.num_bytes:
                right = None if block.bits_per_byte is None else block.bits_per_byte * block.bytes / known.num_bytes
                message = f"evaluation.bytes is {block.bytes:,}, the set {known.name} of this digest has {known.num_bytes:,}: bytes were miscounted"
                yield arithmetic.error("evaluation.bytes", message, right)
            if block.documents is not None and block.documents != known.num_documents:
                message = f"evaluation.documents is {block.documents:,}, the set {known.name} of this digest has {known.num_documents:,}"
                yield arithmetic.error("evaluation.documents", message, known.num_documents)
            if block.name != known.name:
                yield arithmetic.error(
                    "evaluation.name", f"the set is called {block.name[:60]!r}, that of this digest is {known.name}"
                )
        elif block.name == known.name:
            said = f"{block.digest[:16]}..." if block.digest else "none"
            yield arithmetic.error(
                "evaluation.digest",
                f"the digest of {known.name} is {known.digest[:16]}..., this one is {said}: another version of the set",
            )


def _check_loss_per_token(info: RunInfo) -> Iterator[Finding]:
    """A loss per token can be compared where the tokens are the same: those of smaller vocabularies are easier to predict."""
    block = info.evaluation
    if block is None or block.name != FINEWEB_VALIDATION or block.loss is None:
        return
    if block.tokens is None:
        yield arithmetic.unchecked("evaluation.tokens", "a loss per token is stated, and not of how many tokens")
    elif block.tokens != FINEWEB_VALIDATION_TOKENS:
        message = f"evaluation.tokens is {block.tokens:,}, {FINEWEB_VALIDATION} has {FINEWEB_VALIDATION_TOKENS:,} tokens of GPT-2's: a loss for other tokens is another figure"
        yield arithmetic.error("evaluation.tokens", message)
    elif block.bytes and not _BYTES_A_TOKEN_OF_GPT2[0] <= block.bytes / block.tokens <= _BYTES_A_TOKEN_OF_GPT2[1]:
        low, high = _BYTES_A_TOKEN_OF_GPT2
        message = f"{block.bytes / block.tokens:.3g} bytes a token, GPT-2's tokens of such text have {low:g} to {high:g}: a loss for other tokens is another figure"
        yield arithmetic.unchecked("evaluation.tokens", message)
