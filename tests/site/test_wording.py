"""Figures, names and links as they are written on pages."""

import re
import unittest.mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.site import wording


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://example.org/a?b=c#d", "https://example.org/a?b=c#d"),
        ("http://localhost:8000/", "http://localhost:8000/"),
        ("WilliamHeld.com", "https://WilliamHeld.com"),
        ("www.x.com/someone", "https://www.x.com/someone"),
        ("example.org:8443/x", "https://example.org:8443/x"),
        ("//example.org/x", "https://example.org/x"),
        (None, None),
        ("", None),
        ("javascript:alert(1)", None),
        ("JaVaScRiPt:alert(1)", None),
        (" java\tscript:alert(1)", None),
        ("javascript.com:alert(1)", None),
        ("data:text/html,<script>", None),
        ("vbscript:x", None),
        ("file:///etc/passwd", None),
        ("https://good.org@evil.org/", None),
        ("https://", None),
        ("https://a b.org", None),
        ('https://a.org/"onmouseover="x', None),
        ("https://a.org:99999/", None),
        ("https://[::1", None),
        ("https://a.org/\u202egpj.exe", None),
        ("relative/path", None),
        ("#anchor", None),
        ("https://a.org/" + "x" * 3000, None),
    ],
)
def test_safe_url_keeps_only_plain_web_links(url: str | None, expected: str | None) -> None:
    assert wording.safe_url(url) == expected


@settings(max_examples=200)
@given(st.text(max_size=30) | st.text(alphabet="javscriptdata:/.@\\\t\n x", max_size=20))
def test_safe_url_of_any_text_is_http_or_nothing(text: str) -> None:
    url = wording.safe_url(text)
    assert url is None or url.lower().startswith(("http://", "https://"))


@settings(max_examples=200)
@given(st.from_regex(wording._PLAIN_URL, fullmatch=True))
def test_a_plain_link_is_what_parsing_it_gives(url: str) -> None:
    shown = wording.safe_url(url)
    with unittest.mock.patch.object(wording, "_PLAIN_URL", re.compile("(?!)")):
        assert wording.safe_url(url) == shown == url


def test_clean_shows_direction_marks_and_controls_and_caps_the_length() -> None:
    assert wording.clean("a\u202eb\x00c\u200bd\n e") == "a\ufffdb\ufffdc\ufffdd e"
    assert wording.clean("x" * 500, 10) == "x" * 9 + "…"


def test_breakable_escapes_every_part() -> None:
    shown = str(wording.breakable("<b>/<img src=x onerror=alert(1)>_and-a-long-part/<i>"))
    assert "<b>" not in shown
    assert "<img" not in shown
    assert "<i>" not in shown
    assert "&lt;i&gt;" in shown


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.68283, "0.6828"), (1.0, "1"), (0.0, "0"), (0.9999990508, "0.999999"), (5 - 2**-50, "4.999999999999999"),
     (-0.25, "-0.25"), (3.00004, "3.00004"), (1e-9, "1e-09"), (2.5, "2.5")],
)  # fmt: skip
def test_score_beside_a_whole_number_is_not_taken_for_it(value: float, expected: str) -> None:
    assert wording.score(value) == expected


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [
        (wording.count, 154_147_328, "154 M"),
        (wording.count, 1_431_373_824, "1.43 B"),
        (wording.count, 999_999, "1.00 M"),
        (wording.count, 12, "12"),
        (wording.flops, 8.26e18, "8.26×10¹⁸"),
        (wording.flops, 0.0, "0"),
        (wording.duration, 31.42, "31.4 s"),
        (wording.duration, 1124.8, "18.7 min"),
        (wording.duration, 54527.1, "15.1 h"),
        (wording.percent, 0.2152, "21.5 %"),
        (wording.bits, 0.92724, "0.9272"),
    ],
)
def test_figures_are_written_with_their_unit(write: object, value: float, expected: str) -> None:
    assert callable(write)
    assert write(value) == expected
    assert write(None) is None


def test_size_of_a_text_is_never_nothing_where_there_is_some() -> None:
    sizes = (0, 1, 999, 1000, 51_200, 999_949, 999_950, 1_234_500_000)
    expected = ["0 B", "1 B", "999 B", "1.0 kB", "51.2 kB", "999.9 kB", "1.0 MB", "1,234.5 MB"]
    assert [wording.text_size(size) for size in sizes] == expected
