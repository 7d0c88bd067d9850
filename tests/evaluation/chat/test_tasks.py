"""The public tasks' rows as questions and conversations, from local files as the hub has them."""

import gzip
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from marin.data import hub
from marin.data.conversation import render, turns
from marin.errors import DataError
from marin.evaluation.chat import public_task, source_of
from marin.evaluation.chat.datasets import GSM8K_TRAIN, PlacedRow, download, read_rows, read_source
from marin.evaluation.chat.tasks import chat_conversation, gsm8k_conversation, mmlu_question

ARC = {"question": "Hot?", "choices": {"text": ["ice", "fire"], "label": ["1", "2"]}, "answerKey": "2", "id": "x"}
MMLU = {"question": "2+2?", "choices": ["1", "2", "3", "4"], "answer": 3, "subject": "maths"}
GSM = {"question": "Half of 48, twice?", "answer": "Half is 48/2=<<48/2=24>>24.\nTwice is <<24*2=48>>48\n#### 1,048"}
CODE = {"task_id": "0", "prompt": "def f():\n", "canonical_solution": "    pass", "test": "t", "entry_point": "f"}


def put(task_data, name, rows, file="part/0000.parquet"):
    path = source_of(name).folder(task_data) / file
    path.parent.mkdir(parents=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))


def test_download_that_was_interrupted_is_taken_for_no_data_and_goes_on(tmp_path, monkeypatch):
    put(tmp_path, "GSM8K", [GSM], "main/test/0000.parquet")
    source = source_of("GSM8K")
    folder = source.folder(tmp_path)
    (folder / hub.LISTING).write_text(
        json.dumps({"files": [{"path": "main/test/0000.parquet"}, {"path": "main/test/0001.parquet"}]})
    )
    assert not source.is_there(tmp_path)
    with pytest.raises(DataError, match=r"lacks 1 files .* such as main/test/0001\.parquet: .*`--download`"):
        public_task("GSM8K", tmp_path)
    first, second = folder / "main/test/0000.parquet", folder / "main/test/0001.parquet"
    monkeypatch.setattr(hub, "download_repo_files", lambda *args, **more: shutil.copyfile(first, second))
    download(source, tmp_path)
    assert source.is_there(tmp_path) and len(public_task("GSM8K", tmp_path).questions) == 2


@pytest.mark.parametrize("file", ["part/0000.parquet", "rows.jsonl"])
def test_public_tasks_are_read_from_parquet_and_json_lines(tmp_path, file):
    for name, row in (("ARC-Easy", ARC), ("MMLU", MMLU), ("GSM8K", GSM), ("HumanEval", CODE)):
        put(tmp_path, name, [row] * 3, file)
    arc, mmlu, gsm, code = (public_task(name, tmp_path) for name in ("ARC-Easy", "MMLU", "GSM8K", "HumanEval"))
    assert [len(task.questions) for task in (arc, mmlu, gsm, code)] == [3, 3, 3, 3]
    assert [task.baseline for task in (arc, mmlu, gsm, code)] == [0.25, 0.25, 0.0, 0.0]
    assert (arc.questions[0].answer, arc.questions[0].letters) == ("2", ("1", "2"))
    assert "- fire=2\n" in arc.questions[0].prompt[0]["content"]
    assert (mmlu.questions[0].answer, gsm.questions[0].answer) == ("D", "1048")
    assert arc.grade is None and gsm.grade(gsm.questions[0], "#### 1048")
    assert code.questions[0].extra["entry_point"] == "f"
    assert len(mmlu.first(2).questions) == 2 and len(mmlu.first(-1).questions) == 3


