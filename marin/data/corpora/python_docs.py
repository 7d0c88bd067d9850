"""An English corpus that every machine can make without a network: the docstrings of a few pinned packages.

The text comes from packages that publish one `py3-none-any` wheel for all platforms, at versions pinned by the extra
`corpus`. Nothing is imported: files are found through each distribution's RECORD, checked against the digest there, and
parsed with `ast`. Docstrings are dedented by rules written here (`inspect.cleandoc` differs between Python versions),
deduplicated by paragraph across the whole corpus, and each is one document, split by a hash of its name. The paragraph
rule is there because packages repeat themselves: without it, held-out text would also stand in the training text.

Everything is pinned: the digest of each package's sources, which names the package that differs, and the digest of the
whole corpus, so that two results with the same digest were measured on the same bytes.

It refuses to make a corpus from other versions or edited files: that would be another corpus under the same name.
"""

import ast
import base64
import csv
import hashlib
import importlib.metadata
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from marin.data.documents import Document, is_unicode, write_documents
from marin.errors import CorpusError
from marin.execution.step import ExecutorStep, this_output_path
from marin.garbage import without_collecting
from marin.storage import files

CORPUS_NAME = "python_docs"
MIN_DOCSTRING_CHARS = 40
MIN_DOCUMENT_BYTES = 100
# Of 1000 hash buckets; chosen for 4 to 5 % of the bytes. Changing it changes the digest and every published figure.
HELDOUT_BUCKETS = 44

_FEATURE_VERSION = (3, 11)  # the oldest supported Python's grammar, whichever Python runs
_TEST_PARTS = frozenset({"test", "tests", "testing"})
_SPACE = " \t\f\v\r"
# What definitions may stand in. An expression or an assignment is no such thing, and nine statements of ten are these.
_COMPOUND = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith),
    *(ast.Try, ast.TryStar, ast.ExceptHandler, ast.Match, ast.match_case),
)


@dataclass(frozen=True)
class CorpusPackage:
    """A distribution at a version, and the digest of the sources that are read from it."""

    name: str
    version: str
    sources_digest: str


# The extra `corpus` in pyproject.toml pins the same versions; a test compares the two.
PACKAGES = (
    CorpusPackage("sympy", "1.14.0", "9546cabe96646164a96d7a8cbd29828f1c5b5e7f1014138e3927f47fc46f816f"),
    CorpusPackage("networkx", "3.6.1", "3d3f2bd77e90e7c7dc6aa0032a0904964619876c3932630eddd859a786c6ba8b"),
    CorpusPackage("nltk", "3.10.4", "f3081be57880a1a90cba77c4c2cdf8df8047b90f3a2be7bace36985b80d75719"),
    CorpusPackage("dask", "2026.8.0", "f85e61af7791b10779338dbf085245b5e19dc5057f23aac03f7402501df614f1"),
    CorpusPackage("mpmath", "1.3.0", "4b4a7e602eee242573897504f4bed56e8b361b0a1922fc30662874711aad2f8d"),
    CorpusPackage("docutils", "0.23", "d0811a243c1d1ebf71cb21edf1cb759576a73348f3b5be5c88edaffd61636244"),
)
EXPECTED_DIGEST = "eda7667d3b1e74dca91076fd53cc4452a3b41401d6f0978bfe37c4cdfa09238f"

_NEXT_STEP = "run `make venv`, or `uv sync --extra corpus`, or `pip install '.[corpus]'`"


@dataclass(frozen=True)
class PythonDocsConfig:
    """Where the corpus is written. Its text is fixed by this module, and the digest puts it in the step's identity."""

    output_path: str = this_output_path()
    digest: str = EXPECTED_DIGEST


@dataclass(frozen=True)
class PythonDocs:
    """The corpus in memory."""

    train: tuple[Document, ...]
    heldout: tuple[Document, ...]

    @property
    def digest(self) -> str:
        return documents_digest([("train", self.train), ("heldout", self.heldout)])

    @property
    def heldout_digest(self) -> str:
        return documents_digest([("heldout", self.heldout)])


