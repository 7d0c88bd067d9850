import json

import pytest

from marin.data.documents import Document, Dropped, read_documents
from marin.data.filters import c4, gopher
from marin.data.filters.rules import Edit, FilterByRulesConfig, Rule, applied, filter_by_rules, filter_by_rules_step
from marin.data.shards import write_shards
from marin.errors import ConfigError, DataError
from marin.execution import Executor, ExecutorMainConfig
from marin.execution.step import InputName

PROSE = (
    "The committee met on the first day of the month to discuss the plan that had been proposed. Most of the members "
    "agreed with it, and some asked for more time to read what was written. In the end they voted to wait until the "
    "next meeting, which is held in the old town hall. Nobody was happy with that result, but it was accepted."
)


def broken(rules, text):
    """The name of the first rule that the text breaks; None if it breaks none."""
    result = applied(tuple(rules), Document("d", text, "s"))
    return result.reason if isinstance(result, Dropped) else None


def detail(rules, text):
    result = applied(tuple(rules), Document("d", text, "s"))
    assert isinstance(result, Dropped)
    return result.detail


# --- the stage ----------------------------------------------------------------------------------------------------


def test_filter_by_rules_drops_by_the_first_broken_rule_and_says_why(tmp_path):
    def too_short(text, *, least):
        return f"{len(text)} characters" if len(text) < least else None

    rules = (
        Edit("no digits", lambda text: "".join(c for c in text if not c.isdigit())),
        Rule("too short", too_short, {"least": 4}),
        Rule("shouts", lambda text: "!" if "!" in text else None),
    )
    documents = [Document(str(i), t, "s") for i, t in enumerate(["abcd", "abc1", "abcde!", "123", "12abcd", "a!"])]
    write_shards(str(tmp_path / "in"), documents, stage="make", settings={})
    filter_by_rules(FilterByRulesConfig(str(tmp_path / "in"), rules, str(tmp_path / "out")))
    assert [(d.id, d.text) for d in read_documents(str(tmp_path / "out"))] == [("0", "abcd"), ("4", "abcd")]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {reason: entry["examples"] for reason, entry in report["dropped"].items()} == {
        "too short": ["1", "5"],
        "shouts": ["2"],
        "no digits": ["3"],
    }
    assert report["settings"]["rules"][1] == {"name": "too short", "least": 4, "source": ""}


def test_filter_by_rules_names_the_document_for_which_a_rule_fails(tmp_path):
    write_shards(str(tmp_path / "in"), [Document("odd", "x", "s")], stage="make", settings={})
    rules = (Rule("bad", lambda text: 1 / 0),)
    with pytest.raises(DataError, match=r"near document 'odd': ZeroDivisionError"):
        filter_by_rules(FilterByRulesConfig(str(tmp_path / "in"), rules, str(tmp_path / "out")))


def test_filter_by_rules_with_two_rules_of_one_name_is_refused():
    rule = Rule("same", lambda text: None)
    with pytest.raises(ConfigError, match=r"two rules named 'same'"):
        FilterByRulesConfig("in", (rule, rule))
    with pytest.raises(ConfigError, match="no rules"):
        FilterByRulesConfig("in", ())


def test_filter_by_rules_step_runs_in_an_executor(tmp_path):
    write_shards(str(tmp_path / "in"), [Document("a", PROSE, "s"), Document("b", "no", "s")], stage="m", settings={})
    rules = (*gopher.quality_rules(), *gopher.repetition_rules())
    step = filter_by_rules_step("good", InputName.hardcoded(str(tmp_path / "in")), rules)
    Executor(ExecutorMainConfig(prefix=str(tmp_path / "store"))).run([step])
    (out,) = (tmp_path / "store" / "filtered").glob("good-*")
    assert [document.id for document in read_documents(str(out))] == ["a"]


# --- C4 -----------------------------------------------------------------------------------------------------------


def test_c4_keeps_prose_and_removes_lines():
    (edit,) = c4.line_rules()
    lines = [
        "A whole sentence of enough words stays.",
        "A title without an end mark",
        "Too few words.",
        "Please enable Javascript to see this page properly.",
        "This page uses cookies to make it all better.",
        "It trails off as if there were more...",
        "Some article[1] with a mark[citation needed] in it [edit] is cleaned.",
        f"Here is a {'long' * 300} word in a sentence.",
        'She said that it was "all very good indeed."',
    ]
    kept = edit.apply("\n".join(lines), **edit.settings).split("\n")
    assert kept == [lines[0], "Some article with a mark in it  is cleaned.", lines[8]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROSE, None),
        ("One sentence. And two.", "C4 few sentences"),
        (PROSE + " Lorem Ipsum dolor.", "C4 lorem ipsum"),
        (PROSE + " if (x) { y(); }", "C4 curly bracket"),
        (PROSE + " A Badword here.", "C4 blocked word"),
        (PROSE + " Abadwords here.", None),
    ],
)
def test_c4_drops_documents(text, expected):
    assert broken(c4.document_rules(blocked_words=["badword"]), text) == expected


