"""What a person fills in: which mistakes are found, and that the config file says just what was meant."""

import asyncio
import dataclasses
import gzip
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from datashop_pages import rows

from marin.cli.datashop import steps_of
from marin.data.corpora.python_docs import python_docs_step
from marin.data.shards import DocumentSet
from marin.datashop.config import DatashopRunnerConfig
from marin.datashop.pipeline import datashop_steps
from marin.datashop.sampling import make_pool
from marin.site.datashop import wishes
from marin.site.datashop.uploads import Upload, Uploads
from marin.site.datashop.wishes import Wish, check, config_text


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> Uploads:
    return Uploads(tmp_path_factory.mktemp("uploads"))


async def _body(content: bytes) -> AsyncIterator[bytes]:
    yield content


@pytest.fixture(scope="module")
def files(uploads: Uploads) -> dict[str, Upload]:
    return {
        str(count): asyncio.run(uploads.receive(f"n{count}.jsonl", _body(rows(count)), size=None))
        for count in (5, 30, 31)
    }


def _wish(files: dict[str, Upload], **changes: Any) -> Wish:
    given = {"name": "math-docs", "pool": (files["31"].id,), "positives": (files["30"].id,)} | changes
    return Wish(**{name: tuple(files[n].id if n in files else n for n in value) if isinstance(value, tuple) else value
                   for name, value in given.items()})  # fmt: skip


