"""The server as OpenAI's own client sees it, and as it takes what no client should send."""

import asyncio
import http.client
import inspect
import json
import urllib.parse

import equinox as eqx
import jax.numpy as jnp
import pytest
from chat_server import CONFIG, NAME, endless, make_tokenizer, model_of, serving

from marin.data.conversation import render, render_for_completion
from marin.data.documents import Document
from marin.data.shards import write_shards
from marin.datashop.annotate import AnnotateConfig, annotate
from marin.inference import Engine
from marin.inference.options import SamplingOptions
from marin.inference.prompting import chat_prompt
from marin.inference.scheduler import Request
from marin.inference.server.problems import ProblemError
from marin.inference.server.protocol import ChatCompletion, TextCompletion, parse

openai = pytest.importorskip("openai", reason="the Python package openai is not installed")

HELLO = [{"role": "user", "content": "the cat"}]


def client_of(served, **options):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, **options)


@pytest.fixture(scope="module")
def client(served):
    with client_of(served) as opened:
        yield opened


def expected(served, prompt, **options):
    """What the engine itself says, as text."""
    ((sample,),) = served.engine.generate([prompt], SamplingOptions(**{"temperature": 0.0, "max_tokens": 12} | options))
    return served.engine.tokenizer.decode(sample.tokens)


def plain(text):
    """Without what stands for special tokens in a chat's text, which this untrained model may write."""
    return text.replace("`", "").replace(" = ", "").replace(" ", "")