def test_c4_curly_brackets_can_be_allowed():
    assert broken(c4.document_rules(allow_curly_brackets=True), PROSE + " {}") is None


def test_c4_document_without_a_kept_line_is_dropped_with_the_name_of_the_edit():
    assert broken(c4.line_rules(), "a title\n\nanother title") == "C4 lines"


# --- Gopher -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROSE, None),
        ("the and of to " * 12, "Gopher number of words"),
        ("the and " * 50_001, "Gopher number of words"),
        ("a b c d the and " * 10, "Gopher mean word length"),
        ("the and " + "incomprehensibilities " * 60, "Gopher mean word length"),
        (PROSE + " #" * 10, "Gopher symbols"),
        (PROSE.replace(" ", "... ", 8), "Gopher symbols"),
        ("\n".join(f"- {line}" for line in PROSE.split(".")), "Gopher bullets"),
        (PROSE + "\n" + "and so on...\nand so on…\n", "Gopher ellipses"),
        (PROSE + " 1234" * 20, "Gopher words without letters"),
        ("some words without what stops them here " * 10, "Gopher stop words"),
    ],
)
def test_gopher_quality_rules(text, expected):
    assert broken(gopher.quality_rules(), text) == expected


def test_gopher_quality_rules_of_an_empty_text_do_not_fail():
    for rule in (*gopher.quality_rules(min_words=0), *gopher.repetition_rules()):
        rule.broken_by("", **rule.settings)
        rule.broken_by(" \n ", **rule.settings)
        rule.broken_by("word", **rule.settings)


@pytest.mark.parametrize(
    ("text", "expected", "said"),
    [
        ("\n".join(["one line", "two line", "one line", "one line", "four"]), "lines", "40.0% of the lines"),
        ("\n".join([*(f"{i}" for i in range(9)), *["a line of many characters"] * 3]), "lines", "characters in repe"),
        ("a one\n\nb two\n\na one", "paragraphs", "33.3% of the paragraphs"),
    ],
)
def test_gopher_repeated_lines_and_paragraphs(text, expected, said):
    rules = [rule for rule in gopher.repetition_rules() if expected in rule.name]
    assert broken(rules, text) == f"Gopher repeated {expected}"
    assert said in detail(rules, text)


def slow_repeated_share(words, size):
    """Characters in n-grams that stood before, each once, straight from the definition."""
    seen, covered = set(), set()
    for start in range(len(words) - size + 1):
        ngram = tuple(words[start : start + size])
        if ngram in seen:
            covered.update(range(start, start + size))
        seen.add(ngram)
    return sum(len(words[i]) for i in covered) / sum(map(len, words))


def slow_top_share(words, size):
    counts = {}
    for start in range(len(words) - size + 1):
        ngram = tuple(words[start : start + size])
        counts[ngram] = counts.get(ngram, 0) + 1
    most = max(counts.values(), default=0)
    if most < 2:
        return 0.0
    return max(len("".join(ngram)) for ngram, count in counts.items() if count == most) * most / sum(map(len, words))


@pytest.mark.parametrize("seed", range(40))
def test_gopher_ngram_rules_are_their_definition(seed):
    import random

    generator = random.Random(seed)
    vocabulary = ["a", "bb", "ccc", "dddd", "eeeee"][: generator.randrange(1, 6)]
    phrase = generator.choices(vocabulary, k=generator.randrange(1, 14))
    words = []
    for _ in range(generator.randrange(1, 8)):
        words += phrase if generator.random() < 0.5 else generator.choices(vocabulary, k=generator.randrange(1, 20))
    text = " ".join(words)
    for size in range(2, 11):
        for rule, share in ((gopher.repeated_ngrams, slow_repeated_share), (gopher.top_ngrams, slow_top_share)):
            found = rule(text, limits={size: 0.0})
            expected = share(words, size)
            assert (found is None) == (expected == 0)
            if found is not None:
                assert found.startswith(f"{expected:.1%}")


def test_gopher_ngram_rules_use_the_limit_of_each_size():
    words = [f"w{i}" for i in range(100)]
    text = " ".join(words + words[:15])  # 10.8 % of the characters are repeated, in 5-grams as in 10-grams
    assert gopher.repeated_ngrams(text, limits=gopher.REPEATED_NGRAM_LIMITS).endswith("repeated 10-grams")
    assert gopher.repeated_ngrams(text, limits={5: 0.15, 10: 0.15}) is None
