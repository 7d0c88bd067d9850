import pathlib

import pytest

from marin.data.documents import Document
from marin.data.filters.by_source import KeepSourcesConfig, keep_sources, keep_sources_step
from marin.data.shards import DocumentSet, write_shards
from marin.errors import ConfigError, DataError


@pytest.fixture
def documents(tmp_path: pathlib.Path) -> str:
    made = (Document(str(number), f"text {number}", "abc"[number % 3]) for number in range(30))
    write_shards(str(tmp_path / "all"), made, stage="made", settings={}, shard_bytes=50)
    return str(tmp_path / "all")


def test_documents_of_the_named_sources_are_kept_in_order(documents: str, tmp_path: pathlib.Path) -> None:
    kept = keep_sources(KeepSourcesConfig(documents, ("a", "c"), str(tmp_path / "kept"), num_workers=1))
    assert [document.id for document in kept.documents()] == [str(n) for n in range(30) if n % 3 != 1]
    assert DocumentSet.open(documents).num_documents == 30
    assert (tmp_path / "kept" / "report.json").read_text().count('"of another source"') == 1


def test_source_without_documents_is_an_error(documents: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match="no documents of the source 'd'"):
        keep_sources(KeepSourcesConfig(documents, ("a", "d"), str(tmp_path / "kept"), num_workers=1))
    with pytest.raises(ConfigError, match="at least one"):
        KeepSourcesConfig(documents, ())
    with pytest.raises(ConfigError, match=r"`sources` is 'web': give a list"):
        keep_sources_step("web", documents, "web")