PROMPTED = {"way": "prompt", "model": "m", "endpoint": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "../up"}, "name"),
        ({"name": "A B"}, "name"),
        ({"name": "x" * 61}, "name"),
        ({"pool": ()}, "pool"),
        ({"pool": ("0123456789abcdef",)}, "pool"),
        ({"pool": ("../../etc",)}, "pool"),
        ({"pool_path": "/etc/passwd"}, "pool_path"),
        ({"pool_path": "{data}/../secret.txt"}, "pool_path"),
        ({"pool_path": "{data}/*/../../secret.txt"}, "pool_path"),
        ({"pool_path": "{data}/link/secret.txt"}, "pool_path"),
        ({"pool_path": "{data}*/secret.txt"}, "pool_path"),
        ({"pool_path": "{data}/*/secret.txt"}, "pool_path"),
        ({"pool_path": "{data}/in*.txt"}, "pool_path"),
        ({"pool_path": "{data}/folder"}, "pool_path"),
        ({"pool_path": "{data}/none.jsonl"}, "pool_path"),
        ({"pool_path": "{data}/none*.jsonl"}, "pool_path"),
        ({"pool_path": "{data}/table.csv"}, "pool_path"),
        ({"pool_path": "{data}/content.jsonl"}, "pool_path"),
        ({"pool_path": "{data}/cut.jsonl.gz"}, "pool_path"),
        ({"pool_path": "{data}/empty"}, "pool_path"),
        ({"pool_path": "{data}/a**.jsonl"}, "pool_path"),
        ({"pool_path": "data/a.jsonl"}, "pool_path"),
        ({"pool_path": "file:///etc/passwd"}, "pool_path"),
        ({"pool_path": "s3://"}, "pool_path"),
        ({"pool_path": "https:///"}, "pool_path"),
        ({"pool_path": "gs://bucket/\0"}, "pool_path"),
        ({"pool_path": "{data}\0"}, "pool_path"),
        ({"way": "guess"}, "way"),
        ({"positives": ()}, "positives"),
        ({"positives": ("5",)}, "positives"),
        ({"negatives": ("30",)}, "negatives"),
        (PROMPTED | {"way": "corpus"}, "corpus"),
        (PROMPTED | {"prompt": "no place"}, "prompt"),
        (PROMPTED | {"prompt": "{example}" + "x" * 60_000}, "prompt"),
        (PROMPTED | {"processor_type": "words"}, "processor_type"),
        (PROMPTED | {"model": ""}, "model"),
        (PROMPTED | {"endpoint": ""}, "endpoint"),
        (PROMPTED | {"endpoint": "file:///etc/passwd"}, "endpoint"),
        (PROMPTED | {"endpoint": "http://user:secret@host/v1"}, "endpoint"),
        (PROMPTED | {"sample_size": "many"}, "sample_size"),
        (PROMPTED | {"sample_size": "3"}, "sample_size"),
        (PROMPTED | {"price_input": "-1", "price_output": "1"}, "price_input"),
        (PROMPTED | {"price_input": "1"}, "price_output"),
        (PROMPTED | {"budget_dollars": "5"}, "budget_dollars"),
        (PROMPTED | {"budget_tokens": "0"}, "budget_tokens"),
        (PROMPTED | {"budget_tokens": "1.5"}, "budget_tokens"),
        ({"keep_percent": "0"}, "keep_percent"),
        ({"keep_percent": "nan"}, "keep_percent"),
        ({"keep_percent": "100"}, "keep_percent"),
        ({"keep": "threshold", "threshold": "1e999"}, "threshold"),
        ({"keep": "threshold", "threshold": "3"}, "threshold"),
        (PROMPTED | {"keep": "threshold", "threshold": "5.1"}, "threshold"),
        (PROMPTED | {"keep": "threshold", "threshold": "0"}, "threshold"),
        (PROMPTED | {"keep": "threshold", "threshold": "1", "processor_type": "medu"}, "threshold"),
        (PROMPTED | {"keep": "threshold", "threshold": "0.5", "way": "corpus", "corpus": ("5",)}, "threshold"),
        ({"deduplicate": "all"}, "deduplicate"),
        ({"vocab_size": "12"}, "vocab_size"),
    ],
)
def test_each_mistake_is_told_at_its_field(
    uploads: Uploads,
    files: dict[str, Upload],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: Any,
    field: str,
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (data / "folder").mkdir()
    (data / "empty").mkdir()
    (data / "table.csv").write_text("a,b")
    (data / "content.jsonl").write_text('{"content": "a"}\n{"text": null}\n')
    (data / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n')[:-4])
    (tmp_path / "data-of-others").mkdir()
    (tmp_path / "data-of-others" / "secret.txt").write_text("secret")
    (data / "link").symlink_to(tmp_path)
    for link in (data / "inside.txt", data / "folder" / "inside.txt"):
        link.symlink_to(tmp_path / "secret.txt")
    filled = {
        name: value.replace("{data}", str(data)) if name == "pool_path" else value for name, value in changes.items()
    }
    checked = check(_wish(files, **filled), uploads, [str(data)])
    assert list(checked.problems) == [field] and len(checked.problems[field]) > 15


def test_rows_of_a_path_without_a_text_are_left_out_as_those_of_uploads(
    uploads: Uploads, files: dict[str, Upload], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "some.jsonl").write_bytes(b'{"text": "a"}\n{"text": null}\nnot \xff JSON\n{"text": "b"}\n')
    checked = check(_wish(files, pool=(), pool_path=f"{tmp_path}/some.jsonl"), uploads, [str(tmp_path)])
    assert checked.problems == {}
    pool = datashop_steps(DatashopRunnerConfig(**checked.settings))["pool"]
    make_pool(dataclasses.replace(pool.config, output_path=str(tmp_path / "out")))
    assert [document.text for document in DocumentSet.open(str(tmp_path / "out")).documents()] == ["a", "b"]


def test_two_budgets_of_nothing_are_two_mistakes(uploads: Uploads, files: dict[str, Upload]) -> None:
    budgets = {"budget_dollars": "0", "budget_tokens": "0", "price_input": "1", "price_output": "1"}
    problems = check(_wish(files, **(PROMPTED | budgets)), uploads, []).problems
    assert problems == {"budget_dollars": "Use more than 0.", "budget_tokens": "Use more than 0."}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"budget_dollars": "5,00"}, "budget_dollars"),
        ({"price_input": "0,600"}, "price_input"),
        ({"price_output": "1,5"}, "price_output"),
        ({"sample_size": "20,00"}, "sample_size"),
        ({"keep_percent": "12,5"}, "keep_percent"),
        ({"keep": "threshold", "threshold": "2,5"}, "threshold"),
        ({"vocab_size": "1,2345"}, "vocab_size"),
    ],
)
def test_decimal_comma_is_refused_and_never_multiplies(
    uploads: Uploads, files: dict[str, Upload], changes: dict[str, str], field: str
) -> None:
    prices = {"price_input": "1", "price_output": "2"}
    checked = check(_wish(files, **(PROMPTED | prices | changes)), uploads, [])
    assert list(checked.problems) == [field] and "a point before decimals" in checked.problems[field]


