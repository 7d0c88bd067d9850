"""Talks to a model in the terminal.

    python -m scripts.chat_cli -i sft
    python -m scripts.chat_cli -i sft -p "What is 12 times 7?"

`clear` begins a new conversation, `quit` (or Ctrl-D) ends; Ctrl-C stops an answer.
"""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from marin.errors import ConfigError, MarinError
from marin.gpt2.command import check_numbers, parse_flags, run_command, top_k_of
from marin.gpt2.opening import ModelFlags, open_model

if TYPE_CHECKING:  # JAX is imported where the model is, and `--help` needs none
    from marin.inference import Engine, SamplingOptions

Message = Mapping[str, Any]
# A terminal obeys control characters, and a model may write any: they would move the cursor, or rename the window.
_CONTROL = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "\ufffd") | {ord(kept): kept for kept in "\t\n"}


@dataclasses.dataclass(frozen=True)
class Flags(ModelFlags):
    """Flags of chat_cli, beside those of `ModelFlags`.

    Args:
        prompt: ask this, print the answer, and end; without it a conversation begins.
        temperature: 0 takes the likeliest token each time.
        top_k: how many likeliest tokens are chosen among; 0 for all.
        max_tokens: of an answer.
        seed: of the answers; by default another one each time.
    """

    prompt: Annotated[str | None, tyro.conf.arg(aliases=["-p"])] = None
    temperature: Annotated[float, tyro.conf.arg(aliases=["-t"])] = 0.6
    top_k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 50
    max_tokens: Annotated[int, tyro.conf.arg(aliases=["-m"])] = 256
    seed: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self, ("max_tokens",))
        if self.prompt is not None and not self.prompt.strip():
            raise ConfigError("`--prompt` is empty: say what to ask, or leave it out for a conversation")
        sampling_options(self)


def main() -> None:
    flags = parse_flags(Flags, __doc__)

    from marin.inference import Engine
    from marin.training.compile_cache import use_compile_cache

    use_compile_cache()
    loaded, precision = open_model(flags)
    engine = Engine(
        loaded.model, loaded.tokenizer, max_length=loaded.config.max_seq_len, max_rows=1, precision=precision
    )
    if flags.prompt is not None:
        said = "".join(answer(engine, flags, [{"role": "user", "content": flags.prompt}], []))
        print(said.strip().translate(_CONTROL))
        return
    print(f"{loaded.name}. `clear` begins a new conversation, `quit` ends.")
    messages: list[Message] = []
    while True:
        try:
            print()
            text = typed("You: ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if text in ("quit", "exit"):
            return
        if text == "clear":
            messages = []
            print("A new conversation.")
        elif text:
            messages.append({"role": "user", "content": text})
            reply = talk(engine, flags, messages)
            messages = messages[:-1] if reply is None else [*messages, reply]


def typed(question: str) -> str:
    """A line from the terminal, which can be edited there and be of any length, or from what is piped in.

    Raises:
        EOFError: there is no more.
    """
    # Without readline a terminal hands over the first 4,095 bytes of a line, and arrow keys are characters of it.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (input() uses it once it is imported; not every Python has it)
    return input(question)


def talk(engine: "Engine", flags: Flags, messages: list[Message]) -> Message | None:
    """Prints an answer as it comes, and returns it as the conversation goes on with it; None if there was none."""
    from marin.inference.tools import answer_content

    said, tokens = "", list[int]()
    print("\nModel: ", end="", flush=True)
    try:
        for piece in answer(engine, flags, messages, tokens):
            said += piece
            print(piece.translate(_CONTROL), end="", flush=True)
        if not said:
            print("(nothing: ask in another way)", end="")
    except KeyboardInterrupt:
        print(" (stopped)", end="")
    except MarinError as error:
        print(f"\nerror: {error}; `clear` begins a new conversation", file=sys.stderr)
        return None
    print()
    return {"role": "assistant", "content": answer_content(said, tokens, engine.tokenizer)} if said else None


def sampling_options(flags: Flags) -> "SamplingOptions":
    """What the flags ask for; without a seed another one each time.

    Raises:
        ConfigError: a flag is out of its range.
    """
    from marin.inference import SamplingOptions

    seed = time.time_ns() % 2**32 if flags.seed is None else flags.seed
    return SamplingOptions(flags.max_tokens, temperature=flags.temperature, top_k=top_k_of(flags.top_k), seed=seed)


def answer(engine: "Engine", flags: Flags, messages: list[Message], tokens: list[int]) -> Iterator[str]:
    """The pieces of an answer's text; what they were made of is added to `tokens`."""
    from marin.inference.prompting import chat_prompt, stop_strings
    from marin.inference.text_stream import TextStream

    prompt = chat_prompt(messages, engine.tokenizer)
    text = TextStream(engine.tokenizer, stop_strings(engine.tokenizer))
    for token in engine.stream(prompt, sampling_options(flags)):
        tokens.append(token)
        yield text.push([token])
        if text.stopped:
            return
    yield text.finish()


if __name__ == "__main__":
    run_command(main)
