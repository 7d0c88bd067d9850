"""Every flag that the contest's guide and its reference name, with its default, and that those of base_train do what they say."""

import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import tyro

from marin import hardware
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.errors import ConfigError, HardwareError
from marin.gpt2.command import parse_flags
from marin.gpt2.datasets import open_dataset, open_tokenizer
from marin.gpt2.devices import precision_of, resources_of
from marin.gpt2.places import Places
from marin.nn.precision import Precision
from marin.resources import CpuOnlyConfig, GpuConfig, TpuPodConfig
from marin.training.preflight import check_devices
from scripts import base_train

# Flag: default as `--help` shows it; None where it is not shown or not the same.
BASE_TRAIN = {
    "run": "dummy",
    "device-type": None,
    "fp8": None,
    "fp8-recipe": "tensorwise",
    "depth": None,
    "aspect-ratio": "64",
    "head-dim": "128",
    "max-seq-len": "2048",
    "window-pattern": "SSSL",
    "num-iterations": "-1",
    "target-flops": "-1.0",
    "target-param-data-ratio": None,
    "device-batch-size": "32",
    "total-batch-size": None,
    "embedding-lr": "0.3",
    "unembedding-lr": "0.008",
    "matrix-lr": "0.02",
    "scalar-lr": "0.5",
    "weight-decay": "0.28",
    "warmup-steps": "40",
    "warmdown-ratio": "0.65",
    "final-lr-frac": "0.05",
    "resume-from-step": "-1",
    "eval-every": "250",
    "eval-tokens": "41943040",
    "core-metric-every": None,
    "core-metric-max-per-task": "500",
    "sample-every": "2000",
    "save-every": None,
    "model-tag": None,
}
FLAGS = {
    "dataset": {"num-files": "-1", "num-workers": "4"},
    "tok_train": {"max-chars": "2000000000", "doc-cap": "10000", "vocab-size": "32768"},
    "tok_eval": {},
    "base_train": BASE_TRAIN,
    "base_eval": {
        "eval": None,
        "max-per-task": "-1",
        "split-tokens": "20971520",
        "device-batch-size": "32",
        "model-tag": None,
        "step": None,
        "hf-path": None,
    },
    "chat_sft": {
        "load-optimizer": None,
        "num-iterations": "-1",
        "init-lr-frac": "0.8",
        "warmup-ratio": "0.0",
        "warmdown-ratio": "0.5",
        "final-lr-frac": "0.0",
        "eval-every": "200",
        "eval-tokens": "20971520",
        "chatcore-every": "200",
        "chatcore-max-cat": "-1",
        "chatcore-max-sample": "24",
        "mmlu-epochs": "3",
        "gsm8k-epochs": "4",
    },
    "chat_eval": {},
    "chat_rl": {
        "num-epochs": "1",
        "device-batch-size": "8",
        "examples-per-step": "16",
        "num-samples": "16",
        "max-new-tokens": "256",
        "temperature": "1.0",
        "top-k": "50",
        "init-lr-frac": "0.05",
        "eval-every": "60",
        "save-every": "60",
        "eval-examples": "400",
    },
    "chat_cli": {},
    "chat_web": {},
    "infer_bench": {},
}
SHORT = {
    "dataset": ["-n", "-w"],
    "chat_eval": ["-i", "-a", "-t", "-m", "-n", "-k", "-b", "-x"],
    "chat_cli": ["-i", "-p", "-t", "-k"],
}