def test_chat_answers_whole_with_usage(served, client):
    answer = client.chat.completions.create(model=NAME, messages=HELLO, temperature=0, max_tokens=12)
    prompt = chat_prompt(HELLO, served.engine.tokenizer)
    assert plain(answer.choices[0].message.content) == plain(expected(served, prompt))
    assert answer.choices[0].finish_reason in ("stop", "length") and answer.choices[0].message.role == "assistant"
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_streams_the_same_text(client):
    whole = client.chat.completions.create(model=NAME, messages=HELLO, temperature=0, max_tokens=30)
    chunks = list(
        client.chat.completions.create(
            model=NAME,
            messages=HELLO,
            temperature=0,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_stream_has_the_log_probability_of_every_token(client):
    asked = dict(model=NAME, messages=HELLO, temperature=2.0, seed=11, max_tokens=48, logprobs=True)
    whole = client.chat.completions.create(**asked).choices[0].logprobs.content
    chunks = client.chat.completions.create(**asked, stream=True)
    pieces = [piece for chunk in chunks if (said := chunk.choices[0].logprobs) for piece in said.content]
    assert len(whole) > 4 and [piece.logprob for piece in pieces] == [piece.logprob for piece in whole]


def test_bytes_of_tokens_that_are_parts_of_characters_make_the_text(client):
    asked = dict(model=NAME, messages=HELLO, temperature=2.0, max_tokens=60, logprobs=True)
    for seed in range(4):
        choice = client.chat.completions.create(**asked, seed=seed).choices[0]
        said = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
        assert plain(said.decode(errors="replace")) == plain(choice.message.content)
        assert any(not bytes(entry.bytes).isascii() for entry in choice.logprobs.content)


def test_tokens_of_an_answer_are_told_where_they_are_asked_for(served, client):
    asked = dict(model=NAME, messages=HELLO, temperature=2.0, seed=11, max_tokens=48)
    options = SamplingOptions(max_tokens=48, temperature=2.0, seed=11)
    ((sample,),) = served.engine.generate([chat_prompt(HELLO, served.engine.tokenizer)], options)
    whole = client.chat.completions.create(**asked, extra_body={"return_token_ids": True}).choices[0]
    assert whole.token_ids == list(sample.tokens) and len(whole.token_ids) > 4
    chunks = client.chat.completions.create(**asked, stream=True, extra_body={"return_token_ids": True})
    assert [token for chunk in chunks for token in getattr(chunk.choices[0], "token_ids", [])] == whole.token_ids
    assert not hasattr(client.chat.completions.create(**asked).choices[0], "token_ids")


CALL = [
    {"type": "text", "text": "so "},
    {"type": "python", "text": "12*3"},
    {"type": "python_output", "text": "36"},
    {"type": "text", "text": " cats"},
]


@pytest.mark.parametrize("content", [CALL, "no <|python_start|>call"])
def test_conversation_goes_on_with_the_tokens_that_a_call_was_made_of(served, client, content):
    tokenizer = served.engine.tokenizer
    said = [*HELLO, {"role": "assistant", "content": content}]
    asked, whole = render_for_completion({"messages": said}, tokenizer), render({"messages": said}, tokenizer)[0]
    prompt = render_for_completion({"messages": [*said, HELLO[0]]}, tokenizer)
    assert prompt[: len(whole)] == whole
    shown = {"role": "assistant", "content": "so `12*3` = 36 cats" if content is CALL else content}
    tokens = whole[len(asked) : -1]
    options = {"model": NAME, "temperature": 0, "max_tokens": 20}
    answer = client.chat.completions.create(**options, messages=[*HELLO, shown | {"token_ids": tokens}, *HELLO])
    assert answer.usage.prompt_tokens == len(prompt)
    assert plain(answer.choices[0].message.content) == plain(expected(served, prompt, max_tokens=20))


def test_calls_have_no_place_in_templates_of_other_tokenizers_and_are_text_there(tmp_path):
    calls = ("<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>")
    tokenizer = make_tokenizer(tmp_path, ("<|bos|>", *calls))
    start, end = (tokenizer.special_tokens[name] for name in calls[:2])
    said = {"role": "assistant", "content": "`1`", "token_ids": [start, *tokenizer.encode("1"), end]}
    with serving(tokenizer) as served, client_of(served) as client:
        answer = client.chat.completions.create(model=NAME, messages=[*HELLO, said, *HELLO], max_tokens=1)
    plain_turns = [*HELLO, {"role": "assistant", "content": "`1`"}, *HELLO]
    assert answer.usage.prompt_tokens == len(chat_prompt(plain_turns, tokenizer))


@pytest.mark.parametrize(
    ("role", "tokens", "message"),
    [
        ("assistant", [2**40], "none of this model's"),
        ("assistant", [-1], "the token -1"),
        ("user", [1], "only an answer"),
    ],
)
def test_tokens_that_are_no_answers_are_refused(client, role, tokens, message):
    messages = [{"role": role, "content": "x", "token_ids": tokens}, *HELLO]
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(model=NAME, messages=messages)


def test_completions_take_text_tokens_and_several_prompts(served, client):
    tokenizer = served.engine.tokenizer
    texts = ["the cat", "and so on", "number 2"]
    several = client.completions.create(model=NAME, prompt=texts, temperature=0, max_tokens=12, n=2)
    assert [choice.index for choice in several.choices] == list(range(6))
    for index, text in enumerate(texts):
        tokens = [tokenizer.bos_id, *tokenizer.encode(text)]
        wanted = plain(expected(served, tokens))
        assert plain(several.choices[2 * index].text) == plain(several.choices[2 * index + 1].text) == wanted
        one = client.completions.create(model=NAME, prompt=tokens, temperature=0, max_tokens=12, logprobs=0)
        assert plain(one.choices[0].text) == wanted
        assert len(one.choices[0].logprobs.token_logprobs) == one.usage.completion_tokens


def test_completion_of_a_tokenizer_with_spaces_before_words_goes_on_where_the_prompt_ends(byte_tokenizer):
    """As one of Llama 2's would write "France isParis", a text that begins with a word having no space before it."""
    one, other = (byte_tokenizer.encode(f" {word}")[0] for word in "ab")
    model = model_of(CONFIG, byte_tokenizer.vocab_size)
    head = jnp.zeros_like(model.lm_head.weight_IO)  # of the two words with a space one is always the likeliest token
    head = head.at[:, one].set(model.lm_head.weight_IO[:, one]).at[:, other].set(-model.lm_head.weight_IO[:, one])
    model = eqx.tree_at(lambda m: m.lm_head.weight_IO, model, head)
    with serving(byte_tokenizer, model) as served, client_of(served) as client:
        options = {"model": NAME, "prompt": "a b", "temperature": 0, "max_tokens": 12}
        whole = client.completions.create(**options, extra_body={"return_token_ids": True}).choices[0]
        streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True))
        told = client.completions.create(**options, logprobs=0).choices[0].logprobs
    assert "".join(told.tokens) == whole.text
    assert "a b" + whole.text == byte_tokenizer.decode([*byte_tokenizer.encode("a b"), *whole.token_ids])
    assert streamed == whole.text and whole.text.startswith(" ")


