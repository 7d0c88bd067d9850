"""Digests of the code that users write, so that an edited model is a different model.

Code of Marin, the standard library and installed packages is named, not digested: its version is recorded elsewhere.
Everything else is user space: experiment files and `__main__`. There, a class or function stands for its definition
and every top-level definition that it refers to by name, transitively, also through imports of other user files
(`import *` too). A call of a method at the top level, such as `SIZES.append(3)`, is part of what defines the name.

The digest is taken over the syntax tree without comments, docstrings and layout, and does not depend on the Python
version or on whether the file was imported or run as a script. `if __name__ == "__main__":` blocks do not count.
It sees names, not behaviour: a name looked up with `getattr` or changed from another module goes unseen.
"""

import ast
import functools
import hashlib
import importlib.util
import inspect
import os
import pathlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from marin.errors import FingerprintError

_ALL = "*"
# Other names for modules that say which module it is, as the module's own name does.
_CUSTOMARY = {"np": "numpy", "jnp": "jax.numpy", "eqx": "equinox"}
_MODULES_OF_TYPES = frozenset({"__future__", "collections.abc", "jaxtyping", "typing"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_OMITTED_FIELDS = frozenset({"ctx", "type_comment", "kind", "type_ignores"})


def is_user_space(definition: Any) -> bool:
    """Whether a class or function is defined outside Marin, the standard library and installed packages."""
    return getattr(definition, "__module__", None) == "__main__" or _is_user_file(source_file(definition))


def source_file(definition: Any) -> str | None:
    """The file that a class or function is defined in; None for built-in ones."""
    code = getattr(inspect.unwrap(definition), "__code__", None)
    if code is not None and os.path.isfile(code.co_filename):
        return os.path.realpath(code.co_filename)
    return _module_file(getattr(definition, "__module__", None) or "")


def code_digest(definition: Any) -> str:
    """SHA-256 in hex of the code that a user-space class or function stands for.

    Raises:
        FingerprintError: there is no source file, or the definition is not found in it.
    """
    file = source_file(definition)
    name = definition.__qualname__.split(".")[0]
    if file is None or name not in _definitions(file):
        raise FingerprintError(
            f"`{definition.__qualname__}` has no definition in a source file: define it in a file with `class` or `def`"
        )
    return _digest(file, name)


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
        # what `dataclass` generates has variables of its own
        is_written = code is not None and (
            os.path.realpath(code.co_filename) == file or not isinstance(definition, type)
        )
        if is_written and set(code.co_freevars) - {"__class__"}:
            return True
    if getattr(definition, "__defaults__", None) or getattr(definition, "__kwdefaults__", None):
        return True
    around: list[ast.AST] = list(_definitions(file).get(top, ())) if file else []
    variables: set[str] = set()
    for step in path:
        if step == "<locals>":
            variables.update(*(_bound_in(one) for one in around))
        else:
            around = [node for one in around for node in _definitions_in(one) if node.name == step]
    used = {
        node.id
        for one in around
        for node in _run_by(one)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return len(around) > 1 or bool(used & variables)


def _bound_in(function: ast.AST) -> set[str]:
    """The variables of a function."""
    bound = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    return bound.union(*(_bound_names(statement) for statement in getattr(function, "body", ())))


def _definitions_in(node: ast.AST) -> Iterator[Any]:
    """The functions and classes that a definition itself defines, also under conditions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DEFINITIONS):
            yield child
        else:
            yield from _definitions_in(child)


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
    imports: list[
        tuple[str, str, str]
    ] = []  # what a file calls it, what it is called where it comes from, and that file
    waiting = [(file, name)]
    while waiting:
        here = waiting.pop()
        if here in visited:
            continue
        visited.add(here)
        definitions = _definitions(here[0])
        if here[1] not in definitions:
            for statement in definitions.get(_ALL, ()):
                for target in _files_of_stars(here[0], statement):
                    waiting.append((target, here[1]))
                    if here[1] in _definitions(target):  # the last of several stars wins
                        imports.append((here[1], f"star {len(imports)}", target))
                parts.update(_library_imports(here[0], statement, _ALL))
        for statement in definitions.get(here[1], ()):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                imported = list(_imported(here[0], statement, here[1]))
                waiting.extend(imported)
                imports.extend(_renamings(statement, here[1], imported))
                parts.update(_library_imports(here[0], statement, here[1]))
                continue
            if statement not in reached.setdefault(here[0], []):
                reached[here[0]].append(statement)
            parts.add(_dump(statement))
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    waiting.append((here[0], node.id))
                elif isinstance(node, ast.Import | ast.ImportFrom):
                    waiting.extend(_imported(here[0], node, None))
    parts.update(*(_orders(file, statements) for file, statements in reached.items()))
    return parts.union(_origins(reached, imports))


def _origins(reached: Mapping[str, list[ast.stmt]], imports: Iterable[tuple[str, str, str]]) -> Iterator[bytes]:
    """What tells apart definitions that have one name in several files, and imports that give another name to what they bring."""
    contents = {file: b";".join(sorted(_dump(statement) for statement in found)) for file, found in reached.items()}
    files_of: dict[str, set[str]] = {}
    for file, statements in reached.items():
        for name in {name for statement in statements for name in _bound_names(statement)}:
            files_of.setdefault(name, set()).add(file)
    alike = set().union(*(files for files in files_of.values() if len(files) > 1))
    for file in alike:
        yield b"together " + contents[file]
    for name, original, file in imports:
        if file in contents and (file in alike or original not in (name, _ALL)):
            yield f"import {name} {original} ".encode() + contents[file]


def _renamings(
    statement: ast.Import | ast.ImportFrom, name: str, imported: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """What `name` was called in each user file that an import brings it from."""
    files = dict.fromkeys(file for file, _ in imported)
    for alias in statement.names:
        if (alias.asname or alias.name.split(".")[0]) == name:
            original = alias.name if alias.asname else name
            yield from ((name, original, file) for file in files)


def _library_imports(file: str, statement: ast.stmt, name: str) -> Iterator[bytes]:
    """Where a name comes from that an import outside user space binds, unless the name says it or it stands for a type only."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (
                    alias.asname == name
                    and _CUSTOMARY.get(name) != alias.name
                    and not _is_user_file(_module_file(alias.name))
                ):
                    yield f"import {alias.name} as {name}".encode()
        elif isinstance(node, ast.ImportFrom) and node.module and node.module not in _MODULES_OF_TYPES:
            is_ours = node.module.split(".")[0] == "marin"  # whose modules may be arranged anew
            for alias in node.names:
                bound = alias.asname or alias.name
                if (
                    bound == name
                    and not (is_ours and alias.asname is None)
                    and not _is_user_file(_file_of_from(file, node))
                ):
                    yield f"from {'marin' if is_ours else node.module} import {alias.name} as {name}".encode()


def _orders(file: str, reached: list[ast.stmt]) -> Iterator[bytes]:
    """The dumps of those statements, in order, that make or use a name which several of them make or change."""
    for name, statements in _definitions(file).items():
        changing = [statement for statement in statements if statement in reached]
        if len(changing) > 1:
            involved = [one for one in reached if one in changing or name in _names_used_by(one)]
            involved.sort(key=lambda statement: (statement.lineno, statement.col_offset))
            yield b"in order " + b";".join(_dump(statement) for statement in involved)


@functools.cache
def _definitions(file: str) -> dict[str, list[ast.stmt]]:
    """Every top-level statement of the file under each name that it binds or changes."""
    tree = ast.parse(pathlib.Path(file).read_bytes(), file)
    definitions: dict[str, list[ast.stmt]] = {}
    statements = list(_top_level(tree))
    values = {name for statement in statements for name in _assigned_names(statement)}
    own = values.union(statement.name for statement in statements if isinstance(statement, _DEFINITIONS))
    changers = _changers(statements, own)
    for statement in statements:
        for name in {*_bound_names(statement), *_changed_names(statement, own, changers)}:
            definitions.setdefault(name, []).append(statement)
    return definitions


def _bound_names(node: ast.AST) -> Iterator[str]:
    """The top-level names that a statement binds or deletes, or of whose values it sets a part."""
    inside: Iterable[ast.AST] = ast.iter_child_nodes(node)
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            return
        case ast.Import() | ast.ImportFrom():
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            yield from _names_in(targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            yield from _names_in([target])
        case ast.Name(id=name, ctx=ast.Store()):  # of `for`, `with` or `:=`
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
        case ast.ExceptHandler(name=str(name)):
            yield name
        case ast.comprehension(iter=items, ifs=conditions):  # whose own names end with it
            inside = [items, *conditions]
        case ast.Lambda():
            return
    for child in inside:
        yield from _bound_names(child)


def _names_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    yield from (node.id for top in nodes for node in ast.walk(top) if isinstance(node, ast.Name))


def _at_top_level(statement: ast.stmt) -> Iterator[ast.AST]:
    """What a top-level statement does itself: nothing of a function or class that it defines."""
    return iter(()) if isinstance(statement, _DEFINITIONS) else ast.walk(statement)


def _run_by(statement: ast.AST) -> Iterator[ast.AST]:
    """All that is evaluated when a top-level statement runs: nothing in the body of a function that it defines."""
    yield statement
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = statement.args
        inside = [*statement.decorator_list, *arguments.defaults, *(value for value in arguments.kw_defaults if value)]
    else:
        inside = list(ast.iter_child_nodes(statement))
    for node in inside:
        yield from _run_by(node)


def _names_used_by(statement: ast.stmt) -> set[str]:
    return {node.id for node in _run_by(statement) if isinstance(node, ast.Name)}


def _assigned_names(statement: ast.stmt) -> Iterator[str]:
    """Names that stand for values, which calls of their methods may change, as `SIZES.append(3)` does."""
    for node in _at_top_level(statement):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            yield from _bound_names(node)


def _changed_names(statement: ast.stmt, own: set[str], changers: Mapping[str, set[str]]) -> set[str]:
    """Names of the file whose values a top-level statement changes, by itself or with functions of the file that it calls.

    Args:
        own: the names of the file that may be changed.
        changers: what calls of the file's functions change.
    """
    changed: set[str] = set()
    for node in _run_by(statement):
        decorators = node.decorator_list if isinstance(node, _DEFINITIONS) else []
        changed.update(own & set(_names_acted_on(node)))
        called = [*decorators, *([node.func] if isinstance(node, ast.Call) else [])]
        changed.update(*(changers[one.id] for one in called if isinstance(one, ast.Name) and one.id in changers))
        # `@REGISTRY.register` and `@REGISTRY.register("name")` change the registry
        roots = {
            _root(one.func if isinstance(one, ast.Call) else one) for one in decorators if not isinstance(one, ast.Name)
        }
        changed.update(own & roots)
    return changed


def _changers(statements: Iterable[ast.stmt], own: set[str]) -> dict[str, set[str]]:
    """The names of the file whose values each of its functions changes, by itself or with others that it calls."""
    functions = [one for one in statements if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    changed: dict[str, set[str]] = {}
    calls: dict[str, set[str]] = {}
    for function in functions:
        nodes = list(ast.walk(function))
        changed[function.name] = {name for node in nodes for name in _names_acted_on(node)} & own
        for node in nodes:
            if isinstance(node, ast.Global):
                changed[function.name].update(node.names)
        calls[function.name] = {
            node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
    for _ in functions:  # each time one call further
        for name, called in calls.items():
            changed[name].update(*(changed[other] for other in called & changed.keys()))
    return {name: names for name, names in changed.items() if names}


def _names_acted_on(node: ast.AST) -> Iterator[str]:
    """Names of whose values a statement sets a part, or calls a method, or that it hands to a call, for what that does to them."""
    match node:
        case ast.Expr(ast.Call(func=func, args=arguments)) if not (isinstance(func, ast.Name) and func.id == "print"):
            yield from (_root(one) for one in [func, *arguments] if one is not func or not isinstance(func, ast.Name))
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            yield from (_root(one) for one in targets if not isinstance(one, ast.Name))
        case ast.AugAssign(target=target) if not isinstance(target, ast.Name):
            yield _root(target)


def _root(node: ast.AST) -> str:
    """`a` for `a.b[0].c`; "" for what does not start with a name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when the file is imported: of `if __name__ == "__main__":` only its `else`."""
    for statement in tree.body:
        match statement:
            case ast.If(
                test=ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]), orelse=otherwise
            ):
                yield from otherwise
            case _:
                yield statement


def _imported(file: str, statement: ast.Import | ast.ImportFrom, name: str | None) -> Iterator[tuple[str, str]]:
    """The user-space definitions that an import brings in (those bound to `name`, if given): pairs (file, name)."""
    for alias in statement.names:
        if name is not None and (alias.asname or alias.name.split(".")[0]) != name:
            continue
        if (
            isinstance(statement, ast.Import) and alias.asname is None
        ):  # `import a.b` binds `a`, and so all of a/__init__.py
            parts = alias.name.split(".")
            for end in range(1, len(parts) + 1):
                yield from _all_of(_module_file(".".join(parts[:end])))
            continue
        if isinstance(statement, ast.Import):
            target, submodule = None, _module_file(alias.name)
        elif alias.name == _ALL:
            target, submodule = None, _file_of_from(file, statement)
        elif statement.level:
            target, submodule = _file_of_from(file, statement), _file_at(_package_of(file, statement) / alias.name)
        else:
            target, submodule = _file_of_from(file, statement), _module_file(f"{statement.module}.{alias.name}")
        if target and _is_user_file(target) and alias.name in _definitions(target):
            yield target, alias.name
        elif submodule and _is_user_file(submodule):
            yield from _all_of(submodule)
        elif target and _is_user_file(target):  # if at all, it comes from where that file imports all names
            yield target, alias.name


def _all_of(file: str | None) -> Iterator[tuple[str, str]]:
    """All definitions of a user file; none of any other."""
    if file is not None and _is_user_file(file):
        yield from ((file, name) for name in _definitions(file))


def _files_of_stars(file: str, statement: ast.stmt) -> Iterator[str]:
    """The user files of whose names a top-level statement of `file` imports all."""
    for node in ast.walk(statement):
        if isinstance(node, ast.ImportFrom) and any(alias.name == _ALL for alias in node.names):
            target = _file_of_from(file, node)
            if target and _is_user_file(target):
                yield target


def _file_of_from(file: str, statement: ast.ImportFrom) -> str | None:
    """The file of the module that `from MODULE import ...` names."""
    return _file_at(_package_of(file, statement)) if statement.level else _module_file(statement.module or "")


def _package_of(file: str, statement: ast.ImportFrom) -> pathlib.Path:
    return pathlib.Path(file).parents[statement.level - 1].joinpath(*(statement.module or "").split("."))


def _file_at(path: pathlib.Path) -> str | None:
    """The file of the module that lies at `path` (without its suffix)."""
    for candidate in (path.with_name(path.name + ".py"), path / "__init__.py"):
        if candidate.is_file():
            return os.path.realpath(candidate)
    return None


def _module_file(module: str) -> str | None:
    """The file of a module, found without importing anything but the packages of a user-space module."""
    if module == "__main__":  # not always the same: `marin explain` runs experiments
        file = getattr(sys.modules[module], "__file__", None)
        return os.path.realpath(file) if file else None
    return _find_module_file(module)


@functools.cache
def _find_module_file(module: str) -> str | None:
    loaded = sys.modules.get(module)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return os.path.realpath(file) if file else None
    top = module.split(".")[0]
    if top != module and not _is_user_package(top):
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return os.path.realpath(spec.origin) if spec and spec.has_location and spec.origin else None


def _is_user_package(name: str) -> bool:
    spec = importlib.util.find_spec(name) if name not in sys.modules else sys.modules[name].__spec__
    if spec is None:
        return False
    return all(_is_user_file(os.path.join(path, "x")) for path in spec.submodule_search_locations or ())


@functools.cache
def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {os.path.realpath(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*roots, str(pathlib.Path(__file__).resolve().parents[1]))


@functools.cache
def _is_user_file(file: str | None) -> bool:
    if file is None:
        return False
    parts = pathlib.PurePath(file)
    if {"site-packages", "dist-packages"} & set(parts.parts):
        return False
    return not any(parts.is_relative_to(root) for root in _library_roots())


def _dump(node: Any) -> bytes:
    """A syntax tree as text that is the same on every Python version: empty fields and layout are left out."""
    if isinstance(node, ast.AST):
        fields = []
        for field, value in sorted(ast.iter_fields(node)):
            if field in _OMITTED_FIELDS or value is None or value == []:
                continue
            if field == "body" and isinstance(node, _DEFINITIONS):
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
