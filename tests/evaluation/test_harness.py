"""`marin eval` as a person uses it, on a task file of their own; and what the harness asks against plain arithmetic."""

import importlib.util
import json
import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.cli.main import dispatch
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.errors import ConfigError, DataError
from marin.evaluation.harness_tasks import TaskEvaluator
from marin.models import LlamaConfig
from marin.models.hf_export import export_hf

if importlib.util.find_spec("lm_eval") is None:
    pytest.skip("lm-eval is not installed (extra `eval`)", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the harness and what it imports

CONFIG = LlamaConfig(
    seq_len=64, hidden_dim=32, intermediate_dim=40, num_layers=1, num_heads=2, num_kv_heads=2, tie_word_embeddings=False
)
QUESTIONS = [
    {"question": f"the cat {verb} on the", "choices": ["old tree", "river", "a house"], "gold": i % 3}
    for i, verb in enumerate(["sits", "runs", "sings", "sleeps"])
]
CHOICE_TASK = """
task: own_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
metric_list:
  - metric: acc
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A Hugging Face folder with a model none of whose weights is silent, and its tokenizer."""
    root = tmp_path_factory.mktemp("model")
    texts = ["the cat sits on the old tree near a river", "a house sings and runs, the cat sleeps"] * 6
    write_documents(str(root / "text.jsonl.zst"), [Document(str(i), text, "made") for i, text in enumerate(texts)])
    train_tokenizer(TrainTokenizerConfig(str(root / "text.jsonl.zst"), 290, output_path=str(root / "tokenizer")))
    model = CONFIG.build(290, key=jax.random.key(0))
    model = jax.tree.map(lambda leaf: 8 * leaf if eqx.is_array(leaf) and leaf.ndim == 2 else leaf, model)
    export_hf(model, CONFIG, str(root / "tokenizer"), root / "hf")
    return root / "hf"


@pytest.fixture(scope="module")
def opened(folder):
    from marin.training.run_model import load_hf_model

    return load_hf_model(folder)


@pytest.fixture
def harness(opened):
    from marin.evaluation.harness import HarnessModel

    return HarnessModel(opened.model, opened.tokenizer, max_length=64)


class Request:
    """What the harness hands over."""

    def __init__(self, *args):
        self.args = args


def log_likelihood(model, tokens: list[int], start: int) -> tuple[float, bool]:
    padded = jnp.asarray([tokens + [0] * (80 - len(tokens))])
    logits = np.asarray(model.activations(padded, None)[0] @ model.lm_head_DV, np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    total = sum(log_probabilities[i - 1, tokens[i]] for i in range(start, len(tokens)))
    return total, all(logits[i - 1].argmax() == tokens[i] for i in range(start, len(tokens)))


def test_log_likelihoods_are_those_of_plain_arithmetic_in_the_order_asked(harness, opened):
    tokenizer = opened.tokenizer
    pairs = [("the cat", " sits"), ("", "a river"), ("the cat", " runs and sleeps"), ("a house ", "sings")]
    found = harness.loglikelihood([Request(*pair) for pair in pairs], disable_tqdm=True)
    for (context, continuation), (value, greedy) in zip(pairs, found, strict=True):
        before = [tokenizer.bos_id, *tokenizer.encode(context.rstrip())]
        whole = [tokenizer.bos_id, *tokenizer.encode(context + continuation)]
        expected, hit = log_likelihood(opened.model, whole, len(before))
        assert value == pytest.approx(expected, abs=1e-4) and greedy == hit


def test_likelihood_of_a_long_text_is_the_sum_over_its_windows(harness, opened):
    text = "the cat sits on the old tree near a river " * 12
    tokens = opened.tokenizer.encode(text)
    assert len(tokens) > 2 * 64
    (value,) = harness.loglikelihood_rolling([Request(text)], disable_tqdm=True)
    expected, first = 0.0, True
    for begin in range(0, len(tokens), 64):
        piece = tokens[begin : begin + 64]
        if first:
            sequence = [opened.tokenizer.bos_id, *piece]
        else:  # the last window reaches back as far as the context allows
            sequence = tokens[max(0, begin + len(piece) - 65) : begin + len(piece)]
        expected += log_likelihood(opened.model, sequence, len(sequence) - len(piece))[0]
        first = False
    assert value == pytest.approx(expected, rel=1e-5)


def test_long_context_loses_its_beginning_and_a_longer_continuation_is_refused(harness, opened):
    context = "the cat sits on the old tree near a river " * 6
    ((value, _),) = harness.loglikelihood([Request(context, " sings")], disable_tqdm=True)
    whole = [opened.tokenizer.bos_id, *opened.tokenizer.encode(context.rstrip() + "  sings")]
    before = len(opened.tokenizer.encode(context.rstrip())) + 1
    expected, _ = log_likelihood(opened.model, whole[-65:], 65 - (len(whole) - before))
    assert value == pytest.approx(expected, abs=1e-4)
    with pytest.raises(DataError, match="`--max-length`"):
        harness.loglikelihood([Request("the", context)], disable_tqdm=True)


def test_generation_is_greedy_and_ends_before_a_stop_string(harness, opened):
    plain = harness.generate_until([Request("the cat", {"max_gen_toks": 12, "until": []})], disable_tqdm=True)[0]
    tokens = [opened.tokenizer.bos_id, *opened.tokenizer.encode("the cat")]
    start = len(tokens)
    for _ in range(12):
        padded = jnp.asarray([tokens + [0] * (80 - len(tokens))])
        logits = opened.model.activations(padded, None)[0, len(tokens) - 1] @ opened.model.lm_head_DV
        following = int(jnp.argmax(logits))
        if following == opened.tokenizer.bos_id:
            break
        tokens.append(following)
    assert plain == opened.tokenizer.decode(tokens[start:]) and len(plain) > 3
    stop = plain[2:4]
    options = {"max_gen_toks": 12, "until": [stop, "\0"]}
    both = harness.generate_until([Request("the cat", options), Request("a river", options)], disable_tqdm=True)
    assert both[0] == plain[: plain.index(stop)] and stop not in both[1]


def test_a_prompt_keeps_half_of_a_short_context_or_is_said_to_have_none(opened):
    from marin.evaluation.harness import HarnessModel

    short = HarnessModel(opened.model, opened.tokenizer, max_length=24)
    (text,) = short.generate_until([Request("the cat", {"until": []})], disable_tqdm=True)
    (same,) = short.generate_until([Request("the cat", {"until": [], "max_gen_toks": 12})], disable_tqdm=True)
    assert text == same
    with pytest.raises(DataError, match=r"writes up to 24 tokens .* context of 24 leaves none"):
        short.generate_until([Request("the cat", {"until": [], "max_gen_toks": 24})], disable_tqdm=True)


def test_command_evaluates_a_task_of_ones_own(folder, opened, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data, tasks = tmp_path / "questions.jsonl", tmp_path / "tasks"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    tasks.mkdir()
    (tasks / "own.yaml").write_text(CHOICE_TASK.format(data=data))
    output = tmp_path / "results.json"
    command = ["eval", str(folder), "--tasks", "own_choices", "--include-path", str(tasks), "--output", str(output)]
    assert dispatch(command) == 0
    shown = capsys.readouterr().out
    assert "own_choices" in shown and "acc" in shown
    tokenizer, right = opened.tokenizer, 0
    for question in QUESTIONS:
        before = [tokenizer.bos_id, *tokenizer.encode(question["question"])]
        scores = [
            log_likelihood(
                opened.model,
                [tokenizer.bos_id, *tokenizer.encode(question["question"] + " " + choice)],
                len(before),
            )[0]
            for choice in question["choices"]
        ]
        right += int(np.argmax(scores)) == question["gold"]
    written = json.loads(output.read_text())
    assert written["results"]["own_choices"]["acc,none"] == pytest.approx(right / 4)


def test_tasks_of_a_file_are_measured_on_a_model_in_training(folder, opened, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data, task = tmp_path / "questions.jsonl", tmp_path / "own.yaml"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    task.write_text(CHOICE_TASK.format(data=data))
    measured = TaskEvaluator([str(task)], opened.tokenizer, 64)(opened.model, opened.precision)
    output = tmp_path / "results.json"
    options = ["--tasks", "own_choices", "--include-path", str(tmp_path), "--output", str(output)]
    assert dispatch(["eval", str(folder), *options]) == 0
    told = json.loads(output.read_text())["results"]["own_choices"]
    assert measured == {"own_choices/acc": pytest.approx(told["acc,none"])}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("a: [", "cannot be read"),
        ("dataset_path: json", "has no `task`"),
        (CHOICE_TASK.format(data="nowhere.jsonl"), "cannot be had"),
    ],
)
def test_task_files_that_cannot_be_used_are_refused_before_training(opened, tmp_path, content, message):
    task = tmp_path / "own.yaml"
    if content is not None:
        task.write_text(content)
    with pytest.raises((ConfigError, DataError), match=message):
        TaskEvaluator([str(task)], opened.tokenizer, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # Slow, as the harness reads all of its task files to know their names.
        pytest.param(["--tasks", "no_such_task"], "lm-eval does not know", marks=pytest.mark.slow),
        (["--tasks", " , "], "blank"),
        (["--tasks", "piqa", "--limit", "0"], "`--limit` is 0"),
        (["--tasks", "piqa", "--include-path", "nowhere"], "is no folder"),
        (["--tasks", "piqa", "--output", "nowhere/results.json"], "folder is not there"),
        (["--tasks", "piqa", "--output", "."], "is a folder: name a file in it"),
        (["--tasks", "piqa", "--output", os.devnull], "is no ordinary file"),  # which a file would take the place of
    ],
)
def test_bad_arguments_are_refused_before_the_model_is_loaded(folder, arguments, message):
    with pytest.raises(ConfigError, match=message):
        dispatch(["eval", str(folder / "absent"), *arguments])