def test_a_stop_string_ends_the_text_before_it_streamed_or_whole(client):
    options = {"model": NAME, "prompt": "the cat", "temperature": 0, "max_tokens": 40}
    text = client.completions.create(**options).choices[0].text
    stop = text[6:9]
    whole = client.completions.create(**options, stop=stop).choices[0]
    assert (whole.text, whole.finish_reason) == (text[: text.index(stop)], "stop")
    streamed = list(client.completions.create(**options, stop=["\u2603", stop], stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.text
    assert streamed[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("size", [1, 2])
def test_tokens_of_an_answer_that_a_stop_string_ended_say_what_its_text_says(client, size):
    options = {"model": NAME, "prompt": "the cat", "temperature": 0, "max_tokens": 40, "logprobs": 0}
    options |= {"extra_body": {"return_token_ids": True}}
    whole = client.completions.create(**options).choices[0]
    texts = whole.logprobs.tokens
    runs = ("".join(texts[at : at + size]) for at in range(1, len(texts)))
    stop = next(run for run in runs if run.isascii() and run.strip())
    kept = next(at for at in range(1, 40) if "".join(texts[at:]).startswith(stop))
    cut = client.completions.create(**options, stop=stop)
    said = cut.choices[0]
    assert said.text == whole.text[: whole.text.index(stop)] and said.finish_reason == "stop"
    assert said.token_ids == whole.token_ids[:kept] and cut.usage.completion_tokens == kept
    assert said.logprobs.tokens == texts[:kept]
    assert said.logprobs.token_logprobs == whole.logprobs.token_logprobs[:kept]
    told = [chunk.choices[0] for chunk in client.completions.create(**options, stop=["\u2603", stop], stream=True)]
    assert "".join(each.text for each in told) == said.text
    assert [token for each in told for token in each.token_ids] == said.token_ids
    assert [value for each in told for value in each.logprobs.token_logprobs] == said.logprobs.token_logprobs


def test_prompt_of_texts_and_tokens_is_refused_at_the_first_that_does_not_fit(client):
    with pytest.raises(openai.BadRequestError, match=r"`prompt.1` is a list of 2: use text"):
        client.completions.create(model=NAME, prompt=["a", [1, 2]], max_tokens=1)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (5, "`prompt` is 5: use text or a list"),
        ([1, 2, "a"], '`prompt.2` is "a": use a whole number'),
        ([[1], ["a"]], '`prompt.1.0` is "a": use a whole number'),
        (None, "`prompt` is null: use text or a list"),
    ],
)
def test_prompt_of_no_kind_is_refused_by_the_kind_that_it_is_nearest_to(prompt, message):
    with pytest.raises(ProblemError) as raised:
        parse(TextCompletion, json.dumps({"model": NAME, "prompt": prompt}).encode())
    assert raised.value.message == message


def test_text_completions_tell_no_alternatives(client):
    with pytest.raises(openai.BadRequestError, match="of the chosen tokens alone: use 0"):
        client.completions.create(model=NAME, prompt="a", max_tokens=1, logprobs=5)


@pytest.mark.parametrize("temperature", [0, 1])
def test_any_number_of_likeliest_tokens_is_taken_and_harms_nobody(client, temperature):
    options = {"model": NAME, "prompt": "a", "max_tokens": 4, "temperature": temperature, "seed": 3}
    plain = client.completions.create(**options)
    for top_k in (2**31, 2**80, 0, -1):  # the last two are vLLM's for all
        asked = client.completions.create(**options, extra_body={"top_k": top_k})
        assert asked.choices[0].text == plain.choices[0].text


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (["a"] * 240_000, "more than 64 samples"),
        ([""] * 320_000, "more than 64 samples"),
        ("zq " * 300_000, "room for 256 tokens"),
        (["zq " * 300_000], "room for 256 tokens"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_it_is_made_tokens_of(served, monkeypatch, prompt, message):
    def never(*_):
        raise AssertionError("a prompt was encoded")

    monkeypatch.setattr(type(served.engine.tokenizer), "encode", never)
    body = json.dumps({"model": NAME, "prompt": prompt}, separators=(",", ":")).encode()
    answer, content = _raw(served, "POST", "/v1/completions", body)
    assert answer.status == 400 and message in json.loads(content)["error"]["message"]
    chat = {"model": NAME, "messages": [{"role": "user", "content": "zq " * 300_000}]}
    answer, content = _raw(served, "POST", "/v1/chat/completions", json.dumps(chat).encode())
    assert answer.status == 400 and "room for 256 tokens" in json.loads(content)["error"]["message"]


def test_a_seed_repeats_an_answer_and_none_varies_it(client):
    def draw(**options):
        return (
            client.completions.create(model=NAME, prompt="a", max_tokens=24, temperature=1.5, **options).choices[0].text
        )

    assert draw(seed=5) == draw(seed=5)
    assert len({draw() for _ in range(4)}) > 1


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    assert client.models.retrieve(NAME).model_dump()["max_model_len"] == 256
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-5'"):
        client.models.retrieve("gpt-5")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "there is no model 'gpt-5': this server has 'tiny'"),
        ({"messages": []}, openai.BadRequestError, "`messages` is a list of 0: use a list of at least 1"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, openai.BadRequestError, "not a user's"),
        ({"messages": [{"role": "robot", "content": "x"}]}, openai.BadRequestError, '`messages.0.role` is "robot": use .system., '),
        ({"messages": [{"role": "user"}]}, openai.BadRequestError, "`messages.0.content` is missing"),
        ({"messages": [{"role": "user", "content": 5}]}, openai.BadRequestError, "`messages.0.content` is 5: use text or a list"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "x"}}]}]},
            openai.BadRequestError, "`messages.0.content.1.type` is \"image_url\": use 'text'",
        ),
        ({"temperature": 9}, openai.BadRequestError, "`temperature` is 9: use at most 2"),
        ({"top_p": 0}, openai.BadRequestError, "`top_p` is 0: use a number above 0"),
        ({"extra_body": {"top_k": -2}}, openai.BadRequestError, "`top_k` is -2: use at least -1"),
        ({"max_tokens": 0}, openai.BadRequestError, "`max_tokens` is 0: use at least 1"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "room for 256 together"),
        ({"messages": [{"role": "user", "content": "zq " * 400}]}, openai.BadRequestError, "room for 256 together"),
        ({"n": 1000}, openai.BadRequestError, "more than 64 samples"),
        ({"stop": ["a"] * 9}, openai.BadRequestError, "`stop`: at most 4 stop strings"),
        ({"presence_penalty": 1.0}, openai.BadRequestError, "`presence_penalty` is not supported"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "`response_format` is not supported"),
        ({"extra_body": {"min_p": 0.1}}, openai.BadRequestError, "`min_p` is not supported"),
        ({"reasoning_effort": "low"}, openai.BadRequestError, "`reasoning_effort` is not supported"),
        ({"extra_body": {"temprature": 0}}, openai.BadRequestError, "there is no field `temprature`, but there is `temperature`"),
        ({"extra_body": {"prompt": "a"}}, openai.BadRequestError, "there is no field `prompt`"),
        ({"extra_body": {"stream": "yes"}}, openai.BadRequestError, "^Error code: 400.*`stream` is \"yes\": use true or false"),
        ({"extra_body": {"stream_options": {"include_usage": None}}}, openai.BadRequestError, "`stream_options.include_usage` is null: use true or false"),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}, *HELLO]},
            openai.BadRequestError, "`messages.0`: .*`tool_calls` is not supported",
        ),
    ],
)  # fmt: skip
def test_requests_that_cannot_be_honoured_are_refused_in_openais_shape(client, options, error, message):
    with pytest.raises(error, match=message) as raised:
        client.chat.completions.create(**{"model": NAME, "messages": HELLO, "max_tokens": 4} | options)
    assert raised.value.body["type"] == "invalid_request_error"


