"""The calculator: what it computes, and that nothing else is ever run."""

import pytest

from marin.inference.calculator import calculate


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12*7", "84"), (" 2 + 3 * (4 - 1) ", "11"), ("7/2", "3.5"), ("4/2", "2.0"), ("-3 - -5", "2"), ("1,234 + 1", "1235"), ("0.1+0.2", str(0.1 + 0.2)),
        (r"'a\d'.count('d')", "1"), ("'strawberry'.count('r')", "3"), ('"a,b,c".count(",")', "2"),
    ],
)  # fmt: skip
def test_arithmetic_and_counting_have_the_results_of_python(expression, result):
    assert calculate(expression) == result


@pytest.mark.parametrize(
    "expression",
    [
        "", "1/0", "2**9**9", "9**9", "1 if 1 else 2", "a", "True", "1+True", "x.count('r')", "'a'.upper()", "'a' * 9", "'a'.count('a', 0)", "__import__('os').system('true')",
        "().__class__", "'a'.count(*['a'])", "open('x')", "[1]", "1;2", "lambda: 1", "f'{1}'", "1e999", "1j", "(" * 190, "9" * 201, "9*" * 99 + "9999999999", "\x00", "1 // 2", "5 % 3", "1 << 9",
        "'a'.count(b'a')", "'a'.count(sub='a')",
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_has_no_result(expression):
    assert calculate(expression) is None
