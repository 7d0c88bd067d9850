"""Dry runs of everything that people start from: the template, the seed's listing, and every speedrun in the repository."""

import contextlib
import io
import re
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from experiments.hackable_transformer_starter_template import PRESETS, HackableTransformerConfig
from experiments.simple_train_config import SimpleTrainConfig
from experiments.speedrun.prebuilt_caches import fineweb_edu_subcache_10B
from marin.optim import MuonConfig
from marin.resources import GpuConfig
from marin.speedrun.speedrun import Author, SpeedrunConfig

ROOT = Path(__file__).resolve().parents[2]
START, END = "----- START OF PRINT RUN INFO -----", "----- END OF PRINT RUN INFO -----"
TEMPLATE = "experiments.hackable_transformer_starter_template"


def _modules() -> list[str]:
    """Every speedrun that can be started: `main.py`, or the file named as its folder."""
    found = []
    for folder in sorted((ROOT / "experiments" / "speedrun").iterdir()):
        found += [f"experiments.speedrun.{folder.name}.{path.stem}" for path in _scripts(folder)]
    return found


def _scripts(folder: Path) -> list[Path]:
    return [path for path in (folder / "main.py", folder / f"{folder.name}.py") if path.is_file()]


def test_every_speedrun_folder_has_a_script_that_can_be_started() -> None:
    folders = [path for path in (ROOT / "experiments" / "speedrun").iterdir() if (path / "__init__.py").is_file()]
    assert [folder.name for folder in folders if not _scripts(folder)] == []


class DryRun(NamedTuple):
    """A dry run, and the directory that it was told to use, which was not there before."""

    done: Any
    store: Path