def test_fields_that_ask_for_nothing_are_taken(client):
    extra = {"user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "store": False, "mine": None}
    messages = [{"role": "user", "content": "the cat", "id": 7}]
    options = dict(model=NAME, max_tokens=2, temperature=0)
    plain_answer, answer = (
        client.chat.completions.create(messages=said, extra_body=body, **options)
        for said, body in ((HELLO, {}), (messages, extra))
    )
    assert answer.choices == plain_answer.choices


@pytest.mark.parametrize("kind", [ChatCompletion, TextCompletion])
def test_every_argument_of_openais_client_is_known(client, kind):
    create = (client.chat.completions if kind is ChatCompletion else client.completions).create
    for name in set(inspect.signature(create).parameters) - {"extra_headers", "extra_query", "extra_body", "timeout"}:
        with pytest.raises(ProblemError) as refused:  # for its value, if not by name
            parse(kind, json.dumps({name: {"not": "right"}}).encode())
        assert refused.value.code != "unknown_parameter", name


def _raw(served, method, path, body=None, **headers):
    address = urllib.parse.urlsplit(served.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
    connection.request(method, path, body, {"content-type": "application/json", **headers})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"[]", 400), (b"null", 400), (b"\xff\xfe", 400), (b"[" * 100_000, 400),
        (b'{"model": "tiny", "messages": "hello"}', 400), (b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b'{"model": 5, "messages": []}', 400), (b"x" * 1_000_001, 413),
    ],
)  # fmt: skip
def test_malformed_and_oversized_bodies_are_refused(served, body, status):
    answer, content = _raw(served, "POST", "/v1/chat/completions", body)
    assert answer.status == status, content
    assert json.loads(content)["error"]["message"]


