"""The engine's tokens are those that the model alone would give, however requests share its batch."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chat_server import CONFIG, model_of
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.models import BPE

from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError
from marin.inference.engine import Engine
from marin.inference.measure import measure_speed
from marin.inference.options import SamplingOptions
from marin.inference.scheduler import Request
from marin.models import LlamaConfig
from marin.models.gpt2 import Gpt2Config

LLAMA = LlamaConfig(seq_len=32, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, num_kv_heads=2)
CONFIGS = {
    "windows-and-groups": CONFIG,
    "full-attention": dataclasses.replace(CONFIG, window_pattern="L", num_kv_heads=None),
    "short-windows": dataclasses.replace(CONFIG, seq_len=12, window_pattern="SSL"),  # windows of 3
    "llama": LLAMA,
}
GREEDY = SamplingOptions(max_tokens=24, temperature=0.0)


def prompts(vocab_size, lengths, seed=0):
    random = np.random.default_rng(seed)
    return [tuple(random.integers(0, vocab_size - 9, length).tolist()) for length in lengths]


@eqx.filter_jit
def all_logits(model, tokens_1T):
    return model.activations(tokens_1T, None)[0] @ model.lm_head_DV


def without_cache(model, prompt, num_tokens, stops):
    """The likeliest continuation, from the whole context for each token."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        row = np.zeros((1, 64), np.int32)
        row[0, : len(tokens)] = tokens
        best = int(np.argmax(np.asarray(all_logits(model, jnp.asarray(row)))[len(tokens) - 1]))
        if best in stops:
            break
        tokens.append(best)
    return tuple(tokens[len(prompt) :])


def engine_of(model, tokenizer, **options):
    return Engine(model, tokenizer, **{"max_length": 64, "max_rows": 4} | options)


@pytest.mark.parametrize(("name", "max_rows"), [
    ("windows-and-groups", 4), ("windows-and-groups", 1),
    *(pytest.param(name, 4, marks=pytest.mark.slow) for name in CONFIGS if name != "windows-and-groups"),
])  # fmt: skip
def test_greedy_tokens_with_the_cache_equal_those_without(chat_tokenizer, name, max_rows):
    model = model_of(CONFIGS[name], chat_tokenizer.vocab_size)
    engine = engine_of(model, chat_tokenizer, max_rows=max_rows, tools=False)
    asked = prompts(chat_tokenizer.vocab_size, (1, 5, 21, 40, 2))
    stops = {chat_tokenizer.bos_id, chat_tokenizer.special_tokens["<|assistant_end|>"]}
    for prompt, (sample,) in zip(asked, engine.generate(asked, GREEDY), strict=True):
        assert sample.tokens == without_cache(model, prompt, 24, stops)
        assert sample.finish_reason == ("length" if len(sample.tokens) == 24 else "stop")
        assert sample.mask == (1,) * len(sample.tokens) and max(sample.logprobs, default=0) <= 0


@pytest.fixture(scope="module")
def engine(chat_tokenizer, chat_model):
    return engine_of(chat_model, chat_tokenizer)


HOT = SamplingOptions(max_tokens=20, temperature=1.5, top_k=100, top_p=0.95, seed=3)


def test_samples_are_a_function_of_the_seed_whatever_shares_the_batch(engine, chat_tokenizer):
    first, second, third = prompts(chat_tokenizer.vocab_size, (4, 30, 11))
    (alone,) = engine.generate([first], HOT, num_samples=3)
    together = engine.generate([second, first, third], HOT, num_samples=3)  # nine samples on four rows
    assert [sample.tokens for sample in together[1]] == [sample.tokens for sample in alone]
    assert len({sample.tokens for sample in alone}) == 3
    (other,) = engine.generate([first], dataclasses.replace(HOT, seed=4))
    assert other[0].tokens != alone[0].tokens


def test_log_probabilities_are_those_of_the_model_at_temperature_one(engine, chat_model, chat_tokenizer):
    (prompt,) = prompts(chat_tokenizer.vocab_size, (6,))
    ((sample,),) = engine.generate([prompt], HOT)
    row = np.zeros((1, 64), np.int32)
    row[0, : 6 + len(sample.tokens)] = [*prompt, *sample.tokens]
    logits = 15 * np.tanh(np.asarray(all_logits(chat_model, jnp.asarray(row))) / 15)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [logprobs[5 + index, token] for index, token in enumerate(sample.tokens)]
    np.testing.assert_allclose(sample.logprobs, expected, rtol=1e-3, atol=1e-4)