def python_docs_step() -> ExecutorStep:
    """The step that writes `train.jsonl.zst`, `heldout.jsonl.zst` and `corpus.json`."""
    return ExecutorStep(
        name="corpora/python_docs",
        fn=build_python_docs,
        config=PythonDocsConfig(),
        description="docstrings of pinned packages, about 9 MB of technical English",
    )


def build_python_docs(config: PythonDocsConfig) -> None:
    """Extracts the corpus, checks its digest, and writes both splits and `corpus.json`, the last of them last.

    Raises:
        CorpusError: a package is absent, of another version, or edited.
    """
    corpus = extract_python_docs()
    if corpus.digest != config.digest:
        raise CorpusError(
            f"corpus {CORPUS_NAME} has digest {corpus.digest}, expected {config.digest}, although every "
            f"package's sources are the pinned ones: this Python parses them differently, "
            f"use Python 3.11, 3.12 or 3.13 and report the version"
        )
    splits = {"train": corpus.train, "heldout": corpus.heldout}
    for split, documents in splits.items():
        write_documents(files.join(config.output_path, f"{split}.jsonl.zst"), documents)
    files.write_json(
        files.join(config.output_path, "corpus.json"),
        {
            "name": CORPUS_NAME,
            "digest": corpus.digest,
            "heldout_digest": corpus.heldout_digest,
            "packages": {package.name: package.version for package in PACKAGES},
            "splits": {
                split: {"documents": len(documents), "bytes": sum(len(d.text.encode()) for d in documents)}
                for split, documents in splits.items()
            },
        },
    )


@without_collecting()
def extract_python_docs() -> PythonDocs:
    """The corpus of the installed packages; each package's sources are checked against their pinned digest."""
    splits: dict[str, list[Document]] = {"train": [], "heldout": []}
    for document in extracted_documents():
        splits[split_of(document.id)].append(document)
    return PythonDocs(tuple(splits["train"]), tuple(splits["heldout"]))


def extracted_documents() -> Iterator[Document]:
    """The documents of both splits in the order of the packages, whose sources are read and checked as their turn comes."""
    seen: set[str] = set()
    for package in PACKAGES:
        for path, source in package_sources(package).items():
            for number, docstring in enumerate(docstrings(source)):
                text = _unseen_part(docstring, seen)
                if len(text.encode()) >= MIN_DOCUMENT_BYTES:
                    yield Document(f"{path}:{number}", text, package.name)


def _unseen_part(docstring: str, seen: set[str]) -> str:
    """The docstring without the paragraphs that stand earlier in the corpus; empty if little is left. Adds to `seen`.

    Short paragraphs (headings such as "Examples") stay, unless the whole docstring has been seen. As both splits are
    deduplicated together, no held-out paragraph of `MIN_DOCSTRING_CHARS` or more is in the training documents.
    """
    if docstring in seen:
        return ""
    kept = []
    for paragraph in docstring.split("\n\n"):
        key = paragraph.strip("\n")
        if len(key) < MIN_DOCSTRING_CHARS or key not in seen:
            kept.append(paragraph)
            seen.add(key)
    seen.add(docstring)
    text = "\n\n".join(kept).strip("\n")
    return text if len(text) >= MIN_DOCSTRING_CHARS else ""


def split_of(document_id: str) -> str:
    """`heldout` or `train`, by a hash of the name alone, so that a document never moves when others come or go."""
    bucket = int(hashlib.sha256(document_id.encode()).hexdigest()[:8], 16) % 1000
    return "heldout" if bucket < HELDOUT_BUCKETS else "train"


def documents_digest(splits: list[tuple[str, tuple[Document, ...]]]) -> str:
    """SHA-256 over one ASCII JSON line `[split, id, text]` for each document in order."""
    digest = hashlib.sha256()
    for split, documents in splits:
        for document in documents:
            digest.update(json.dumps([split, document.id, document.text]).encode() + b"\n")
    return digest.hexdigest()


# --- from a package to its sources --------------------------------------------------------------------------------