def test_foreign_hosts_and_types_that_a_page_can_send_unasked_are_refused(served):
    assert _raw(served, "GET", "/v1/models", host="evil.example")[0].status == 421
    assert _raw(served, "POST", "/v1/chat/completions", b"{}", **{"content-type": "text/plain"})[0].status == 415
    assert _raw(served, "GET", "/v1/chat/completions")[0].status == 405
    answer, content = _raw(served, "GET", "/nothing")
    assert answer.status == 404 and "error" in json.loads(content)
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_client_whose_base_url_lacks_v1_is_told_the_right_one(served, client):
    with pytest.raises(openai.NotFoundError, match=rf"POST /chat/completions: .* base URL {served.url}/v1\b"):
        client.with_options(base_url=served.url).chat.completions.create(model=NAME, messages=HELLO)


def test_sixty_four_streams_at_once_are_each_what_they_are_alone(served):
    texts = [f"number {i} the cat {'sat on ' * (i % 7)}" for i in range(64)]
    tokenizer = served.engine.tokenizer
    prompts = [[tokenizer.bos_id, *tokenizer.encode(text)] for text in texts]
    alone = served.engine.generate(prompts, SamplingOptions(max_tokens=10, temperature=0.0))

    async def stream(client, text):
        parts = []
        async for chunk in await client.completions.create(
            model=NAME, prompt=text, max_tokens=10, temperature=0, stream=True
        ):
            parts.append(chunk.choices[0].text)
            await asyncio.sleep(0)
        return "".join(parts)

    async def everyone():
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(stream(client, text) for text in texts))

    found = asyncio.run(everyone())
    for text, (sample,) in zip(found, alone, strict=True):
        assert plain(text) == plain(tokenizer.decode(sample.tokens))
    assert served.until(lambda s: s["running_samples"] == 0)["waiting_requests"] == 0


