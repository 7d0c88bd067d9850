"""Digests of the code that users write, so that an edited model is a different model.

Code of Marin, the standard library and installed packages is named, not digested: its version is recorded elsewhere.
Everything else is user space: experiment files and `__main__`. There, a class or function stands for its definition
and every top-level definition that it refers to by name, transitively, also through imports of other user files
(`import *` too), with where names of libraries are imported from. What defines a name is all that a file does to it at
its top level, in order: `SIZES.append(3)`, and calls and decorators of functions of the file that change it. What importing
the files does to other modules, such as `jax.config.update(...)`, counts too.

The digest is taken over the syntax tree without comments, docstrings and layout, and does not depend on the Python
version or on whether the file was imported or run as a script. `if __name__ == "__main__":` blocks do not count.
It sees names, not behaviour: docs/explanations/executor.md says what goes unseen.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from marin.errors import FingerprintError
from marin.execution.source_files import source_file
from marin.execution.top_level import DEFINITIONS, bound_names, definitions, names_used_by
from marin.execution.user_imports import (
    ALL,
    effects,
    files_of_stars,
    files_run_by,
    imported,
    library_imports,
    renamings,
)

_EFFECTS = "import"  # stands for what importing a file does to others; no name, as it is a keyword
_OMITTED_FIELDS = frozenset({"ctx", "type_comment", "kind", "type_ignores"})


def code_digest(definition: Any) -> str:
    """SHA-256 in hex of the code that a user-space class or function stands for.

    Raises:
        FingerprintError: there is no source file, the definition is not found in it, or code that it needs is nested too deeply.
    """
    file = source_file(definition)
    name = definition.__qualname__.split(".")[0]
    try:
        if file is None or name not in definitions(file):
            raise FingerprintError(
                f"`{definition.__qualname__}` has no definition in a source file: define it in a file with `class` or `def`"
            )
        return _digest(file, name)
    except RecursionError:
        raise FingerprintError(
            f"`{definition.__qualname__}` needs an expression that is nested too deeply to be read, as a sum of a thousand "
            "terms is: divide it into several statements"
        ) from None


@functools.cache
def _digest(file: str, name: str) -> str:
    digest = hashlib.sha256()
    for part in sorted(_reachable(file, name)):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _reachable(file: str, name: str) -> set[bytes]:
    """The dumps of all statements that the definition of `name` in `file` needs."""
    parts: set[bytes] = set()
    visited: set[tuple[str, str]] = set()
    reached: dict[str, list[ast.stmt]] = {}
    # what a file calls it, what it is called where it comes from, and that file
    imports: list[tuple[str, str, str]] = []
    waiting = [(file, name)]
    while waiting:
        here = waiting.pop()
        if here in visited:
            continue
        visited.add(here)
        if here[1] == _EFFECTS:
            waiting.extend((other, _EFFECTS) for other in files_run_by(here[0]))
        waiting.append((here[0], _EFFECTS))
        defined = definitions(here[0])
        if here[1] not in defined:
            stars: list[str] = []
            for statement in defined.get(ALL, ()):
                stars += files_of_stars(here[0], statement)
                parts.update(library_imports(here[0], statement, ALL))
            waiting.extend((target, here[1]) for target in stars)
            defining = [target for target in stars if here[1] in definitions(target)]  # of which the last one wins
            imports.extend((here[1], f"star {number}", target) for number, target in enumerate(defining))
        for statement in effects(here[0]) if here[1] == _EFFECTS else defined.get(here[1], ()):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                brought = list(imported(here[0], statement, here[1]))
                waiting.extend(brought)
                imports.extend(renamings(statement, here[1], brought))
                parts.update(library_imports(here[0], statement, here[1]))
                continue
            if statement not in reached.setdefault(here[0], []):
                reached[here[0]].append(statement)
            parts.add(_dump(statement))
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    waiting.append((here[0], node.id))
                elif isinstance(node, ast.Import | ast.ImportFrom):
                    waiting.extend(imported(here[0], node, None))
    parts.update(*(_orders(file, statements) for file, statements in reached.items()))
    return parts.union(_origins(reached, imports))


def _origins(reached: Mapping[str, list[ast.stmt]], imports: Iterable[tuple[str, str, str]]) -> Iterator[bytes]:
    """What tells apart definitions that have one name in several files, and imports that give another name to what they bring."""
    contents = {file: b";".join(sorted(_dump(statement) for statement in found)) for file, found in reached.items()}
    files_of: dict[str, set[str]] = {}
    for file, statements in reached.items():
        for name in {name for statement in statements for name in bound_names(statement)}:
            files_of.setdefault(name, set()).add(file)
    alike = set().union(*(files for files in files_of.values() if len(files) > 1))
    for file in alike:
        yield b"together " + contents[file]
    for name, original, file in imports:
        if file in contents and (file in alike or original not in (name, ALL)):
            yield f"import {name} {original} ".encode() + contents[file]


def _orders(file: str, reached: list[ast.stmt]) -> Iterator[bytes]:
    """The dumps of those statements, in order, that make or use a name which several of them make or change."""
    for name, statements in {**definitions(file), _EFFECTS: effects(file)}.items():
        changing = [statement for statement in statements if statement in reached]
        if len(changing) > 1:
            involved = [one for one in reached if one in changing or name in names_used_by(one)]
            involved.sort(key=lambda statement: (statement.lineno, statement.col_offset))
            yield b"in order " + b";".join(_dump(statement) for statement in involved)


def _dump(node: Any) -> bytes:
    """A syntax tree as text that is the same on every Python version: empty fields and layout are left out."""
    if isinstance(node, ast.AST):
        fields = []
        for field, value in sorted(ast.iter_fields(node)):
            if field in _OMITTED_FIELDS or value is None or value == []:
                continue
            if field == "body" and isinstance(node, DEFINITIONS):
                value = value[1:] if _is_docstring(value[0]) else value
            if isinstance(node, ast.JoinedStr):  # Python 3.12 ends some f-strings with an empty part, 3.11 does not
                value = [part for part in value if not (isinstance(part, ast.Constant) and part.value == "")]
            fields.append(f"{field}=".encode() + _dump(value))
        return type(node).__name__.encode() + b"(" + b",".join(fields) + b")"
    if isinstance(node, list):
        return b"[" + b",".join(_dump(item) for item in node) + b"]"
    return f"{type(node).__name__}:{node!r}".encode(errors="surrogatepass")


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
