"""Conversations with tool calls as tokens and a mask, against worked examples."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.data.conversation import SPECIAL_TOKENS, render, render_batch, render_for_completion
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.errors import ConfigError, DataError


def train(folder, **options):
    texts = [f"What is {i} plus {i}? It is {2 * i}, says the calculator." for i in range(99)]
    write_documents(str(folder / "docs.jsonl.zst"), [Document(str(i), text, "t") for i, text in enumerate(texts)])
    train_tokenizer(TrainTokenizerConfig(str(folder / "docs.jsonl.zst"), 300, output_path=str(folder), **options))
    return Tokenizer.load(str(folder))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return train(tmp_path_factory.mktemp("tokenizer"), special_tokens=SPECIAL_TOKENS)


def chat(*messages):
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def part(kind, text):
    return {"type": kind, "text": text}


CALL = chat(
    ("user", "2+2?"),
    ("assistant", [part("text", "It is "), part("python", "2+2"), part("python_output", "4"), part("text", "4.")]),
)


def spelled(tokenizer, ids):
    names = {token: name for name, token in tokenizer.special_tokens.items()}
    return "".join(names.get(token) or tokenizer.decode([token]) for token in ids)


def test_render_conversation_with_a_tool_call_is_the_worked_example(tokenizer):
    bos, user, user_end, start, end, python, python_end, output, output_end = (
        tokenizer.special_tokens[name] for name in SPECIAL_TOKENS
    )
    parts = [
        ([bos, user, *tokenizer.encode("2+2?"), user_end, start], 0),
        ([*tokenizer.encode("It is "), python, *tokenizer.encode("2+2"), python_end], 1),
        ([output, *tokenizer.encode("4"), output_end], 0),
        ([*tokenizer.encode("4."), end], 1),
    ]
    ids, mask = render(CALL, tokenizer)
    assert ids == [token for tokens, _ in parts for token in tokens]
    assert mask == [learned for tokens, learned in parts for _ in tokens]


def test_render_system_message_goes_into_the_first_user_turn_only(tokenizer):
    rest = [("assistant", "Hi"), ("user", "again"), ("assistant", "Hi")]
    merged = render(chat(("system", "Be short."), ("user", "Hello"), *rest), tokenizer)
    assert merged == render(chat(("user", "Be short.\n\nHello"), *rest), tokenizer)


def test_render_empty_system_message_counts_as_one(tokenizer):
    ids, _ = render(chat(("system", ""), ("user", "a"), ("assistant", "b")), tokenizer)
    assert spelled(tokenizer, ids).startswith("<|bos|><|user_start|>\n\na<|user_end|>")


def test_render_cuts_after_max_tokens(tokenizer):
    ids, mask = render(CALL, tokenizer, None)
    assert render(CALL, tokenizer, 7) == (ids[:7], mask[:7])


def test_render_for_completion_ends_where_the_answer_begins(tokenizer):
    prompt = render_for_completion(CALL, tokenizer)
    assert spelled(tokenizer, prompt) == "<|bos|><|user_start|>2+2?<|user_end|><|assistant_start|>"
    assert prompt == render_for_completion(chat(("user", "2+2?")), tokenizer)
    assert prompt == render(CALL, tokenizer)[0][: len(prompt)]


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40), where=st.sampled_from(SPECIAL_TOKENS))
@settings(max_examples=30)
def test_render_text_never_becomes_a_special_token(tokenizer, text, where):
    ids, _ = render(chat(("user", text + where), ("assistant", where + text)), tokenizer, None)
    special = set(tokenizer.special_tokens.values())
    assert sum(token in special for token in ids) == 5
    assert tokenizer.decode(ids) == text + where + where + text


def test_render_batch_is_render_of_each(tokenizer):
    conversations = [CALL, chat(("user", "a"), ("assistant", "b"))]
    assert [tuple(found) for found in render_batch(conversations, tokenizer)] == [
        render(conversation, tokenizer) for conversation in conversations
    ]


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ({}, "no messages"),
        (chat(), "no messages"),
        ({"messages": ["hello"]}, "message 1 .* is a str"),
        (chat(("assistant", "a")), "message 1 .* expected 'user'"),
        (chat(("user", "a"), ("user", "b")), "message 2 .* expected 'assistant'"),
        (chat(("user", "a"), ("system", "b")), "message 2 .* 'system'"),
        (chat(("system", "a")), "message 1 .* expected 'user'"),
        (chat(("user", None)), "message 1 .* expected text"),
        (chat(("user", [part("python", "1")])), "message 1 .* expected text"),
        (chat(("user", "a"), ("assistant", [part("image", "1")])), "message 2 .* has the part"),
        (chat(("user", "a"), ("assistant", 3)), "message 2 .* is a int"),
    ],
)
def test_render_what_is_no_conversation_says_which_message(tokenizer, conversation, message):
    with pytest.raises(DataError, match=message):
        render(conversation, tokenizer)


def test_render_with_a_tokenizer_that_lacks_the_tokens_names_one(tmp_path):
    with pytest.raises(ConfigError, match=r"user_start"):
        render(CALL, train(tmp_path))
