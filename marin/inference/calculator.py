"""The calculator that a model may call: arithmetic, and counting a string in another.

An expression is parsed, never evaluated as Python: numbers with + - * / and brackets, and `"text".count("part")`. Anything
else has no result. What it takes is bounded by the length of the expression.
"""

import ast
import math
import operator
import warnings

_MAX_LENGTH = 200
_MAX_DIGITS = 100
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class _NoResultError(Exception):
    pass


def calculate(expression: str) -> str | None:
    """The result as Python would print it; None where the expression has none, such as a division by zero.

    Commas within numbers are dropped, as in "1,000 + 1".
    """
    if len(expression) > _MAX_LENGTH:
        return None
    if not any(quote in expression for quote in "'\""):
        expression = expression.replace(",", "")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd text, such as "1if", which is a model's and no program of ours
            tree = ast.parse(expression.strip(), mode="eval")
        result = _count(tree.body) if isinstance(tree.body, ast.Call) else _number(tree.body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, _NoResultError):
        return None
    if isinstance(result, float) and not math.isfinite(result):
        return None
    text = str(result)
    return text if len(text) <= _MAX_DIGITS else None


def _number(node: ast.expr) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _number(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_number(node.left), _number(node.right))
    raise _NoResultError


def _count(call: ast.Call) -> int:
    function, arguments = call.func, call.args
    if (
        not isinstance(function, ast.Attribute)
        or function.attr != "count"
        or call.keywords
        or len(arguments) != 1
        or not isinstance(function.value, ast.Constant)
        or not isinstance(function.value.value, str)
        or not isinstance(arguments[0], ast.Constant)
        or not isinstance(arguments[0].value, str)
    ):
        raise _NoResultError
    return function.value.value.count(arguments[0].value)
