"""Whether a reply is right: numbers, texts, and code that passes its tests."""

import re
from decimal import Decimal, InvalidOperation

from marin.evaluation.chat.task import Question
from marin.evaluation.code_sandbox import run_code

_MARKED = re.compile(r"####\s*(-?[0-9.,]*[0-9])")
_BLOCK = re.compile(r"```(?:python)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def final_number(text: str) -> str | None:
    """The number after the first `####`; commas are left out. None if there is no such mark."""
    found = _MARKED.search(text)
    return found.group(1).replace(",", "") if found else None


def says_marked_number(question: Question, reply: str) -> bool:
    """Whether a reply has `#### n` with the right n (GSM8K, SpellingBee)."""
    found = final_number(reply)
    return found is not None and _same_number(found, question.answer)


def says_text(question: Question, reply: str) -> bool:
    """Whether the reply is the answer, but for spaces around it."""
    return reply.strip() == question.answer


def passes_tests(question: Question, reply: str) -> bool:
    """HumanEval: whether the code in a reply, behind the prompt's imports, passes the question's tests in the sandbox."""
    program = human_eval_program(question, reply)
    return run_code(program).passed


def human_eval_program(question: Question, reply: str) -> str:
    """What is run: imports of the prompt, the reply's code, the tests, and their call."""
    imports = [line for line in question.extra["prompt"].splitlines() if re.match(r"(import|from)\s", line)]
    parts = ["\n".join(imports), code_in(reply), question.extra["test"], f"check({question.extra['entry_point']})"]
    return "\n\n".join(parts) + "\n"


def code_in(reply: str) -> str:
    """The first fenced block of a reply, or all of it."""
    found = _BLOCK.search(reply)
    return (found.group(1) if found else reply).strip("\n")


def _same_number(found: str, answer: str) -> bool:
    try:
        return Decimal(found) == Decimal(answer.replace(",", ""))
    except InvalidOperation:
        return False