def test_room_that_a_long_answer_needed_is_given_back(chat_tokenizer, chat_model):
    engine = Engine(endless(chat_model), chat_tokenizer, max_length=1024, max_rows=4)
    scheduler = engine.scheduler()

    def run(length, max_tokens, samples=1):
        request = Request((chat_tokenizer.bos_id,) * length, SamplingOptions(max_tokens, temperature=0.0), samples)
        scheduler.submit(request)
        return request

    run(400, 40)
    run(3, 200, 3)
    rooms = []
    while not scheduler.is_idle:
        scheduler.step()
        rooms.append(scheduler._room())
    assert max(rooms) == 512 and min(room for room in rooms[rooms.index(512) :] if room) <= 256
    assert scheduler._room() == 0 and not scheduler._rows


def test_every_length_can_be_compiled_before_the_first_request(chat_tokenizer, chat_model):
    engine = Engine(endless(chat_model), chat_tokenizer, max_length=512, max_rows=4)
    engine.warm_up(every_length=True)
    burst = engine.programs._burst
    compiled = burst._cache_size()
    for length, samples in ((3, 1), (120, 4), (200, 1), (300, 4), (480, 4)):
        engine.generate([(chat_tokenizer.bos_id,) * length], SamplingOptions(20, temperature=0.0), num_samples=samples)
    assert burst._cache_size() == compiled


def test_health_and_stats_tell_what_happens(served):
    assert json.loads(_raw(served, "GET", "/health")[1]) == {"status": "ok", "model": NAME}
    stats = json.loads(_raw(served, "GET", "/stats")[1])
    assert stats["max_rows"] == 4 and stats["requests"] >= 0 and stats["tokens_per_busy_second"] >= 0


def test_an_engine_that_fails_tells_its_clients_and_goes_on(chat_tokenizer, chat_model, monkeypatch, caplog):
    with serving(chat_tokenizer, endless(chat_model), max_rows=1) as served, client_of(served) as client:
        good = served.engine.programs.burst
        monkeypatch.setattr(served.engine.programs, "burst", lambda *_: 1 / 0)
        with pytest.raises(openai.InternalServerError, match="the engine failed"):
            client.completions.create(model=NAME, prompt="a", max_tokens=20, temperature=0)
        monkeypatch.setattr(served.engine.programs, "burst", good)
        assert client.completions.create(model=NAME, prompt="a", max_tokens=20, temperature=0).choices
        assert "ZeroDivisionError" in caplog.text


def test_annotation_by_a_model_that_knows_nothing_has_each_answer_and_no_labels(served, tmp_path):
    documents = [Document(f"d{i}", "the cat sat on a mat. " * (1 if i < 5 else 100), "test") for i in range(6)]
    documents = [Document(d.id, f"{i} {d.text}", d.source) for i, d in enumerate(documents)]
    write_shards(str(tmp_path / "sample"), documents, stage="test", settings={})
    config = AnnotateConfig(
        sample=str(tmp_path / "sample"),
        prompt="{example} Final Score:",
        model=NAME,
        max_tokens=8,
        endpoint=served.url + "/v1",
        concurrency=3,
        max_unanswered_fraction=0.2,
        cache=str(tmp_path / "cache"),
        output_path=str(tmp_path / "labels"),
    )
    annotate(config)
    rows = [
        json.loads(line) for line in (tmp_path / "labels" / "labels.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [row["id"] for row in rows] == [document.id for document in documents]
    assert all(isinstance(row["answer"], str) and row["label"] is None for row in rows[:5])
    assert rows[5]["answer"] is None and "HTTP 400" in rows[5]["why_null"]  # longer than the model's context
    summary = json.loads((tmp_path / "labels" / "labels.json").read_text())
    assert (summary["num_labelled"], summary["num_unparsed"], summary["tokens"]["requests"]) == (0, 6, 5)
    assert 0 < summary["tokens"]["output"] <= 40 and summary["tokens"]["requests_without_usage"] == 0
