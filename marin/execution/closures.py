"""Whether a function or class is more than its definition says, because the call that defined it is part of it."""

import ast
import inspect
import os
from collections.abc import Iterator
from typing import Any

from marin.execution.source_files import source_file
from marin.execution.top_level import DEFINITIONS, bound_names, definitions, run_by


def depends_on_call(definition: Any) -> bool:
    """Whether what a function or class is, that was defined in a function, depends on the call that defined it.

    It does if it uses variables of the function around it, be it in a default, a decorator or a class body only, or if that
    function has several definitions of the name.
    """
    file, (top, *path) = source_file(definition), definition.__qualname__.split(".")
    functions = [definition, inspect.unwrap(definition)]
    if isinstance(definition, type):
        functions = [inspect.unwrap(getattr(one, "fget", None) or one) for one in vars(definition).values()]
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is None or (isinstance(definition, type) and os.path.realpath(code.co_filename) != file):
            continue  # what `dataclass` generates has variables of its own
        if set(code.co_freevars) - {"__class__"}:
            return True
    if getattr(definition, "__defaults__", None) or getattr(definition, "__kwdefaults__", None):
        return True
    around: list[ast.AST] = list(definitions(file).get(top, ())) if file else []
    variables: set[str] = set()
    for step in path:
        if step == "<locals>":
            variables.update(*(_variables_of(one) for one in around))
        else:
            around = [node for one in around for node in _definitions_in(one) if node.name == step]
    used = {
        node.id
        for one in around
        for node in run_by(one)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return len(around) > 1 or bool(used & variables)


def _variables_of(function: ast.AST) -> set[str]:
    """The variables of a function."""
    bound = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    return bound.union(*(bound_names(statement) for statement in getattr(function, "body", ())))


def _definitions_in(node: ast.AST) -> Iterator[Any]:
    """The functions and classes that a definition itself defines, also under conditions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, DEFINITIONS):
            yield child
        else:
            yield from _definitions_in(child)