# Those that the documents name run as people start them. The rest run one after another in a process of their own:
# importing JAX takes longer than a dry run.
DOCUMENTED = [
    "experiments.speedrun.hello_world.main",
    "experiments.speedrun.llama_75m_fineweb_edu.llama_75m_fineweb_edu",
]
ONE_AFTER_ANOTHER = """
import runpy, sys
arguments = sys.argv[1:]
for module in arguments[: arguments.index("--dry_run")]:
    print("===", module)
    sys.argv = [module, *arguments[arguments.index("--dry_run"):]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def dry_runs(shell: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DryRun]:
    """Every dry run of this file by name, two processes at a time."""
    root = tmp_path_factory.mktemp("dry_runs")

    def run(number: int, *arguments: str, with_flag: bool = True, **variables: str) -> DryRun:
        store, other = root / f"store{number}", root / "other"
        prefix = ("--prefix", str(store)) if with_flag else ()
        variables["MARIN_PREFIX"] = str(other if with_flag else store)
        return DryRun(shell.run(*arguments, "--dry_run", "true", *prefix, **variables), store)

    rest = [module for module in _modules() if module not in DOCUMENTED]
    jobs: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {"rest": (("-c", ONE_AFTER_ANOTHER, *rest), {})}
    jobs |= {module: (("-m", module), {}) for module in DOCUMENTED}
    jobs["template on GPUs"] = (("-m", TEMPLATE), {"SR_SIZES": "130m,520m,1_2b"})
    jobs["template on TPUs"] = (("-m", TEMPLATE), {"SR_USE_TPU": "1", "with_flag": False})
    with ThreadPoolExecutor(2) as pool:
        waiting = {name: pool.submit(run, i, *args, **kwargs) for i, (name, (args, kwargs)) in enumerate(jobs.items())}
        done = {name: future.result() for name, future in waiting.items()}
    assert list(root.iterdir()) == []
    together, store = done.pop("rest")
    assert (together.status, together.err) == (0, "")
    printed = re.split(r"^=== (.+)\n", together.out, flags=re.MULTILINE)[1:]
    parts = zip(printed[::2], printed[1::2], strict=True)
    return done | {module: DryRun(replace(together, out=out), store) for module, out in parts}


@pytest.mark.parametrize("module", _modules())
def test_speedrun_dry_run_says_what_each_step_would_do_and_where(module: str, dry_runs: dict[str, DryRun]) -> None:
    done, store = dry_runs[module]
    assert (done.status, done.err) == (0, "")
    assert done.out.count(START) == done.out.count(END) >= 1
    steps = done.steps()
    assert {(action, reason) for action, reason, _ in steps.values()} == {("would run", "never ran")}
    for name, (_, _, path) in steps.items():
        assert re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{8}}", str(path.relative_to(store)))
    assert {name.split("/")[0] for name in steps} >= {"checkpoints", "evaluation", "speedrun", "tokenized"}
    assert f"dry run: {len(steps)} steps under {store}: {len(steps)} would run; nothing was run or written" in done.out


def test_dry_run_names_no_path_outside_the_prefix_of_the_flag(dry_runs: dict[str, DryRun]) -> None:
    done, store = dry_runs["experiments.speedrun.hello_world.main"]
    assert str(store) in done.out
    assert str(store.parent / "other") not in done.out


# --- the hackable template ----------------------------------------------------------------------------------------


def test_template_130m_on_one_a100_prints_the_figures_of_the_tutorial(dry_runs: dict[str, DryRun]) -> None:
    done = dry_runs["template on GPUs"].done
    assert (done.status, done.err) == (0, "")
    info = done.out.split(START)[1]
    assert '"gpu_count": 1' in info
    assert '"accelerator_type": "A100-80G"' in info
    assert "Model size: 154.15 million parameters" in info
    assert "Model FLOPs: 2.11e+18 FLOP\n" in info
    assert "* 4.21e+18 FLOPs assuming an MFU of 0.5, and" in info
    assert "* 1.05e+19 FLOPs assuming an MFU of 0.2." in info
    assert '"num_train_steps": 5880' in info


def test_template_of_larger_sizes_warns_that_the_data_repeats(dry_runs: dict[str, DryRun]) -> None:
    warnings = [line for line in dry_runs["template on GPUs"].done.out.splitlines() if line.startswith("warning: ")]
    assert [re.findall(r"([\w.]+) trains on ([\d.]+)B tokens, the dataset has 10B", line) for line in warnings] == [
        [("520m", "12.0")],
        [("1_2b", "28.6")],
    ]


def test_template_with_the_tpu_variable_asks_for_a_v5p_32_under_the_prefix_of_the_environment(
    dry_runs: dict[str, DryRun],
) -> None:
    done, store = dry_runs["template on TPUs"]
    assert (done.status, done.err) == (0, "")
    assert '"tpu_type": "v5p-32"' in done.out
    assert "Number of devices: 32\nNumber of chips: 16\nDevice FLOPs: 4.59e+14 FLOP/s\n" in done.out
    assert done.steps()
    assert all(path.is_relative_to(store) for _, _, path in done.steps().values())


@pytest.mark.parametrize(
    ("size", "parameters", "steps", "model_flops"),
    [
        ("130m", 154_147_328, 5880, 2.1074e18),
        ("300m", 299_649_792, 11430, 9.9781e18),
        ("520m", 602_457_088, 22981, 4.8780e19),
        ("1_2b", 1_431_373_824, 27301, 2.4711e20),
    ],
)
def test_template_size_has_the_published_parameters_steps_and_flops(
    size: str, parameters: int, steps: int, model_flops: float
) -> None:
    from experiments.hackable_transformer_starter_template import speedrun_config

    with contextlib.redirect_stdout(io.StringIO()):
        config = speedrun_config(size)
    assert config.model_config.total_trainable_params(config.vocab_size) == parameters
    assert config.train_config.num_train_steps == steps
    assert config.compute_model_flops() == pytest.approx(model_flops, rel=1e-4)


def test_template_presets_are_those_of_the_reference() -> None:
    shown = {
        size: (o.learning_rate, o.adam_lr, o.momentum, o.decay, o.max_grad_norm, o.epsilon, p.num_gpus, p.tpu_type)
        for size, p in PRESETS.items()
        for o in [p.optimizer]
        if p.num_gpus  # the size for a processor is ours
    }
    assert shown == {
        "130m": (0.016, 0.0032, 0.95, 0.8, 1, 1e-15, 1, "v5p-32"),
        "300m": (0.008, 0.0024, 0.98, 0.8, 1, 1e-15, 1, "v5p-32"),
        "520m": (0.008, 0.0024, 0.98, 1, 1, 1e-25, 2, "v5p-32"),
        "1_2b": (0.004, 0.0012, 0.98, 1, 2, 1e-15, 4, "v5p-32"),
    }
    common = {(p.optimizer.weight_decay, p.optimizer.warmup, p.optimizer.beta1, p.optimizer.beta2, p.optimizer.muon_epsilon, p.optimizer.min_lr_ratio) for p in PRESETS.values() if p.num_gpus}  # fmt: skip
    assert common == {(0.1, 0, 0.8, 0.98, 1e-5, 0)}


# --- the seed documents -------------------------------------------------------------------------------------------


def test_print_run_info_is_the_tutorials_sample_line_by_line(seeds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (seed,) = seeds.glob("001*")
    text = seed.read_text()
    sample = text[text.index(START) : text.index(END) + len(END)]
    SpeedrunConfig(
        author=Author(
            "__SUBMISSION_AUTHOR_NAME__", "__SUBMISSION_AUTHOR_AFFILIATION__", "__SUBMISSION_AUTHOR_URL__"
        ),
        description="__SUBMISSION_DESCRIPTION__ (130m)",
        # The template leaves the kernel to the device; the sample is of a time when it named one.
        model_config=HackableTransformerConfig(attn_backend="JAX_FLASH"),
        train_config=SimpleTrainConfig(
            GpuConfig(gpu_count=1, accelerator_type="A100-80G"),
            train_batch_size=128,
            num_train_steps=5880,
            learning_rate=0.032,
            optimizer_config=MuonConfig(
                learning_rate=0.032, adam_lr=0.0064, weight_decay=0.1, min_lr_ratio=0, warmup=0, decay=0.8,
                momentum=0.95, beta1=0.8, beta2=0.98, epsilon=1e-15, muon_epsilon=1e-5, max_grad_norm=1,
            ),
            steps_per_hf_export=-1,
        ),
        tokenized_dataset=fineweb_edu_subcache_10B,
    ).print_run_info()  # fmt: skip
    printed = capsys.readouterr().out.removesuffix("\n")
    assert _without_addresses(printed).split("\n") == _without_addresses(sample).split("\n")


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+>", " at 0x>", text)


def test_listing_of_the_first_tutorial_dry_runs_as_it_stands(seeds: Path, shell: Any, tmp_path: Path) -> None:
    (seed,) = seeds.glob("000*")
    listing = re.search(r"```python\n(.*?executor_main\([^\n]*\n)", seed.read_text(), re.DOTALL)
    assert listing is not None
    file = tmp_path / "llama_75m_fineweb_edu.py"
    # The opening quotes stand one column left of the rest; Markdown hides that, Python would not.
    file.write_text(textwrap.dedent(" " + listing.group(1)))
    done = shell.run(str(file), "--dry_run", "true", "--prefix", str(tmp_path / "store"))
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(START)
    assert END in done.out
    steps = done.steps()
    assert {name for name in steps if name.startswith("checkpoints/")} == {"checkpoints/speedrun/75M_llama_fineweb_edu"}
    assert "tokenized/subcache/fineweb-edu-10B" in steps
    assert "Number of devices: 128\nNumber of chips: 64\nDevice FLOPs: 2.75e+14 FLOP/s\n" in done.out
    assert list(tmp_path.iterdir()) == [file]