def test_stream_gives_the_tokens_of_generate(engine, chat_tokenizer):
    (prompt,) = prompts(chat_tokenizer.vocab_size, (9,))
    ((sample,),) = engine.generate([prompt], HOT)
    assert tuple(engine.stream(prompt, HOT)) == sample.tokens


@pytest.mark.parametrize("num_samples", [1, 2])
def test_other_weights_are_used_from_the_next_prompt_on(chat_tokenizer, num_samples):
    old, new = (model_of(dataclasses.replace(CONFIG, num_heads=4), chat_tokenizer.vocab_size) for _ in range(2))
    new = eqx.tree_at(lambda m: m.blocks[0].attention.value.weight_IO, new, replace_fn=lambda weight: -weight)
    (prompt,) = prompts(chat_tokenizer.vocab_size, (9,))
    engine = engine_of(old, chat_tokenizer, max_rows=2)
    of_old = engine.generate([prompt], GREEDY, num_samples=num_samples)
    engine.load(new)
    of_new = engine.generate([prompt], GREEDY, num_samples=num_samples)
    assert of_new == engine_of(new, chat_tokenizer, max_rows=2).generate([prompt], GREEDY, num_samples=num_samples)
    assert of_new[0][0].logprobs != of_old[0][0].logprobs


def test_a_stop_token_ends_a_sample_and_is_named(engine, chat_tokenizer):
    (prompt,) = prompts(chat_tokenizer.vocab_size, (5,))
    ((whole,),) = engine.generate([prompt], GREEDY)
    stop = whole.tokens[7]
    ((cut,),) = engine.generate([prompt], dataclasses.replace(GREEDY, stop_tokens=(stop,)))
    assert cut.tokens == whole.tokens[: whole.tokens.index(stop)]
    assert (cut.finish_reason, cut.stop_token) == ("stop", stop)


@pytest.mark.parametrize(("begins", "ends"), [
    ("<s>", "</s>"), ("<|begin_of_text|>", "<|end_of_text|>"), ("<|begin_of_text|>", "<|eot_id|>"), ("<s>", "<|endoftext|>"),
])  # fmt: skip
def test_tokens_that_published_tokenizers_end_a_document_or_an_answer_with_end_a_sample(
    engine, chat_model, chat_tokenizer, begins, ends
):
    (prompt,) = prompts(chat_tokenizer.vocab_size, (5,))
    ((whole,),) = engine.generate([prompt], GREEDY)
    stop = whole.tokens[7]
    names = [f"t{place}" for place in range(chat_tokenizer.vocab_size)]
    names[-1], names[stop] = begins, ends
    made = HfTokenizer(BPE({name: place for place, name in enumerate(names)}, []))
    made.add_special_tokens([begins, ends])
    tokenizer = Tokenizer(made.to_str().encode(), "made")
    ((cut,),) = engine_of(chat_model, tokenizer).generate([prompt], GREEDY)
    assert (cut.finish_reason, cut.stop_token) == ("stop", stop)
    assert cut.tokens == whole.tokens[: whole.tokens.index(stop)]


def test_an_answer_ends_where_the_engine_has_no_more_room(engine, chat_tokenizer):
    (prompt,) = prompts(chat_tokenizer.vocab_size, (50,))
    ((sample,),) = engine.generate([prompt], dataclasses.replace(GREEDY, max_tokens=1000))
    assert len(sample.tokens) <= 14
    if sample.finish_reason == "length":
        assert len(sample.tokens) == 14


@pytest.mark.parametrize(
    ("prompt", "message"),
    [((), "no tokens"), (tuple([1] * 64), "64 tokens and the model has room for 64"), ((5, 9999), "the token 9999")],
)
def test_prompts_that_cannot_be_continued_are_refused(engine, prompt, message):
    with pytest.raises(ConfigError, match=message):
        engine.generate([prompt], GREEDY)