def test_commas_part_thousands(uploads: Uploads, files: dict[str, Upload]) -> None:
    numbers = {"sample_size": "1,500", "price_input": "1,234.5", "price_output": "2", "vocab_size": "12_345"}
    checked = check(_wish(files, **(PROMPTED | numbers | {"budget_dollars": "1,000,000"})), uploads, [])
    assert checked.problems == {}
    assert (checked.settings["sample_size"], checked.settings["vocab_size"]) == (1500, 12345)
    asked = checked.settings["text_generation_inference_config_kwargs"]
    assert (asked["dollars_per_million_input"], asked["budget_dollars"]) == (1234.5, 1e6)


def test_paths_patterns_and_links_that_stay_below_a_folder_may_be_read(
    uploads: Uploads, files: dict[str, Upload], tmp_path: pathlib.Path
) -> None:
    for name in ("a/one.jsonl", "b/two.jsonl", "b/[odd]*.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "a"}')
    (tmp_path / "a" / "link.jsonl").symlink_to(tmp_path / "b" / "two.jsonl")
    for asked in (
        "",
        "a",
        "a/one.jsonl",
        "*/one.jsonl",
        "**/*.jsonl",
        "a/*.jsonl",
        "b/[odd]*.jsonl",
        "b/[t]wo.jsonl",
    ):
        checked = check(_wish(files, pool_path=f"{tmp_path}/{asked}"), uploads, [str(tmp_path)])
        assert checked.problems == {}, asked
    folders_alone = check(_wish(files, pool_path=f"{tmp_path}/*"), uploads, [str(tmp_path)])
    # A run looks into no folder that matches.
    assert "no file at this path" in folders_alone.problems["pool_path"]


NASTY = "Quotes ' \" \"\"\" '''\\ and \\n {example}\nlines\t\u2028 {0} %s \x1b[31m</textarea><script>"


@pytest.mark.parametrize(
    "changes",
    [
        {"negatives": ("5",), "keep_percent": "12.5"},
        PROMPTED
        | {
            "prompt": NASTY,
            "model": NASTY.replace("\n", " "),
            "price_input": "0.5",
            "price_output": "1",
            "budget_dollars": "2",
            "keep": "threshold",
            "threshold": "3",
        },
        PROMPTED | {"way": "corpus", "corpus": ("5",), "sample_size": "1,500", "budget_tokens": "1000000"},
        {"pool_path": '{data}/it\'s "odd"\\.jsonl', "keep": "threshold", "threshold": "0.5", "deduplicate": "fuzzy"},
    ],
)
def test_config_file_says_what_the_form_says(
    uploads: Uploads, files: dict[str, Upload], tmp_path: pathlib.Path, changes: Any
) -> None:
    (tmp_path / 'it\'s "odd"\\.jsonl').write_text('{"text": "a"}')
    filled = {
        name: value.replace("{data}", str(tmp_path)) if name == "pool_path" else value
        for name, value in changes.items()
    }
    checked = check(_wish(files, **filled), uploads, [str(tmp_path)])
    assert checked.problems == {}
    path = tmp_path / f'odd """ \\ {NASTY[:5]}' / "config.py"
    path.parent.mkdir()
    path.write_text(config_text(checked.settings, str(path)))
    found: dict[str, Any] = {}
    exec(compile(path.read_text(), "config.py", "exec"), found)
    assert found["config"] == DatashopRunnerConfig(**checked.settings)
    steps, _, _ = steps_of(str(path))  # what `marin datashop run` makes of it
    assert steps[-1].name == "datashop/math-docs/report"


def test_built_in_text_is_the_embedded_corpus(uploads: Uploads, files: dict[str, Upload]) -> None:
    checked = check(_wish(files, pool=(wishes.BUILT_IN, "31")), uploads, [])
    found: dict[str, Any] = {}
    exec(compile(config_text(checked.settings, "config.py"), "config.py", "exec"), found)
    paths = found["config"].pretraining_data_path
    assert paths[0] == str(files["31"].path)
    assert paths[1].step.name == python_docs_step().name and paths[1].name == "train.jsonl.zst"


def test_wish_is_kept_as_it_was_typed() -> None:
    form = {
        "name": [" a "],
        "pool": ["x", "x", "y"],
        "prompt": ["one\r\ntwo "],
        "unknown": ["z"],
        "keep_percent": ["ten"],
    }
    wish = Wish.from_form(form)
    assert (wish.name, wish.pool, wish.prompt, wish.keep_percent) == ("a", ("x", "y"), "one\ntwo ", "ten")
    assert Wish.from_json(wish.to_json() | {"of a later version": 1}) == wish