def _help_of(script: str, monkeypatch, capsys) -> str:
    if importlib.util.find_spec(f"scripts.{script}") is None:
        pytest.skip(f"scripts.{script} is not there")
    module = importlib.import_module(f"scripts.{script}")
    monkeypatch.setattr("sys.argv", [script, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


@pytest.mark.parametrize("script", FLAGS)
def test_script_has_every_flag_with_its_default(script, monkeypatch, capsys):
    text = _help_of(script, monkeypatch, capsys)
    for flag, default in FLAGS[script].items():
        assert re.search(rf"--{flag}\b", text), flag
        if default is not None:
            # What stands behind the flag, up to the next one.
            found = re.findall(rf"--{flag} .*?(?=\n[ │]*-|\Z)", text, re.DOTALL)
            plain = [re.sub(r"[│\s]+", " ", own) for own in found]
            assert any(f"default: {default})" in own for own in plain), (flag, plain)
    for flag in SHORT.get(script, ()):
        assert re.search(rf"(?<![-\w]){flag}\b", text), flag
    assert "--base-dir" in text


# ---- what flags of base_train do --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Places:
    """A base directory with a tokenizer, and two files of text."""
    folder = tmp_path_factory.mktemp("base")
    for name in ("a", "b"):
        write_documents(
            str(folder / "text" / f"{name}.jsonl.zst"),
            [Document(str(i), f"graph {i} has {i * i} edges, and no node {name}.", "test") for i in range(200)],
        )
    train_tokenizer(
        TrainTokenizerConfig(str(folder / "text" / "a.jsonl.zst"), 280, output_path=str(folder / "tokenizer"))
    )
    return Places(str(folder))


def _parse(*arguments: str) -> base_train.Flags:
    return tyro.cli(base_train.Flags, args=list(arguments)).filled()


def _config(places: Places, *arguments: str):
    small = [] if any(argument.startswith("--depth") for argument in arguments) else ["--depth=4"]
    flags = _parse("--device-type", "cpu", "--dataset", f"{places.base}/text", *small, *arguments)
    made = base_train.make_recipe(flags, open_tokenizer(places).vocab_size)
    return base_train.make_config(flags, places, made, open_dataset(places, flags.dataset))


@pytest.mark.parametrize(
    ("arguments", "effect", "expected"),
    [
        (["--depth", "26"], lambda c: (c.train.model.num_layers, c.train.model.hidden_dim), (26, 1664)),
        (["--depth=12", "--aspect-ratio=100"], lambda c: c.train.model.hidden_dim, 1280),
        (["--depth=12", "--head-dim=64"], lambda c: c.train.model.num_heads, 12),
        (["--max-seq-len=512"], lambda c: (c.train.model.seq_len, c.train.train.train_batch_size), (512, 1024)),
        (["--window-pattern=L"], lambda c: c.train.model.window(0), None),
        (["--run", "d26-feb"], lambda c: c.train.run_name, "d26-feb"),
        (["--device-batch-size=8"], lambda c: c.train.train.per_device_parallelism, 8),
        (["--depth=26", "--target-param-data-ratio=8.25"], lambda c: c.train.train.num_train_steps, 13602),
        (["--total-batch-size=1048576"], lambda c: c.train.train.train_batch_size, 512),
        (["--num-iterations=77"], lambda c: c.train.train.num_train_steps, 77),
        (["--core-metric-every=999999"], lambda c: c.core_every, 999999),
        (["--core-metric-every=-1"], lambda c: c.core_every, 0),
        (["--core-metric-max-per-task=-1"], lambda c: c.core_max_per_task, -1),
        (["--sample-every=-1"], lambda c: c.sample_every, 0),
        (["--save-every", "-1"], lambda c: c.train.train.steps_per_export == c.train.train.num_train_steps, True),
        (["--save-every=100"], lambda c: c.train.train.steps_per_export, 100),
        (["--eval-every=-1"], lambda c: c.eval_every, 0),
        (["--eval-tokens=1000"], lambda c: c.validation.num_tokens, 1000),
        (["--matrix-lr=0.04"], lambda c: c.train.train.learning_rate, 0.04),
        (["--scalar-lr=1.0"], lambda c: c.train.train.optimizer_config.input_scale_lr, 1.0),
        (["--warmup-steps=7"], lambda c: c.train.train.optimizer_config.warmup, 7),
        (["--warmdown-ratio=0.2"], lambda c: c.train.train.optimizer_config.decay, 0.2),
        (["--final-lr-frac=0.5"], lambda c: c.train.train.optimizer_config.min_lr_ratio, 0.5),
        (["--seed=3"], lambda c: (c.train.train.seed, c.train.train.data_seed), (3, 3)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_flag_of_base_train_has_its_effect(places, arguments, effect, expected):
    assert effect(_config(places, *arguments)) == expected


def test_presets_are_the_guides_figures_and_those_at_head():
    guide, head = _parse(), _parse("--preset", "head")
    of_guide = (guide.depth, guide.target_param_data_ratio, guide.total_batch_size, guide.core_metric_every)
    assert of_guide == (24, 10.5, 524288, 3000)
    assert (head.depth, head.target_param_data_ratio, head.total_batch_size) == (20, 12.0, -1)
    assert (head.core_metric_every, head.save_every) == (2000, -1)
    assert _parse("--preset", "head", "--depth", "26").depth == 26
    assert base_train.make_recipe(head, 32768).num_iterations == 4980


def test_what_says_where_or_how_often_is_no_part_of_the_identity(places):
    from marin.execution.graph import Graph
    from marin.gpt2.pretraining import train_base
    from marin.gpt2.stages import stage

    def fingerprint(*arguments: str) -> str:
        step = stage("base_train", train_base, _config(places, *arguments), places, places.checkpoints("base", "x"))
        return Graph([step], places.base).node(step).fingerprint

    usual = fingerprint("--depth=4")
    for same in ("--device-batch-size=4", "--sample-every=-1", "--core-metric-every=7", "--run=x"):
        assert fingerprint("--depth=4", same) == usual, same
    for other in ("--matrix-lr=0.01", "--seed=1", "--total-batch-size=262144", "--eval-tokens=100"):
        assert fingerprint("--depth=4", other) != usual, other


def test_fp8_is_used_where_the_gpu_has_it_and_falls_back_where_not(monkeypatch, capsys):
    assert precision_of(GpuConfig(8, "H100"), True, {}) == Precision("bf16", products="fp8")
    assert precision_of(GpuConfig(8, "H100"), False, {}) is None
    assert precision_of(GpuConfig(8, "A100-80G"), True, {}) is None
    assert "no 8-bit floating-point products" in capsys.readouterr().err
    assert precision_of(CpuOnlyConfig(), False, {"NANOCHAT_DTYPE": "bfloat16"}) == Precision("bf16")
    with pytest.raises(ConfigError, match="NANOCHAT_DTYPE"):
        precision_of(CpuOnlyConfig(), False, {"NANOCHAT_DTYPE": "float16"})


def test_device_type_counts_the_gpus_of_all_processes(monkeypatch):
    torchrun = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
    torchrun |= {"MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert resources_of("cpu", {}) == CpuOnlyConfig() and resources_of("v6e-8", {}) == TpuPodConfig("v6e-8")
    monkeypatch.setattr(hardware, "detect_gpus", list)
    assert resources_of("", {}) == CpuOnlyConfig()
    with pytest.raises(HardwareError, match="none is found"):
        resources_of("cuda", {})
    monkeypatch.setattr(hardware, "detect_gpus", lambda: [("H100", 1)] * 8)
    assert resources_of("auto", {}) == GpuConfig(8) == resources_of("cuda", torchrun)
    assert resources_of("auto", {"CUDA_VISIBLE_DEVICES": "0,3"}) == GpuConfig(2)
    assert resources_of("auto", {"SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "0"}) == GpuConfig(16)
    with pytest.raises(ConfigError, match="--device-type"):
        resources_of("mps", {})


def test_processor_is_computed_on_where_it_is_asked_for_and_jax_would_take_a_gpu(places, monkeypatch):
    before = jax.config.jax_platforms
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setattr(jax, "default_backend", lambda: jax.config.jax_platforms or "gpu")
    try:
        jax.config.update("jax_platforms", None)
        with pytest.raises(HardwareError, match=r"JAX sees only gpu here: use a config for gpu .*`--device-type gpu`"):
            check_devices(resources_of("cpu"))
        check_devices(_config(places, "--device-type=cpu").train.train.resources)
        assert os.environ["JAX_PLATFORMS"] == "cpu"  # for processes that are started from here
    finally:
        jax.config.update("jax_platforms", before)


def test_flags_that_are_wrong_are_refused_by_name(places):
    with pytest.raises(ConfigError, match="--device-batch-size"):
        _config(places, "--device-batch-size=0")
    for flag, value in (
        ("num-iterations", "0"), ("num-iterations", "-5"), ("target-flops", "inf"), ("target-flops", "nan"),
        ("target-param-data-ratio", "0"), ("total-batch-size", "0"), ("eval-tokens", "-1"), ("checkpoint-interval", "nan"),
        ("resume-from-step", "-7"), ("max-seq-len", "1"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"`--{flag}` is {value}"):
            _config(places, f"--{flag}={value}")
    with pytest.raises(ConfigError, match="^`--window-pattern` is 'SX'"):
        _config(places, "--window-pattern=SX")
    with pytest.raises(ConfigError, match="steps are counted in 32 bits"):
        _config(places, "--target-flops=1e60")
    with pytest.raises(ConfigError, match="^`--device-batch-size` is 7: a batch of .* has no equal parts"):
        _config(places, "--device-batch-size=7")


@pytest.mark.parametrize(
    ("script", "given", "said"),
    [
        ("base_train", ["--depth", "four"], r"--depth: 'four' is not taken: use a whole number"),
        ("base_train", ["--depth", "4.5"], r"--depth: '4.5' is not taken: use a whole number"),
        ("base_train", ["--matrix_lr", "high"], r"--matrix-lr: 'high' is not taken: use a number"),
        ("base_train", ["--preset", "gide"], r"--preset: 'gide' is not taken: use guide or head"),
        ("base_train", ["--depht=4"], r"there is no flag `--depht`, but there is `--depth`"),
        ("base_train", ["--target-flops", "-inf", "--dep", "4"], r"there is no flag `--dep`, but there is `--depth`"),
        ("base_train", ["-depth", "4"], r"there is no flag `-depth`, but there is `--depth`"),
        ("base_train", ["--depth"], r"--depth: expected one argument"),
        ("base_train", ["--no-fp8", "--depth=4", "more"], r"unrecognized arguments: more"),
        ("chat_eval", ["-m", "many"], r"--max-new-tokens/-m: 'many' is not taken: use a whole number"),
        ("chat_eval", ["-d", "f16"], r"--dtype/-d: 'f16' is not taken: use float32 or bfloat16"),
        ("chat_sft", ["--dataset", "a", "b", "--mad", "3"], r"there is no flag `--mad`, but there is `--made`"),
        ("chat_sft", ["--dataset"], r"--dataset: expected at least one argument"),
        ("chat_sft", ["--dataset", "--made=3"], r"--dataset: expected at least one argument"),
        ("report", [], r"required: action"),
        ("series", ["depths"], r"required: --tags"),
        ("report", ["generat"], r"action: 'generat' is not taken: use reset or generate"),
    ],
)
def test_wrong_flags_are_refused_in_one_line_that_says_what_is_taken(script, given, said, capsys):
    module = importlib.import_module(f"scripts.{script}")
    with pytest.raises(ConfigError, match=f"^[^\n]*{said}; --help lists the flags$"):
        parse_flags(module.Flags, None, given)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("script", "given", "said"),
    [
        ("chat_eval", ["-t", "200"], "`--temperature` is 200.0"),
        ("chat_eval", ["-t=nan"], "`--temperature` is nan"),
        ("chat_eval", ["-k=-1"], "`--top-k` is -1"),
        ("chat_eval", ["-m=0"], "`--max-new-tokens` is 0"),
        ("chat_eval", ["-n=0"], "`--num-samples` is 0"),
        ("chat_eval", ["-n=4"], "`--num-samples` is 4, but at `--temperature` 0 and `--top-k` 50 all"),
        ("chat_eval", ["-n=4", "-t=1", "-k=1"], "`--num-samples` is 4, but at `--temperature` 1 and `--top-k` 1"),
        ("chat_eval", ["-x=0"], "`--max-problems` is 0"),
        ("chat_eval", ["-a="], "`--task-name` is '': use names"),
        ("chat_eval", ["-a=GSM8K|"], "`--task-name` is 'GSM8K|': use names"),
        ("base_eval", ["--hf-path="], "`--hf-path` is '': use a folder"),
        ("chat_sft", ["--load-optimizer=2"], "`--load-optimizer` is 2"),
        ("chat_sft", ["--max-seq-len=0"], "`--max-seq-len` is 0"),
        ("chat_sft", ["--chatcore-max-cat=0"], "`--chatcore-max-cat` is 0"),
        ("chat_sft", ["--chatcore-max-sample=-2"], "`--chatcore-max-sample` is -2"),
        ("chat_sft", ["--init-lr-frac=-1"], "`--init-lr-frac` is -1.0"),
        ("chat_sft", ["--made=-3"], "`--made` is -3"),
        ("chat_sft", ["--mmlu-epochs=-1"], "`--mmlu-epochs` is -1"),
        ("chat_sft", ["--gsm8k-epochs=-2"], "`--gsm8k-epochs` is -2"),
        ("chat_sft", ["--made=5", "--seed=-1"], "`--seed` is -1"),
        ("chat_sft", ["--made=5", "--seed=4294967296"], "`--seed` is 4294967296"),
        ("chat_sft", ["--public=False"], "there are no conversations to train on"),
        ("chat_rl", ["--temperature=0"], "`--temperature` is 0.0"),
        ("chat_rl", ["--temperature=200"], "`--temperature` is 200.0"),
        ("chat_rl", ["--top-k=-1"], "`--top-k` is -1"),
        ("chat_rl", ["--top-k=1"], "`--top-k` is 1: all samples of a question would be the same"),
        ("chat_rl", ["--num-samples=1"], "`--num-samples` is 1"),
        ("chat_rl", ["--max-new-tokens=0"], "`--max-new-tokens` is 0"),
        ("chat_rl", ["--device-batch-size=7"], "`--device-batch-size` is 7"),
        ("chat_cli", ["-t=200"], "`--temperature` is 200.0"),
        ("chat_cli", ["-k=-1"], "`--top-k` is -1"),
        ("chat_cli", ["-m=0"], "`--max-tokens` is 0"),
        ("chat_cli", ["--seed=-1"], "`--seed` is -1"),
        ("chat_web", ["-p=65536"], "`--port` is 65536"),
        ("chat_web", ["--max-length=1"], "`--max-length` is 1"),
        ("chat_web", ["--max-rows=0"], "`--max-rows` is 0"),
        ("chat_web", ["--max-queue=0"], "`--max-queue` is 0"),
        ("chat_web", ["--timeout=nan"], "`--timeout` is nan"),
        ("infer_bench", ["-t=200"], "`--temperature` is 200.0"),
        ("infer_bench", ["-m=4"], "`--num-tokens` is 4: use at least 24"),
        ("base_eval", ["--eval=cor"], "`--eval` is 'cor'"),
        ("base_eval", ["--max-per-task=0"], "`--max-per-task` is 0"),
        ("tok_train", ["--vocab-size=0"], "`--vocab-size` is 0"),
        ("tok_eval", ["--max-files=0"], "`--max-files` is 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused_in_one_line_while_flags_are_read(script, given, said, capsys):
    module = importlib.import_module(f"scripts.{script}")
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}[^\n]*$"):
        parse_flags(module.Flags, None, given)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("given", "said"),
    [(["--help"], "usage: python -m scripts.tok_train"), (["--depht"], "error: there is no flag `--depht`")],
)
def test_script_says_how_it_is_run_and_not_where_it_lies(given, said, plain_environment, repository):
    command = [sys.executable, "-m", "scripts.tok_train", *given]
    environment = plain_environment | {"COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository, env=environment, timeout=120)
    assert said in done.stdout + done.stderr and str(repository) not in done.stdout + done.stderr


def test_script_whose_reader_has_left_ends_in_silence_and_not_as_done(plain_environment, repository, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "scripts.report", "reset", "--base-dir", str(tmp_path)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=repository, env=plain_environment)
    os.close(writer)
    assert done.stderr == b"" and done.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("name", ["runcpu", "speedrun", "miniseries", "scaling_laws"])
@pytest.mark.parametrize(("given", "status"), [("--help", 0), ("-h", 0), ("--depth=4", 2)])
def test_pipeline_that_is_asked_for_help_or_given_a_flag_says_so_and_runs_nothing(
    name, given, status, plain_environment, repository, tmp_path
):
    environment = plain_environment | {"PYTHON": "false", "HOME": str(tmp_path)}
    command = ["bash", f"{repository}/runs/{name}.sh", given]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)
    assert done.returncode == status
    if status == 0:
        assert f"bash runs/{name}.sh " in done.stdout and done.stderr == "" and "shellcheck" not in done.stdout
    else:
        assert "`--depth=4` is not taken" in done.stderr and f"`bash runs/{name}.sh --help`" in done.stderr


def test_pipeline_on_a_processor_ends_with_how_to_talk_to_the_model_that_it_made(
    plain_environment, repository, tmp_path
):
    environment = plain_environment | {"PYTHON": "echo", "HOME": str(tmp_path)}  # shows its commands and runs none
    command = ["bash", f"{repository}/runs/runcpu.sh"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)
    last = done.stdout.splitlines()[-1]
    assert last == f"talk to the model: echo -m scripts.chat_cli -i sft --base-dir {tmp_path}/.cache/marin/runcpu"
    assert done.returncode == 0 and "-m scripts.chat_sft " in done.stdout


SCRIPTS = sorted(path.stem for path in Path(base_train.__file__).parent.glob("[!_]*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_of_a_script_imports_no_jax(script, plain_environment, repository):
    asked = (
        "import runpy, sys\n"
        f"sys.argv = ['{script}', '--help']\n"
        "try:\n"
        f"    runpy.run_module('scripts.{script}', run_name='__main__', alter_sys=True)\n"
        "finally:\n"
        "    heavy = {'jax', 'equinox', 'optax'} & set(sys.modules)\n"
        "    print(f'imported: {sorted(heavy)}')\n"
    )
    command = [sys.executable, "-c", asked]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository, env=plain_environment, timeout=120)
    assert "usage: " in done.stdout and done.stdout.endswith("imported: []\n") and done.returncode == 0, done.stderr


@pytest.mark.parametrize(("encoding", "frame"), [("utf-8", "\u2502 --max-chars"), ("ascii", "  --max-chars")])
def test_help_is_framed_where_standard_output_can_show_it(encoding, frame, plain_environment, repository):
    command = [sys.executable, "-m", "scripts.tok_train", "--help"]
    environment = plain_environment | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, cwd=repository, env=environment, timeout=120)
    assert frame in done.stdout.decode(encoding) and done.returncode == 0 and done.stderr == b""