@pytest.mark.parametrize(("tokens", "repetitions"), [(23, 1), (64, 0)])
def test_a_measurement_of_nothing_is_refused(engine, tokens, repetitions):
    with pytest.raises(ConfigError, match="measure nothing: use at least 1 and 24"):
        measure_speed(engine, rows=1, prompt_tokens=4, new_tokens=tokens, repetitions=repetitions)


@pytest.mark.parametrize(
    ("field", "value"), [("max_tokens", 0), ("temperature", -1), ("temperature", float("nan")), ("top_k", 0), ("top_p", 0), ("seed", -1)]
)  # fmt: skip
def test_options_that_cannot_work_are_refused(field, value):
    with pytest.raises(ConfigError, match=f"`{field}` is"):
        SamplingOptions(**{"max_tokens": 5} | {field: value})


def test_a_stream_gives_its_first_token_before_a_burst(engine, chat_tokenizer, monkeypatch):
    (prompt,) = prompts(chat_tokenizer.vocab_size, (5,))
    expected = engine.generate([prompt], GREEDY)[0][0].tokens
    monkeypatch.setattr(engine.programs, "burst", None)
    assert next(engine.stream(prompt, GREEDY)) == expected[0]


def test_cancelled_requests_leave_room_and_the_others_as_they_are(engine, chat_tokenizer):
    asked = prompts(chat_tokenizer.vocab_size, (4, 5, 6, 7, 8, 9))
    scheduler = engine.scheduler()
    requests = [Request(prompt, GREEDY) for prompt in asked]
    for request in requests:
        scheduler.submit(request)
    for _ in range(3):
        scheduler.step()
    gone = (requests[0], requests[2], requests[5])  # running, running, waiting
    for request in gone:
        scheduler.cancel(request)
    found = {request.id: [] for request in requests}
    while not scheduler.is_idle:
        for event in scheduler.step():
            assert event.request not in gone
            found[event.request.id].extend(event.tokens)
    expected = engine.generate([asked[4]], GREEDY)[0][0].tokens
    assert tuple(found[requests[4].id]) == expected


def test_a_call_of_the_calculator_is_answered_in_the_sample(chat_model, chat_tokenizer):
    special = chat_tokenizer.special_tokens
    engine = engine_of(chat_model, chat_tokenizer)
    call = [special["<|python_start|>"], *chat_tokenizer.encode("12*3"), special["<|python_end|>"]]
    result = [special["<|output_start|>"], *chat_tokenizer.encode("36"), special["<|output_end|>"]]
    (prompt,) = prompts(chat_tokenizer.vocab_size, (5,))
    scheduler = engine.scheduler()
    request = Request(prompt, dataclasses.replace(GREEDY, max_tokens=30))
    scheduler.submit(request)
    events = list(scheduler.step())
    # The row writes the call as if the model had chosen it; what follows is then the scheduler's.
    (row,) = [row for row in scheduler._rows if row is not None]
    for token in call[:-1]:
        assert row.tools.see(token) == []
    row.forced = [*call, *row.tools.see(call[-1])]
    while not scheduler.is_idle:
        events += scheduler.step()
    tokens = [token for event in events for token in event.tokens]
    mask = [bit for event in events for bit in event.mask]
    at = next(i for i in range(len(tokens)) if tokens[i : i + len(call)] == call)
    assert tokens[at + len(call) : at + len(call) + len(result)] == result
    assert mask[at : at + len(call) + len(result)] == [0] * (len(call) + len(result))
    # After the result the model goes on as it does with all of it as its prompt.
    known = (*prompt, *tokens[: at + len(call) + len(result)])
    ((rest,),) = engine.generate([known], dataclasses.replace(GREEDY, max_tokens=3))
    assert tokens[at + len(call) + len(result) :][:3] == list(rest.tokens)


def test_model_that_has_no_cache_is_refused_in_a_line(chat_tokenizer):
    model = Gpt2Config(seq_len=48, hidden_dim=16, num_layers=1, num_heads=2).build(300, key=jax.random.key(0))
    with pytest.raises(ConfigError, match="a Gpt2 cannot be decoded with a cache"):
        Engine(model, chat_tokenizer, max_length=48, max_rows=1)
