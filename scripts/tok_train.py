"""Trains the tokenizer on the beginning of the text, into BASE/tokenizer.

    python -m scripts.tok_train --vocab-size 32768

Run again, it says that there is nothing to do.
"""

import dataclasses

from marin.gpt2.command import check_numbers, parse_flags, run_command
from marin.gpt2.datasets import open_dataset
from marin.gpt2.places import Places
from marin.gpt2.stages import report_section, run_stage, stage
from marin.gpt2.tokenizer import TrainGptTokenizerConfig, train_gpt_tokenizer
from marin.storage import files


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of tok_train.

    Args:
        max_chars: characters to train on.
        doc_cap: characters of one document that are used.
        vocab_size: tokens, the nine special ones included.
        dataset: climbmix, embedded, or local files (see marin.gpt2.datasets).
        text_key: the field or column of files that has the text.
        max_files: files to take, the first ones, though more may be there; -1 for all.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    max_chars: int = 2_000_000_000
    doc_cap: int = 10_000
    vocab_size: int = 32_768
    dataset: str = "climbmix"
    text_key: str = "text"
    max_files: int = -1
    base_dir: str | None = None

    def __post_init__(self) -> None:
        check_numbers(self, ("max_chars", "doc_cap", "vocab_size"), ("max_files",))


def main() -> None:
    flags = parse_flags(Flags, __doc__)
    places = Places.of(flags.base_dir)
    dataset = open_dataset(places, flags.dataset, flags.text_key, flags.max_files)
    config = TrainGptTokenizerConfig(dataset.train, flags.text_key, flags.max_chars, flags.doc_cap, flags.vocab_size)
    output = run_stage(
        places, stage("tok_train", train_gpt_tokenizer, config, places, places.tokenizer), "tokenizer.json"
    )
    if output is None:
        return
    info = files.read_json(str(output / "tokenizer_info.json"))
    figures = {
        "dataset": dataset.name,
        "vocabulary": info["vocab_size"],
        "special tokens": len(info["special_tokens"]),
        "documents": info["trained_on"]["documents"],
        "bytes of text": info["trained_on"]["bytes"],
        "digest": info["digest"],
    }
    report_section(places, "Tokenizer training", figures)
    print(f"the tokenizer of {info['vocab_size']:,} tokens is in {output}")


if __name__ == "__main__":
    run_command(main)