@pytest.mark.parametrize(("pack", "ending"), [(gzip.compress, ".gz"), (zstandard.compress, ".zst")])
def test_packed_json_lines_are_rows_of_a_folder_and_by_themselves(tmp_path, pack, ending):
    lines = "".join(json.dumps({"n": number, "text": "é" * 100}) + "\n" for number in range(3000)).encode()
    (tmp_path / f"a.jsonl{ending}").write_bytes(pack(lines))
    (tmp_path / "b.parquet.gz").write_bytes(b"is no data file")
    for place in (tmp_path, tmp_path / f"a.jsonl{ending}"):
        rows = list(read_rows(place))
        assert [row.fields["n"] for row in rows] == list(range(3000))
        assert rows[-1].where == f"{tmp_path / f'a.jsonl{ending}'}:3000"
    (tmp_path / f"a.jsonl{ending}").write_bytes(pack(lines)[:-9])
    with pytest.raises(DataError, match=f"a.jsonl{ending}: the file is cut short"):
        list(read_rows(tmp_path))


def test_gsm8k_calculations_are_calls_of_the_calculator(chat_tokenizer):
    conversation = gsm8k_conversation(PlacedRow(GSM, "here:1"))
    kinds = [(part["type"], part["text"]) for part in conversation["messages"][1]["content"]]
    assert kinds == [
        ("text", "Half is 48/2="),
        ("python", "48/2"),
        ("python_output", "24"),
        ("text", "24.\nTwice is "),
        ("python", "24*2"),
        ("python_output", "48"),
        ("text", "48\n#### 1,048"),
    ]
    ids, mask = render(conversation, chat_tokenizer, None)
    given = [token for token, learned in zip(ids, mask, strict=True) if not learned]
    assert chat_tokenizer.special_tokens["<|output_start|>"] in given
    bare = gsm8k_conversation(PlacedRow(GSM | {"answer": "<<48/2>>24\n#### 24"}, "here:1"))
    assert [part["text"] for part in bare["messages"][1]["content"]] == ["48/2", "", "24\n#### 24"]
    assert turns(bare)


def test_mmlu_training_rows_of_the_hub_are_inside_a_field():
    assert mmlu_question(PlacedRow({"train": MMLU}, "x:1")) == mmlu_question(PlacedRow(MMLU, "x:1"))


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("ARC-Easy", ARC | {"answerKey": "9"}, "rows.jsonl:1: the answer '9' is none"),
        ("ARC-Easy", ARC | {"choices": None}, "`choices` is None"),
        ("MMLU", MMLU | {"answer": 4}, "`answer` is 4"),
        ("GSM8K", GSM | {"answer": "24"}, "no `#### n`"),
        ("GSM8K", {"question": "?"}, "`answer` is None"),
        ("HumanEval", {"prompt": "x"}, "`test` is None"),
    ],
)
def test_row_of_another_data_set_is_refused_with_its_place(tmp_path, name, row, message):
    put(tmp_path, name, [row], "rows.jsonl")
    with pytest.raises(DataError, match=message):
        public_task(name, tmp_path)


def test_missing_or_damaged_data_says_where_to_get_it(tmp_path):
    with pytest.raises(DataError, match="huggingface.co/datasets/openai/gsm8k"):
        list(read_source(GSM8K_TRAIN, tmp_path))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"bad\.parquet is no readable Parquet"):
        list(read_rows(tmp_path / "bad.parquet"))
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a"\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2 is no JSON \(Expecting ':' delimiter at character 5\): mend"):
        list(read_rows(tmp_path / "bad.jsonl"))
    (tmp_path / "blank.jsonl").write_text('{"a": 1}\n\n[1]\n')
    with pytest.raises(DataError, match=r"blank\.jsonl:3 is a list"):
        list(read_rows(tmp_path / "blank.jsonl"))
    (tmp_path / "nested.jsonl").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"nested\.jsonl:1 is no JSON"):
        list(read_rows(tmp_path / "nested.jsonl"))
    put(tmp_path, "GSM8K", [], "rows.jsonl")
    with pytest.raises(DataError, match=r"no rows in them: fetch the split `test`"):
        public_task("GSM8K", tmp_path)
    with pytest.raises(DataError, match="`messages` is None.*the data set that the folder's name says"):
        chat_conversation(PlacedRow({}, "x"))
