import ast
import base64
import hashlib
import json
import pathlib
import subprocess
import sys
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin.data.corpora import python_docs
from marin.data.corpora.python_docs import (
    CorpusPackage,
    PythonDocsConfig,
    build_python_docs,
    dedent,
    docstrings,
    extract_python_docs,
    package_sources,
)
from marin.data.documents import read_documents
from marin.errors import CorpusError


@pytest.fixture(scope="module")
def corpus():
    return extract_python_docs()


def test_corpus_of_the_pinned_packages_has_the_pinned_digest(corpus):
    assert corpus.digest == python_docs.EXPECTED_DIGEST


def test_corpus_is_large_enough_and_holds_out_4_to_5_percent(corpus):
    train, heldout = (
        sum(len(document.text.encode()) for document in split) for split in (corpus.train, corpus.heldout)
    )
    assert train + heldout >= 8_000_000
    assert 0.04 <= heldout / (train + heldout) <= 0.05


def test_corpus_trains_on_no_long_paragraph_that_is_held_out(corpus):
    trained = {paragraph.strip("\n") for document in corpus.train for paragraph in document.text.split("\n\n")}
    held_out = {paragraph.strip("\n") for document in corpus.heldout for paragraph in document.text.split("\n\n")}
    assert [text for text in trained & held_out if len(text) >= python_docs.MIN_DOCSTRING_CHARS] == []


