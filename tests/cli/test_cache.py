"""`marin cache info|verify|head`, as a user runs it."""

import pathlib
import subprocess
from collections.abc import Callable

import pytest

from marin.cli.main import dispatch
from marin.data.cache import TokenizeConfig, tokenize
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.errors import MarinError

Marin = Callable[..., subprocess.CompletedProcess[str]]
TEXTS = [f"document {number} of a few, number {number % 3}" for number in range(5)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a cache and its tokenizer."""
    root = tmp_path_factory.mktemp("made")
    documents = str(root / "documents.jsonl.zst")
    write_documents(documents, [Document(str(i), text, "test") for i, text in enumerate(TEXTS)])
    train_tokenizer(TrainTokenizerConfig(documents, 270, str(root / "tokenizer")))
    tokenize(TokenizeConfig(documents, str(root / "tokenizer"), str(root / "cache")))
    return root


def test_info_says_what_the_cache_holds(marin: Marin, made: pathlib.Path) -> None:
    done = marin("cache", "info", str(made / "cache"))
    rows = {line[:10].strip(): line[10:].strip() for line in done.stdout.splitlines()}
    assert done.returncode == 0
    assert rows["documents"] == "5"
    assert rows["vocabulary"] == "270"
    assert rows["path"].endswith("cache/train")
    assert len(rows["digest"]) == 64


def test_head_shows_the_first_documents_as_ids_and_as_text(marin: Marin, made: pathlib.Path) -> None:
    plain = marin("cache", "head", str(made / "cache"), "--documents", "2", "--tokens", "4")
    assert plain.stdout.count("document ") == 2
    assert "\n  0 " in plain.stdout and "more" in plain.stdout and "--tokenizer" in plain.stdout
    done = marin("cache", "head", str(made / "cache"), "--tokenizer", str(made / "tokenizer"))
    assert all(repr(text) in done.stdout for text in TEXTS[:3])
    assert TEXTS[3] not in done.stdout


def test_verify_ends_with_0_for_a_whole_cache_and_with_1_for_a_damaged_one(
    marin: Marin, made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = marin("cache", "verify", str(made / "cache"))
    assert done.returncode == 0 and "DAMAGED" not in done.stdout
    chunk = made / "cache" / "train" / "input_ids" / "data" / "c" / "0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-20])
    try:
        done = marin("cache", "verify", str(made / "cache"))
    finally:
        chunk.write_bytes(whole)
    assert done.returncode == 1 and done.stderr == ""
    assert "DAMAGED" in done.stdout and "data/c/0" in done.stdout and "do not train on" in done.stdout


def test_cache_named_by_a_way_up_is_as_whole_as_by_its_own_path(
    made: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the way leads through a link, behind which `..` is the parent of what it points to."""
    (tmp_path / "link").symlink_to(made / "tokenizer")
    monkeypatch.chdir(made / "tokenizer")
    for name in ("../cache", f"{tmp_path}/link/../cache"):
        assert dispatch(["cache", "verify", name]) == 0
        assert "DAMAGED" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["info", "{made}/tokenizer"], "no finished token cache"),
        (["info", "{made}/nowhere"], "nowhere does not exist: give the directory"),
        (["verify", "{made}/nowhere"], "nowhere does not exist: give the directory"),
        (["head", "{made}/tokenizer/tokenizer.json"], r"tokenizer\.json is a file: give the directory"),
        (["head", "{made}/cache", "--documents", "0"], "use at least 1"),
        (["head", "{made}/cache", "--tokenizer", "{made}/nowhere"], "no tokenizer"),
        (["head", "{made}/cache", "--tokenizer", "{made}/documents.jsonl.zst"], r"is a file: give a tokenizer\.json"),
        (["info", "{made}/cache", "--documents", "5"], "--documents is a flag of `marin cache head`"),
        (["verify", "{made}/cache", "--tokenizer", "{made}/tokenizer"], "--tokenizer is a flag of `marin cache head`"),
        (["head", "{made}/cache", "--tokenizer", "{made}/other"], "is not the tokenizer that made"),
    ],
)
def test_bad_input_ends_in_a_message(made: pathlib.Path, arguments: list[str], expected: str) -> None:
    other = made / "other" / "tokenizer.json"
    other.parent.mkdir(exist_ok=True)
    other.write_bytes((made / "tokenizer" / "tokenizer.json").read_bytes() + b"\n")
    with pytest.raises(MarinError, match=expected):
        dispatch(["cache", *(argument.format(made=made) for argument in arguments)])
