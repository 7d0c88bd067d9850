"""JSON that a stranger wrote, read without surprises.

Python's parser takes NaN, duplicate keys, numbers too large for a float and lone surrogates; each of them lets a file
say one thing to a checker and another to a reader. All are refused here, as are files that are too large, too deep, cut
short, not regular or not UTF-8, with a `ResultsError` that names the file, the line or field, and the next step.
"""

import json
import math
import os
import re
import stat
from typing import Any, NoReturn

from marin.errors import ResultsError
from marin.storage import files

MAX_BYTES = 10 * 2**20
MAX_VALUES = 1_000_000
MAX_DEPTH = 40
_MAX_DIGITS = 40  # an integer of more digits has no meaning in a results file and is slow to convert


class _RefusedError(ValueError):
    """Raised inside the parser's hooks, which do not know the path."""


def read_json(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES, max_values: int = MAX_VALUES) -> Any:
    """The value in a JSON file.

    Raises:
        ResultsError: if the file cannot be read, or is not strict JSON within the size and depth limits.
    """
    return parse_json(read_limited(os.fspath(path), max_bytes), os.fspath(path), max_bytes, max_values)


def parse_json(data: bytes, path: str, max_bytes: int = MAX_BYTES, max_values: int = MAX_VALUES) -> Any:
    """The value in `data`; `path` is only named in errors.

    Raises:
        ResultsError: if `data` is not strict JSON within the size and depth limits.
    """
    if len(data) > max_bytes:
        raise ResultsError(f"{path}: over {max_bytes / 2**20:g} MiB: {_EXPECTED}")
    if most_values(data) > max_values:
        raise ResultsError(f"{path}: over {max_values:,} values: {_EXPECTED}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ResultsError(f"{path}: line {line}: byte {error.start} is not UTF-8: {_EXPECTED}") from None
    if text.startswith("\ufeff"):
        raise ResultsError(
            f"{path}: line 1: begins with a byte order mark: copy it again, or save it as UTF-8 without one"
        )
    if not text.strip():
        raise ResultsError(f"{path}: the file is empty: {_EXPECTED}")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite_float,
            parse_int=_short_int,
        )
    except _RefusedError as error:
        raise ResultsError(f"{path}: {_line_of(text, str(error))}{error}: {_EXPECTED}") from None
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            raise ResultsError(
                f"{path}: line {error.lineno}: the file ends in the middle of a value, so it was cut short: "
                f"copy it again from the run directory"
            ) from None
        where = f"line {error.lineno}, column {error.colno}"
        raise ResultsError(f"{path}: {where}: not valid JSON ({error.msg}): {_EXPECTED}") from None
    except RecursionError:
        raise ResultsError(f"{path}: values are nested more than {MAX_DEPTH} deep: {_EXPECTED}") from None
    _check_tree(value, text, path)
    return value


def most_values(data: bytes) -> int:
    """How many values JSON may hold at most, of which many small ones take far more time and memory than their bytes.

    Counted are commas and brackets, those in texts too.
    """
    return sum(map(data.count, (b",", b"[", b"{")))


_LINES = json.JSONDecoder(
    object_pairs_hook=lambda pairs: _unique(pairs), parse_constant=lambda name: _no_constant(name)
)
_PLAIN_LINES = json.JSONDecoder(parse_constant=lambda name: _no_constant(name))


def parse_line(line: bytes, where: str) -> dict[str, Any]:
    """The object on one line of a log, which must have no duplicate keys and no NaN; numbers are not looked at.

    Raises:
        ResultsError: naming `where`.
    """
    try:
        text = line.decode("utf-8")
        nested = text.count("{") > 1
        value, end = (_LINES if nested else _PLAIN_LINES).raw_decode(text)
        # Each pair has a colon. With as many keys as colons no key was there twice; other lines are parsed with the slow hook.
        if not nested and (type(value) is not dict or len(value) != text.count(":")):
            value, end = _LINES.raw_decode(text)
        if end != len(text):
            raise _RefusedError("more than one value on a line")
    except RecursionError:
        raise ResultsError(f"{where}: values are nested too deep for a line of a log") from None
    except ValueError as error:  # not UTF-8, not JSON, or refused
        raise ResultsError(f"{where}: {str(error)[:120]}: the file was changed after it was written") from None
    if not isinstance(value, dict):
        raise ResultsError(
            f"{where}: {type(value).__name__}, expected an object: the file was changed after it was written"
        )
    return value


_EXPECTED = "expected a JSON file as a run writes it; copy it again from the run directory, unedited"


def read_limited(path: str, max_bytes: int) -> bytes:
    """A file's first `max_bytes` + 1 bytes, so that a longer one can be told; it must be a regular file.

    Raises:
        ResultsError: if it cannot be read, or is a directory, a pipe or a device.
    """
    if not files.is_local(path):
        return files.read_bytes(path)
    try:
        # Non-blocking, so that a named pipe in a submission cannot hang the reader before its type is known.
        descriptor = os.open(files.local_path(path), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ResultsError(f"{path}: not a regular file: {_EXPECTED}")
            return stream.read(max_bytes + 1)
    except IsADirectoryError:
        raise ResultsError(f"{path}: a directory: name the speedrun_results.json inside it") from None
    except FileNotFoundError:
        raise ResultsError(
            f"{path}: no such file: check the path; `marin submit` gathers the results of a finished run"
        ) from None
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error.strerror}): check its permissions") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedError(f"the key {key[:80]!r} appears twice in one object")
            seen.add(key)
    return found


def _no_constant(name: str) -> NoReturn:
    raise _RefusedError(f"{name} is not a number (JSON has none such; an unknown value is null)")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _RefusedError(f"{digits[:40]} is too large for a number")
    return value


def _short_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _RefusedError(f"{digits[:20]}... has {len(digits)} digits, at most {_MAX_DIGITS} are read")
    return int(digits)


def _line_of(text: str, message: str) -> str:
    """The lines where a refused token may stand; the parser's hooks are not told the position."""
    token = message.split(" is ", 1)[0].split("...", 1)[0]
    key = re.match(r"the key '(.*)' appears twice", message)
    pattern = re.escape(f'"{key.group(1)}"') + r"\s*:" if key else rf"(?<![\w.\"]){re.escape(token)}"
    lines = [
        text.count("\n", 0, found.start()) + 1 for _, found in zip(range(4), re.finditer(pattern, text), strict=False)
    ]
    return f"line {' or '.join(map(str, dict.fromkeys(lines)))}: " if lines else ""


_HALF_OF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # an escape: what is decoded as UTF-8 has none of its own


def _check_tree(value: Any, text: str, path: str) -> None:
    """Refuses values that are nested too deep, and texts that cannot be written as UTF-8."""
    has_escapes = _HALF_OF_A_PAIR.search(text) is not None
    level, depth = [value], 1
    while level:
        if has_escapes:
            for node in level:
                _check_texts(node, path)
        level = [node for node in level if isinstance(node, (dict, list))]
        if level and depth > MAX_DEPTH:
            raise ResultsError(f"{path}: values are nested more than {MAX_DEPTH} deep: {_EXPECTED}")
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
        depth += 1


def _check_texts(node: Any, path: str) -> None:
    for text in (node,) if isinstance(node, str) else node if isinstance(node, dict) else ():
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise ResultsError(f"{path}: the text {text[:40]!r} has half of a surrogate pair: {_EXPECTED}")