def test_corpus_written_is_the_corpus_and_its_manifest_says_so(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(python_docs, "extract_python_docs", lambda: corpus)
    build_python_docs(PythonDocsConfig(str(tmp_path)))
    manifest = json.loads((tmp_path / "corpus.json").read_text())
    assert manifest["digest"] == python_docs.EXPECTED_DIGEST
    assert manifest["heldout_digest"] == corpus.heldout_digest
    for split, documents in (("train", corpus.train), ("heldout", corpus.heldout)):
        written = tuple(read_documents(str(tmp_path / f"{split}.jsonl.zst")))
        assert written == documents
        assert manifest["splits"][split] == {
            "documents": len(written),
            "bytes": sum(len(d.text.encode()) for d in written),
        }


def test_corpus_with_another_digest_is_refused_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(python_docs, "extract_python_docs", lambda: python_docs.PythonDocs((), ()))
    with pytest.raises(CorpusError, match=python_docs.EXPECTED_DIGEST):
        build_python_docs(PythonDocsConfig(str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


# --- packages: a small distribution made for the test -------------------------------------------------------------

SOURCE = b'"""A module whose docstring is long enough to be kept."""\n'


@pytest.fixture
def install(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def _install(version="1.0", sources=None):
        sources = sources or {"tinydist/a.py": SOURCE, "tinydist/tests/test_a.py": SOURCE, "other/b.py": SOURCE}
        record = ""
        for path, source in sources.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(source)
            digest = base64.urlsafe_b64encode(hashlib.sha256(source).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(source)}\n"
        info = tmp_path / f"tinydist-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tinydist\nVersion: {version}\n")
        (info / "RECORD").write_text(record)
        listing = "".join(
            f"{line.rsplit(',', 1)[0].replace(',', ' ')}\n" for line in record.splitlines() if "tinydist/a" in line
        )
        return CorpusPackage("tinydist", version, hashlib.sha256(listing.encode()).hexdigest())

    return _install


def test_package_sources_are_its_own_files_without_tests(install):
    assert package_sources(install()) == {"tinydist/a.py": SOURCE}


def test_package_that_is_absent_is_named_with_the_next_step():
    with pytest.raises(CorpusError, match=r"no-such-package-here==1\.0.*make venv.*\.\[corpus\]"):
        package_sources(CorpusPackage("no-such-package-here", "1.0", ""))


def test_package_of_another_version_is_refused_with_both_versions(install):
    install("2.0")
    with pytest.raises(CorpusError, match=r"tinydist==1\.0, but 2\.0"):
        package_sources(CorpusPackage("tinydist", "1.0", ""))


def test_package_with_an_edited_file_is_refused_with_its_path(install, tmp_path):
    package = install()
    (tmp_path / "tinydist/a.py").write_bytes(SOURCE + b"#")
    with pytest.raises(CorpusError, match=r"tinydist/a\.py differs from the published file"):
        package_sources(package)
    (tmp_path / "tinydist/a.py").unlink()
    with pytest.raises(CorpusError, match=r"tinydist/a\.py cannot be read"):
        package_sources(package)


def test_package_built_from_other_sources_is_refused_by_name(install):
    package = install()
    install(sources={"tinydist/a.py": SOURCE + b"#"})
    with pytest.raises(CorpusError, match=r"tinydist 1\.0 is not the wheel"):
        package_sources(package)


def test_package_without_a_record_is_refused(install, tmp_path):
    package = install()
    (tmp_path / "tinydist-1.0.dist-info/RECORD").unlink()
    with pytest.raises(CorpusError, match="without a RECORD"):
        package_sources(package)


# --- docstrings ---------------------------------------------------------------------------------------------------


def test_docstrings_come_in_source_order_from_everywhere_a_definition_can_stand():
    def named(name):
        return f'"""The docstring of {name}, long enough to be kept."""'

    source = "\n".join(
        [
            named("module"),
            "class A:",
            f"    {named('A')}",
            "    def f(self):",
            f"        {named('f')}",
            "        def inner():",
            f"            {named('inner')}",
            "try:",
            "    async def g():",
            f"        {named('g')}",
            "except ValueError:",
            "    def h():",
            f"        {named('h')}",
            "else:",
            "    def i():",
            f"        {named('i')}",
            "match 1:",
            "    case 1:",
            "        def j():",
            f"            {named('j')}",
            "def short():",
            "    'too short'",
            "def surrogate():",
            r"    'A docstring that holds a lone surrogate: \ud800 and goes on'",
            r"def warns():",
            r"    'A docstring with an invalid escape, which warns: \d and goes on'",
        ]
    )
    texts = list(docstrings(source.encode()))
    assert [text.split(" of ")[1].split(",")[0] for text in texts[:-1]] == [
        "module",
        "A",
        "f",
        "inner",
        "g",
        "h",
        "i",
        "j",
    ]
    assert len(texts) == 9
    assert texts[-1].endswith(r"\d and goes on")


def test_dedent_removes_the_common_margin_and_normalizes_newlines():
    assert dedent("  First. \r\n\r\n      a\r\n    b\t \r\n\tc\r\n    ") == "First.\n\n  a\nb\n    c"


@given(st.lists(st.text("ab \t", max_size=12), max_size=8).map("\n".join))
def test_dedent_agrees_with_the_standard_library_on_plain_text(raw):
    # ast.get_docstring(clean=True) cleans by inspect.cleandoc, which leaves trailing spaces and some blank lines.
    source = f"def f():\n    {raw!r}"
    cleaned = ast.get_docstring(ast.parse(source).body[0], clean=True) or ""
    expected = "\n".join(line.rstrip() for line in cleaned.split("\n")).strip("\n")
    assert dedent(raw) == expected


def test_extraction_imports_none_of_the_packages():
    code = """
import sys
import tomllib
from marin.data.corpora.python_docs import PACKAGES, docstrings, package_sources
sources = package_sources(PACKAGES[-1])
assert sum(len(list(docstrings(source))) for source in list(sources.values())[:20]) > 0
print(sorted({package.name for package in PACKAGES} & sys.modules.keys()), "jax" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False"]


def test_packages_are_those_that_the_extra_corpus_pins():
    with open(pathlib.Path(__file__).parents[3] / "pyproject.toml", "rb") as stream:
        pinned = tomllib.load(stream)["project"]["optional-dependencies"]["corpus"]
    assert sorted(pinned) == sorted(f"{package.name}=={package.version}" for package in python_docs.PACKAGES)
