"""What import statements of user files bring in, and what importing a file does to other modules."""

import ast
import functools
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping

from marin.execution.source_files import file_at, file_of_from, is_user_file, module_file, package_of
from marin.execution.top_level import changers, definitions, names_acted_on, root, run_by, statements

ALL = "*"
_WITHOUT_EFFECTS = frozenset({"__future__", "logging", "marin", "warnings"})
# Other names for modules that say which module it is, as the module's own name does.
_CUSTOMARY = {"np": "numpy", "jnp": "jax.numpy", "eqx": "equinox"}
_MODULES_OF_TYPES = frozenset({"__future__", "collections.abc", "jaxtyping", "typing"})


def imported(file: str, statement: ast.Import | ast.ImportFrom, name: str | None) -> Iterator[tuple[str, str]]:
    """The user-space definitions that an import brings in (those bound to `name`, if given): pairs (file, name)."""
    for alias in statement.names:
        if name is not None and (alias.asname or alias.name.split(".")[0]) != name:
            continue
        if isinstance(statement, ast.Import) and alias.asname is None:
            # `import a.b` binds `a`, and so all of a/__init__.py
            parts = alias.name.split(".")
            for end in range(1, len(parts) + 1):
                yield from _all_of(module_file(".".join(parts[:end])))
            continue
        if isinstance(statement, ast.Import):
            target, submodule = None, module_file(alias.name)
        elif alias.name == ALL:
            target, submodule = None, file_of_from(file, statement)
        elif statement.level:
            target, submodule = file_of_from(file, statement), file_at(package_of(file, statement) / alias.name)
        else:
            target, submodule = file_of_from(file, statement), module_file(f"{statement.module}.{alias.name}")
        if target and is_user_file(target) and alias.name in definitions(target):
            yield target, alias.name
        elif submodule and is_user_file(submodule):
            yield from _all_of(submodule)
        elif target and is_user_file(target):  # if at all, it comes from where that file imports all names
            yield target, alias.name


def _all_of(file: str | None) -> Iterator[tuple[str, str]]:
    """All definitions of a user file; none of any other."""
    if file is not None and is_user_file(file):
        yield from ((file, name) for name in definitions(file))


def files_of_stars(file: str, statement: ast.stmt) -> Iterator[str]:
    """The user files of whose names a top-level statement of `file` imports all."""
    for node in ast.walk(statement):
        if isinstance(node, ast.ImportFrom) and any(alias.name == ALL for alias in node.names):
            target = file_of_from(file, node)
            if target and is_user_file(target):
                yield target


def library_imports(file: str, statement: ast.stmt, name: str) -> Iterator[bytes]:
    """Where a name comes from that an import outside user space binds, unless the name says it or it stands for a type only."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (
                    alias.asname == name
                    and _CUSTOMARY.get(name) != alias.name
                    and not is_user_file(module_file(alias.name))
                ):
                    yield f"import {alias.name} as {name}".encode()
        elif isinstance(node, ast.ImportFrom) and node.module and node.module not in _MODULES_OF_TYPES:
            is_ours = node.module.split(".")[0] == "marin"  # whose modules may be arranged anew
            for alias in node.names:
                bound = alias.asname or alias.name
                if (
                    bound == name
                    and not (is_ours and alias.asname is None)
                    and not is_user_file(file_of_from(file, node))
                ):
                    yield f"from {'marin' if is_ours else node.module} import {alias.name} as {name}".encode()


def renamings(
    statement: ast.Import | ast.ImportFrom, name: str, brought: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """What `name` was called in each user file that an import brings it from (see `imported`): triples (name, original, file)."""
    files = dict.fromkeys(file for file, _ in brought)
    for alias in statement.names:
        if (alias.asname or alias.name.split(".")[0]) == name:
            original = alias.name if alias.asname else name
            yield from ((name, original, file) for file in files)


@functools.cache
def files_run_by(file: str) -> tuple[str, ...]:
    """The user files that run when this one is imported: the packages around it and what it imports at its top level."""
    found: list[str | None] = []
    for directory in pathlib.Path(file).parents:
        if not (directory / "__init__.py").is_file():
            break
        found.append(os.path.realpath(directory / "__init__.py"))
    for statement in statements(file):
        for node in run_by(statement):
            if isinstance(node, ast.Import):
                found += [module_file(alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found.append(file_of_from(file, node))
                found += [origin for origin, _ in imported(file, node, None)]
    return tuple(dict.fromkeys(one for one in found if one is not None and one != file and is_user_file(one)))


# By the name of an import, the definitions of user files that it brings in.
_Sources = Mapping[str, list[tuple[str, str]]]


@functools.cache
def effects(file: str) -> tuple[ast.stmt, ...]:
    """The top-level statements that change what other modules hold, as `jax.config.update(...)` and `library.SIZE = 3` do.

    So do calls of functions of the file that do such things. Calls of Marin, which start a run, and of what only prints do not count.
    """
    sources = _sources(file, (node for statement in statements(file) for node in run_by(statement)))
    acting = _acting_functions(file, sources)

    def acts(node: ast.AST) -> bool:
        return _acts(node, sources) or _called(node) in acting

    return tuple(one for one in statements(file) if any(acts(node) for node in run_by(one)))


def _sources(file: str, nodes: Iterable[ast.AST]) -> _Sources:
    """What imports among the nodes bind that may be changed."""
    sources: dict[str, list[tuple[str, str]]] = {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                module = alias.name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")
                if name != ALL and module.split(".")[0] not in _WITHOUT_EFFECTS:
                    sources.setdefault(name, []).extend(imported(file, node, name))
    return sources


def _acting_functions(file: str, sources: _Sources) -> set[str]:
    """The functions of the file that change what other modules hold, by themselves or with others that they call."""
    bodies = {
        one.name: list(ast.walk(one))[1:]
        for one in statements(file)
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    acting: set[str] = set()
    for name, nodes in bodies.items():
        known = {**sources, **_sources(file, nodes)}
        if any(_acts(node, known) for node in nodes):
            acting.add(name)
    calls = {name: {_called(node) for node in nodes} for name, nodes in bodies.items()}
    while more := {name for name, called in calls.items() if name not in acting and called & acting}:
        acting |= more
    return acting


def _called(node: ast.AST) -> str | None:
    """`a` for the statement `a(...)`."""
    match node:
        case ast.Expr(ast.Call(func=ast.Name(name))):
            return name
    return None


def _acts(node: ast.AST, sources: _Sources) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():  # may a decorator put it into a registry?
            roots = [root(one.func if isinstance(one, ast.Call) else one) for one in node.decorator_list]
            return any(name in changers(origin) for one in roots for origin, name in sources.get(one, ()))
        case ast.Expr(ast.Call(func=ast.Name("setattr"))):
            return bool(sources.keys() & set(names_acted_on(node)))
        case ast.Expr(ast.Call(func=called)):
            return root(called) in sources
        case ast.AugAssign(target=ast.Name(name)):  # `REGISTRY |= {...}` changes it in place
            return name in sources
    return bool(sources.keys() & set(names_acted_on(node)))
