"""What a base model writes, for people to read: greedy continuations of a few beginnings, and two free samples."""

from pathlib import Path
from typing import Any

from marin.data.tokenizer import Tokenizer
from marin.inference import sample_text
from marin.nn.precision import Precision
from marin.parallel import distributed
from marin.storage import files

PROMPTS = (
    "The capital of France is",
    "The chemical symbol of gold is",
    "If yesterday was Friday, then tomorrow will be",
    "The opposite of hot is",
    "The planets of the solar system are:",
    "My favorite color is",
    "If 5 * x + 3 = 13, then x is",
)
_CONTEXT = 128
_NUM_TOKENS, _NUM_FREE_TOKENS, _NUM_FREE = 16, 96, 2


def write_samples(model: Any, tokenizer: Tokenizer, context_length: int, precision: Precision, path: Path) -> None:
    """Writes a JSON file with `prompted` (pairs of prompt and greedy continuation) and `free` (texts at temperature 1).

    Several processes must all call it; the first one writes.
    """
    context = min(context_length, _CONTEXT)
    prompted, free = [], []
    for prompt in PROMPTS:
        text = sample_text(
            model,
            tokenizer,
            context_length=context,
            precision=precision,
            prompt=prompt,
            num_tokens=_NUM_TOKENS,
            temperature=0.0,
        )
        prompted.append([prompt, text])
    for seed in range(_NUM_FREE):
        text = sample_text(
            model,
            tokenizer,
            context_length=context,
            precision=precision,
            num_tokens=_NUM_FREE_TOKENS,
            temperature=1.0,
            seed=seed,
        )
        free.append(text)
    if distributed.is_main():
        files.write_json(str(path), {"prompted": prompted, "free": free})


def samples_markdown(path: Path) -> str:
    """The samples of a file as Markdown, in blocks that nothing in them can end. A line of text stands before each, as blocks
    that only an empty line parts are one block to Markdown."""
    content = files.read_json(str(path))
    lines = [f"{prompt}{text}" for prompt, text in content["prompted"]]
    blocks = {"Beginnings, and how the model goes on greedily:": "\n".join(" ".join(line.split()) for line in lines)}
    blocks |= {f"Free sample {number}:": text for number, text in enumerate(content["free"], start=1)}
    return "\n\n".join(
        "\n".join([title, "", *(f"    {line}" for line in block.splitlines())]) for title, block in blocks.items()
    )
