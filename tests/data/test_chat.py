"""Conversations as tokens and a loss mask, from files to batches."""

import dataclasses
import gzip
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.data.cache import TokenCache
from marin.data.chat import CHATML, LLAMA3, PLAIN, TURNS, ChatFormat, ChatTemplate, PromptFormat, TurnEncoder, turns_of
from marin.data.chat_cache import TokenizeChatConfig, tokenize_chat
from marin.data.documents import Document, write_documents
from marin.data.formats import BadRow, Row
from marin.data.loader import open_batches
from marin.data.mixture import Mixture
from marin.data.tokenizer import BOS_TOKEN, Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.errors import ConfigError, DataError

MARKERS = ("<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>")


def train(folder, **options):
    texts = [f"What is {i} plus {i}? It is {2 * i}, as User: and Assistant: agree." for i in range(99)]
    write_documents(str(folder / "docs.jsonl.zst"), [Document(str(i), text, "t") for i, text in enumerate(texts)])
    train_tokenizer(TrainTokenizerConfig(str(folder / "docs.jsonl.zst"), 300, output_path=str(folder), **options))
    return str(folder)


@pytest.fixture(scope="module")
def plain_tokenizer(tmp_path_factory) -> str:
    """The folder of a tokenizer with one special token."""
    return train(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    """The folder of one with the special tokens of TURNS."""
    return train(tmp_path_factory.mktemp("turns"), special_tokens=(BOS_TOKEN, *MARKERS))


def chat(*messages):
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def documents_of(folder, rows, format):
    encoder = TurnEncoder(Tokenizer.load(folder))
    return encoder.encode([turns_of(Row(number, row), format) for number, row in enumerate(rows, start=1)])


def learned_text(folder, document):
    """The text that the mask covers, special tokens written out."""
    tokenizer = Tokenizer.load(folder)
    names = {token: name for name, token in tokenizer.special_tokens.items()}
    chosen = [token for token, learned in zip(*document, strict=True) if learned]
    runs = [(name, list(ids)) for name, ids in itertools.groupby(chosen, key=names.get)]
    return "".join(name * len(ids) if name else tokenizer.decode(ids) for name, ids in runs)


def test_chat_mask_covers_the_answers_and_their_ends(tokenizer):
    rows = [chat(("user", "2 plus 2?"), ("assistant", "4"), ("user", "sure?"), ("assistant", "yes"))]
    (document,) = documents_of(tokenizer, rows, ChatFormat(TURNS))
    loaded = Tokenizer.load(tokenizer)
    user_start, user_end, start, end = (loaded.special_tokens[name] for name in MARKERS)
    parts = [
        ([loaded.bos_id, user_start, *loaded.encode("2 plus 2?"), user_end, start], 0),
        ([*loaded.encode("4"), end], 1),
        ([user_start, *loaded.encode("sure?"), user_end, start], 0),
        ([*loaded.encode("yes"), end], 1),
    ]
    assert document.tokens == [token for tokens, _ in parts for token in tokens]
    assert document.mask == [learned for tokens, learned in parts for _ in tokens]


def test_chat_system_message_goes_before_the_first_user_where_the_template_has_no_such_role(tokenizer):
    rows = [chat(("system", "Be short."), ("user", "Hi"), ("assistant", "Hi"))]
    (merged,) = documents_of(tokenizer, rows, ChatFormat(TURNS))
    (same,) = documents_of(tokenizer, [chat(("user", "Be short.\n\nHi"), ("assistant", "Hi"))], ChatFormat(TURNS))
    assert merged == same
    (plain,) = documents_of(tokenizer, rows, ChatFormat(PLAIN))
    assert Tokenizer.load(tokenizer).decode(plain.tokens) == "Be short.\n\nUser: Hi\n\nAssistant: Hi\n\n"
    assert learned_text(tokenizer, plain) == "Hi\n\n"


def test_chat_keeps_all_system_messages_before_the_first_user(tokenizer):
    rows = [chat(("system", "Be short."), ("system", "Be kind."), ("user", "Hi"), ("assistant", "Hi"))]
    merged = documents_of(tokenizer, rows, ChatFormat(TURNS))
    same = [chat(("user", "Be short.\n\nBe kind.\n\nHi"), ("assistant", "Hi"))]
    assert merged == documents_of(tokenizer, same, ChatFormat(TURNS))


def test_chat_content_in_parts_is_their_text(tokenizer):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    one, other = (documents_of(tokenizer, [chat(("user", c), ("assistant", "x"))], ChatFormat()) for c in (parts, "ab"))
    assert one == other


def test_prompt_format_learns_the_response_alone(tokenizer):
    row = {"question": "2 plus 3?", "answer": "It is 5"}
    (document,) = documents_of(tokenizer, [row], PromptFormat("question", "answer"))
    assert learned_text(tokenizer, document) == "It is 5"
    assert Tokenizer.load(tokenizer).decode(document.tokens) == "2 plus 3?\n\nIt is 5"


@given(
    turns=st.lists(
        st.tuples(
            st.sampled_from(["user", "assistant"]), st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=30)
def test_chat_text_never_becomes_a_special_token_and_is_all_there(tokenizer, turns):
    turns = [(role, text + "<|assistant_end|>") for role, text in turns] + [("assistant", "x")]
    (document,) = documents_of(tokenizer, [chat(*turns)], ChatFormat(TURNS))
    loaded = Tokenizer.load(tokenizer)
    special = set(loaded.special_tokens.values())
    assert sum(token in special for token in document.tokens) == 1 + 2 * len(turns)
    assert learned_text(tokenizer, document) == "".join(
        f"{t}<|assistant_end|>" for role, t in turns if role == "assistant"
    )
    assert len(document.tokens) == len(document.mask)


@pytest.mark.parametrize("template", [LLAMA3, CHATML, TURNS])
def test_template_whose_tokens_the_tokenizer_lacks_names_them_and_a_way_on(plain_tokenizer, template):
    with pytest.raises(ConfigError, match="PLAIN"):
        documents_of(plain_tokenizer, [chat(("user", "a"), ("assistant", "b"))], ChatFormat(template))


def test_template_may_name_special_tokens_of_any_form(tmp_path):
    names = ("<start_of_turn>", "</s>", "[INST]", "[INST]+")
    folder = train(tmp_path, special_tokens=(BOS_TOKEN, *names))
    template = ChatTemplate({"user": ("[INST]+ ", "[INST]"), "assistant": ("<start_of_turn>model\n", "</s>")})
    (document,) = documents_of(folder, [chat(("user", "a</s>"), ("assistant", "b"))], ChatFormat(template))
    special = {token: name for name, token in Tokenizer.load(folder).special_tokens.items()}
    found = [special[token] for token in document.tokens if token in special]
    assert found == [BOS_TOKEN, "[INST]+", "[INST]", "<start_of_turn>", "</s>"]
    assert learned_text(folder, document) == "b</s>"


def test_template_that_learns_an_unknown_role_is_refused():
    with pytest.raises(ConfigError, match="'model'"):
        ChatTemplate({"user": ("", "")}, learned=["model"])


BAD_ROWS = [
    ({}, "no_messages", "there is no field `messages`"),
    ({"messages": []}, "no_messages", "an empty list"),
    ({"messages": "hello"}, "no_messages", "str"),
    ({"messages": ["hello"]}, "bad_message", "message 1"),
    ({"messages": [{"role": "user"}]}, "bad_message", "message 1"),
    ({"messages": [{"role": "user", "content": [{"image": 1}]}]}, "bad_message", "message 1"),
    (chat(("user", "a"), ("robot", "b")), "unknown_role", "'robot'"),
    (chat(("user", "a")), "nothing_to_learn", "no turn"),
    (chat(("user", "a"), ("assistant", "")), "nothing_to_learn", "no turn"),
    (chat(("user", "\ud800"), ("assistant", "b")), "lone_surrogate", "ud800"),
]


@pytest.mark.parametrize(("fields", "reason", "detail"), BAD_ROWS)
def test_row_that_is_no_chat_says_why(fields, reason, detail):
    found = turns_of(Row(7, fields), ChatFormat())
    assert isinstance(found, BadRow)
    assert (found.number, found.reason) == (7, reason)
    assert detail in found.detail


def test_system_text_is_never_learned_as_part_of_an_answer():
    found = turns_of(Row(7, chat(("system", "Be short."), ("assistant", "Hello"), ("user", "Hi"))), ChatFormat(TURNS))
    assert isinstance(found, BadRow)
    assert (found.number, found.reason) == (7, "no_question") and "message 2" in found.detail


def test_row_without_a_prompt_says_what_it_has():
    found = turns_of(Row(1, {"prompt": None, "reply": "x"}), PromptFormat())
    assert isinstance(found, BadRow) and "null, expected a string" in found.detail


def write_rows(path, rows):
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def test_tokenize_chat_writes_a_cache_whose_batches_learn_the_answers_only(tokenizer, tmp_path):
    rows = [chat(("user", f"What is {i} plus 1?"), ("assistant", f"It is {i + 1}")) for i in range(700)]
    write_rows(tmp_path / "chats.jsonl.gz", rows)
    out = tmp_path / "out"
    tokenize_chat(
        TokenizeChatConfig([str(tmp_path / "chats.jsonl.gz")], tokenizer, ChatFormat(TURNS), output_path=str(out))
    )
    expected = documents_of(tokenizer, rows, ChatFormat(TURNS))
    cache, mask = TokenCache.open(str(out)), TokenCache.open(str(out / "loss_mask"))
    assert cache.tokens[:].tolist() == [token for document in expected for token in document.tokens]
    assert mask.tokens[:].tolist() == [learned for document in expected for learned in document.mask]
    report = json.loads((out / "report.json").read_text())
    assert (report["rows"], report["documents"]) == (700, 700)
    assert report["learned_tokens"] == sum(sum(document.mask) for document in expected)

    loaded = Tokenizer.load(tokenizer)
    mixture = Mixture({"chats": str(out)}, {"chats": 1}, packing="best_fit_truncate")
    source = open_batches(mixture, 64, loaded.bos_id)
    batch = source.batch_at(0, 0, source.order.num_rows[0])
    assert (batch.tokens_BT[:, 0] == loaded.bos_id).all()
    # Each learned token is a target with weight 1, and so is the end of each document, which ends with a learned one.
    assert batch.weight_BT.sum() == report["learned_tokens"] + 700
    ends = loaded.special_tokens["<|assistant_end|>"]
    assert np.count_nonzero((batch.targets_BT == ends) & (batch.weight_BT == 1)) == 700


@pytest.mark.parametrize("format", [ChatFormat(TURNS), PromptFormat()])
def test_tokenize_chat_of_parquet_gives_what_json_lines_give(tokenizer, tmp_path, format):
    rows = [
        chat(("user", f"What is {i}?"), ("assistant", "é" * i)) | {"prompt": str(i), "response": "b"} for i in (1, 2)
    ]
    rows.append({"messages": None, "prompt": None, "response": None})
    write_rows(tmp_path / "chats.jsonl.gz", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chats.parquet")
    caches = []
    for name in ("chats.jsonl.gz", "chats.parquet"):
        config = TokenizeChatConfig([str(tmp_path / name)], tokenizer, format, output_path=str(tmp_path / name[-3:]))
        with pytest.raises(DataError, match=f"{name}:3: .* holds null"):
            tokenize_chat(config)
        tokenize_chat(dataclasses.replace(config, on_bad_row="skip"))
        caches.append(TokenCache.open(config.output_path))
    assert caches[0].digest == caches[1].digest and caches[0].num_documents == 2
    with pytest.raises(DataError, match=r"chats\.parquet has no column `dialog`: name one of messages, prompt"):
        tokenize_chat(dataclasses.replace(config, format=ChatFormat(messages_key="dialog")))


def test_tokenize_chat_refuses_a_bad_row_with_its_place_or_counts_it(tokenizer, tmp_path):
    paths = [str(tmp_path / "chats.jsonl.gz")]
    write_rows(tmp_path / "chats.jsonl.gz", [chat(("user", "a"), ("assistant", "b")), *(row for row, _, _ in BAD_ROWS)])
    config = TokenizeChatConfig(paths, tokenizer, ChatFormat(), output_path=str(tmp_path / "out"))
    with pytest.raises(DataError, match=r"chats\.jsonl\.gz:2: no_messages"):
        tokenize_chat(config)
    tokenize_chat(TokenizeChatConfig(paths, tokenizer, ChatFormat(), "skip", output_path=str(tmp_path / "out")))
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["rows"], report["documents"]) == (1 + len(BAD_ROWS), 1)
    assert report["dropped"]["no_messages"] == {"documents": 3, "examples": [f"chats.jsonl.gz:{n}" for n in (2, 3, 4)]}


def test_tokenize_chat_of_a_file_without_rows_of_its_kind_is_refused(tokenizer, tmp_path):
    (tmp_path / "text.txt").write_text("no chat")
    with pytest.raises(DataError, match="format text"):
        tokenize_chat(
            TokenizeChatConfig([str(tmp_path / "text.txt")], tokenizer, ChatFormat(), output_path=str(tmp_path))
        )


def test_tokenize_chat_says_which_files_of_a_folder_it_leaves_out(tokenizer, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    write_rows(tmp_path / "in" / "chats.jsonl.gz", [chat(("user", "a"), ("assistant", "b"))])
    (tmp_path / "in" / "more.csv").write_text("user,assistant")
    tokenize_chat(
        TokenizeChatConfig([str(tmp_path / "in")], tokenizer, ChatFormat(), output_path=str(tmp_path / "out"))
    )
    assert "left out as of no known format: 1 file (more.csv)" in capsys.readouterr().out
