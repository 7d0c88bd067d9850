"""What lies beyond the context that a model was trained with: it is computed as asked for, and said."""

import functools
import sys
from collections.abc import Sequence


def note_beyond_context(what: str, num_tokens: int, context: int, advice: str = "") -> None:
    """Says on stderr, once a process, by how much more tokens than a model was trained with are asked for.

    Args:
        what: the beginning of the sentence, which goes on with the number of tokens: "a question with its answer may have".
        num_tokens: the most of a prompt with its answer.
        context: the tokens of the sequences that the model was trained with.
        advice: how to stay within them.
    """
    if num_tokens > context:
        _say_once(
            f"note: {what} {num_tokens:,} tokens, {num_tokens - context:,} more than the {context:,} that the model was trained"
            " with: beyond those expect little of it" + (f"; {advice}" if advice else "")
        )


def note_long_answers(longest_prompt: int, max_new_tokens: int, context: int, shorter: str) -> None:
    """The same of questions and their answers.

    Args:
        shorter: what asks for answers of so many tokens at most, with `{}` for the number.
    """
    room = context - longest_prompt
    advice = f"{shorter.format(room)} keeps all within" if room > 0 else ""
    note_beyond_context("a question with its answer may have", longest_prompt + max_new_tokens, context, advice)


def note_long_choices(prompts: Sequence[int], context: int) -> None:
    """The same of questions whose answer is a letter, by their lengths."""
    beyond = sum(length > context for length in prompts)
    what = (
        f"of {len(prompts):,} multiple-choice questions {beyond:,} {'is' if beyond == 1 else 'are'} beyond the context:"
    )
    note_beyond_context(f"{what} the longest has", max(prompts, default=0), context)


@functools.cache
def _say_once(note: str) -> None:
    print(note, file=sys.stderr, flush=True)
