"""What each top-level statement of a source file binds or changes, read from its syntax tree."""

import ast
import functools
import pathlib
from collections.abc import Iterable, Iterator

_LOGGING = frozenset({"critical", "debug", "error", "exception", "info", "log", "warning"})
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@functools.cache
def statements(file: str) -> tuple[ast.stmt, ...]:
    """The statements of the file that run when it is imported, in order."""
    return tuple(_top_level(ast.parse(pathlib.Path(file).read_bytes(), file)))


@functools.cache
def definitions(file: str) -> dict[str, list[ast.stmt]]:
    """Every top-level statement of the file under each name that it binds or changes."""
    defined: dict[str, list[ast.stmt]] = {}
    for statement in statements(file):
        for name in {*bound_names(statement), *_changed_names(statement, file)}:
            defined.setdefault(name, []).append(statement)
    return defined


@functools.cache
def _own_names(file: str) -> set[str]:
    """The names of the file whose values its statements may change."""
    values = {name for statement in statements(file) for name in _assigned_names(statement)}
    return values.union(one.name for one in statements(file) if isinstance(one, DEFINITIONS))


def bound_names(node: ast.AST) -> Iterator[str]:
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
        yield from bound_names(child)


def _names_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    yield from (node.id for top in nodes for node in ast.walk(top) if isinstance(node, ast.Name))


def _at_top_level(statement: ast.stmt) -> Iterator[ast.AST]:
    """What a top-level statement does itself: nothing of a function or class that it defines."""
    return iter(()) if isinstance(statement, DEFINITIONS) else ast.walk(statement)


def run_by(statement: ast.AST) -> Iterator[ast.AST]:
    """All that is evaluated when a top-level statement runs: nothing in the body of a function that it defines."""
    yield statement
    inside: Iterable[ast.AST] = ast.iter_child_nodes(statement)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = statement.args
        inside = [*statement.decorator_list, *arguments.defaults, *(value for value in arguments.kw_defaults if value)]
    for node in inside:
        yield from run_by(node)


def names_used_by(statement: ast.stmt) -> set[str]:
    """All names that running a top-level statement looks up or binds."""
    return {node.id for node in run_by(statement) if isinstance(node, ast.Name)}


def _assigned_names(statement: ast.stmt) -> Iterator[str]:
    """Names that stand for values, which calls of their methods may change, as `SIZES.append(3)` does."""
    for node in _at_top_level(statement):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            yield from bound_names(node)


def _changed_names(statement: ast.stmt, file: str) -> set[str]:
    """Names of the file whose values a top-level statement changes, by itself or with functions of the file that it calls."""
    own, changed_by = _own_names(file), changers(file)
    changed: set[str] = set()
    for node in run_by(statement):
        decorators = node.decorator_list if isinstance(node, DEFINITIONS) else []
        changed.update(own & set(names_acted_on(node, _loggers(file))))
        called = [*decorators, *([node.func] if isinstance(node, ast.Call) else [])]
        changed.update(*(changed_by[one.id] for one in called if isinstance(one, ast.Name) and one.id in changed_by))
        # `@REGISTRY.register` and `@REGISTRY.register("name")` change the registry
        roots = {
            root(one.func if isinstance(one, ast.Call) else one) for one in decorators if not isinstance(one, ast.Name)
        }
        changed.update(own & roots)
    return changed


@functools.cache
def changers(file: str) -> dict[str, set[str]]:
    """The names of the file whose values each of its functions changes, by itself or with others that it calls."""
    own = _own_names(file)
    functions = [one for one in statements(file) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    changed: dict[str, set[str]] = {}
    callers: dict[str, set[str]] = {}
    for function in functions:
        nodes = list(ast.walk(function))
        changed[function.name] = {name for node in nodes for name in names_acted_on(node, _loggers(file))} & own
        for node in nodes:
            if isinstance(node, ast.Global):
                changed[function.name].update(node.names)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                callers.setdefault(node.func.id, set()).add(function.name)
    waiting = [name for name, names in changed.items() if names]
    while waiting:  # each time one call further
        called = waiting.pop()
        for name in callers.get(called, ()):
            if not changed[called] <= changed[name]:
                changed[name] |= changed[called]
                waiting.append(name)
    return {name: names for name, names in changed.items() if names}


@functools.cache
def _loggers(file: str) -> frozenset[str]:
    """The names that the file binds once, to `logging.getLogger(...)`."""
    bound = [name for statement in statements(file) for name in set(bound_names(statement))]
    found = set()
    for statement in statements(file):
        match statement:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(ast.Name("logging"), "getLogger"))):
                found.add(name)
    return frozenset(name for name in found if bound.count(name) == 1)


def names_acted_on(node: ast.AST, loggers: frozenset[str] = frozenset()) -> Iterator[str]:
    """Names of whose values a statement sets a part, or calls a method, or that it hands to a call, for what that does to them.

    What only prints or logs does nothing to them.
    """
    match node:
        case ast.Expr(ast.Call(func=ast.Attribute(ast.Name(name), method))) if name in loggers and method in _LOGGING:
            return
        case ast.Expr(ast.Call(func=func, args=arguments)) if not (isinstance(func, ast.Name) and func.id == "print"):
            yield from (root(one) for one in [func, *arguments] if one is not func or not isinstance(func, ast.Name))
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            yield from (root(one) for one in targets if not isinstance(one, ast.Name))
        case ast.AugAssign(target=target) if not isinstance(target, ast.Name):
            yield root(target)


def root(node: ast.AST) -> str:
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