def package_sources(package: CorpusPackage) -> dict[str, bytes]:
    """The package's source files by path, sorted by path, tests left out.

    Raises:
        CorpusError: the package is absent or of another version, or a file is missing or edited.
    """
    try:
        distribution = importlib.metadata.distribution(package.name)
    except importlib.metadata.PackageNotFoundError:
        raise CorpusError(
            f"corpus {CORPUS_NAME} needs the package {package.name}=={package.version}, "
            f"which is not installed: {_NEXT_STEP}"
        ) from None
    if distribution.version != package.version:
        raise CorpusError(
            f"corpus {CORPUS_NAME} needs {package.name}=={package.version}, "
            f"but {distribution.version} is installed: {_NEXT_STEP}"
        )
    record = distribution.read_text("RECORD")
    if record is None:
        raise CorpusError(
            f"package {package.name} {package.version} was installed without a RECORD, so its files cannot "
            f"be checked: {_NEXT_STEP}"
        )
    listed = sorted(
        (row[0], row[1]) for row in csv.reader(record.splitlines()) if len(row) >= 2 and _is_wanted(package, row[0])
    )
    sources = {path: _read_checked(package, distribution, path, recorded) for path, recorded in listed}
    digest = hashlib.sha256("".join(f"{path} {recorded}\n" for path, recorded in listed).encode()).hexdigest()
    if digest != package.sources_digest:
        raise CorpusError(
            f"package {package.name} {package.version} is not the wheel that corpus {CORPUS_NAME} was made from "
            f"(sources digest {digest}, expected {package.sources_digest}): {_NEXT_STEP}"
        )
    return sources


def _is_wanted(package: CorpusPackage, path: str) -> bool:
    *directories, name = path.split("/")
    return (
        name.endswith(".py")
        and directories[:1] == [package.name]
        and not _TEST_PARTS.intersection(directories)
        and not name.startswith("test_")
        and name not in ("conftest.py", "test.py", "tests.py", "testing.py")
    )


def _read_checked(
    package: CorpusPackage, distribution: importlib.metadata.Distribution, path: str, recorded: str
) -> bytes:
    location = str(distribution.locate_file(path))
    try:
        with open(location, "rb") as stream:
            source = stream.read()
    except OSError as error:
        raise CorpusError(
            f"package {package.name} {package.version}: {location} cannot be read ({error.strerror}): {_NEXT_STEP}"
        ) from None
    found = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(source).digest()).rstrip(b"=").decode()
    if found != recorded:
        raise CorpusError(
            f"package {package.name} {package.version}: {location} differs from the published file "
            f"({found}, expected {recorded}): {_NEXT_STEP}"
        )
    return source


# --- from a source file to its docstrings -------------------------------------------------------------------------


def docstrings(source: bytes) -> Iterator[str]:
    """The docstrings of the module, its classes and its functions in source order, dedented; short ones are left out.

    Raises:
        SyntaxError: the source is not Python 3.11; no file of the pinned packages does that.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's code
        tree = ast.parse(source, feature_version=_FEATURE_VERSION)
    for raw in _raw_docstrings(tree):
        text = dedent(raw)
        if len(text) >= MIN_DOCSTRING_CHARS and is_unicode(text):
            yield text


def dedent(raw: str) -> str:
    """The docstring without its common indentation, trailing spaces, and blank lines at either end.

    The first line stands right after the quotes, so its own indentation is dropped and does not count.
    """
    first, *rest = raw.replace("\r\n", "\n").replace("\r", "\n").expandtabs(8).split("\n")
    indents = [len(line) - len(line.lstrip(_SPACE)) for line in rest if line.strip(_SPACE)]
    margin = min(indents, default=0)
    lines = [first.strip(_SPACE), *(line[margin:].rstrip(_SPACE) for line in rest)]
    return "\n".join(lines).strip("\n")


def _raw_docstrings(tree: ast.Module) -> Iterator[str]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            raw = ast.get_docstring(node, clean=False)
            if raw is not None:
                yield raw
        # Definitions are statements, and statements stand only in the blocks of these, so expressions are never walked.
        waiting.extend(reversed([child for block in _blocks(node) for child in block if isinstance(child, _COMPOUND)]))


def _blocks(node: ast.AST) -> Iterator[list[ast.AST]]:
    """The lists of statements (or of handlers and cases, which hold such lists) directly inside a node, in order."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        block = getattr(node, field, None)
        if isinstance(block, list):  # `body` of a lambda or of `a if b else c` is an expression
            yield block
