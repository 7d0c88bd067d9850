"""Says how far the tokenizer compresses text of several kinds, beside GPT-2's and GPT-4's where their files are given.

    python -m scripts.tok_eval --others FOLDER    # with gpt2.json, cl100k_base.tiktoken or the like

Nothing is fetched: what has no file there is left out, and named.
"""

import dataclasses
from pathlib import Path

from marin.errors import ConfigError
from marin.gpt2.command import check_numbers, parse_flags, run_command
from marin.gpt2.datasets import open_dataset
from marin.gpt2.places import Places
from marin.gpt2.stages import report_section, run_stage
from marin.gpt2.tokenizer import COMPARISON_FILE, compare_tokenizers_step
from marin.storage import files


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of tok_eval.

    Args:
        dataset: whose beginnings are compared too: climbmix, embedded, or local files.
        text_key: the field or column of files that has the text.
        max_files: files to take, the first ones, though more may be there; -1 for all.
        others: a folder with files of other tokenizers (see marin.data.tokenizer.report); nothing is fetched.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    dataset: str = "climbmix"
    text_key: str = "text"
    max_files: int = -1
    others: str | None = None
    base_dir: str | None = None

    def __post_init__(self) -> None:
        check_numbers(self, (), ("max_files",))
        if self.others is not None and not Path(self.others).is_dir():
            raise ConfigError(
                f"`--others` is {self.others}, which is no folder: give one with files of other tokenizers"
            )


def main() -> None:
    flags = parse_flags(Flags, __doc__)
    places = Places.of(flags.base_dir)
    dataset = open_dataset(places, flags.dataset, flags.text_key, flags.max_files)
    output = run_stage(places, compare_tokenizers_step(dataset, places, flags.others), COMPARISON_FILE)
    if output is None:
        return
    found = files.read_json(str(output / COMPARISON_FILE))
    table: dict[str, dict[str, float | int]] = {}
    for kind, row in found["kinds"].items():
        rates = {f"bytes a token, {name}": rate for name, rate in row["bytes_per_token"].items()}
        table[kind] = {"bytes": row["bytes"], **rates}
        shown = "   ".join(f"{name} {rate:.2f}" for name, rate in row["bytes_per_token"].items())
        print(f"{kind:<8} {row['bytes']:>9,} bytes   bytes a token: {shown}")
    absent = ", ".join(found["absent"])
    text = f"Not compared, as `--others` names no file of it: {absent}." if absent else ""
    if text:
        print(text)
    report_section(places, "Tokenizer evaluation", {"vocabulary": found["vocab_size"], "by text": table}, text)


if __name__ == "__main__":
    run_command(main)
