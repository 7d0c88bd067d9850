"""The code that the tutorials show works as they say."""

import re
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin.data.cache import TokenCache
from marin.data.documents import Document, read_documents, write_documents
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.errors import DataError
from marin.execution import Executor, ExecutorMainConfig
from marin.models import LlamaConfig
from marin.models.hf_export import export_hf

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


def _python_blocks(name: str) -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", (TUTORIALS / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_optimizer_of_the_tutorial_is_built_by_a_config_and_steps_by_the_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    definition, groups, use = _python_blocks("add-optimizer.md")
    assert definition == (ROOT / "marin" / "optim" / "lion.py").read_text(encoding="utf-8")
    module = types.ModuleType("marin.optim.lion")
    monkeypatch.setitem(sys.modules, "marin.optim.lion", module)
    exec(compile(definition, "lion.py", "exec"), vars(module))
    namespace: dict[str, object] = {"__name__": "use"}
    exec(compile(use, "use.py", "exec"), namespace)
    config = namespace["config"].train_config.build_optimizer()  # type: ignore[attr-defined]
    assert type(config).__name__ == "LionConfig"

    plain = module.LionConfig(learning_rate=0.1, weight_decay=0.0, warmup=0, lr_schedule="constant")
    params = {"weight_IO": jnp.array([[1.0, -2.0], [3.0, -4.0]])}
    optimizer = plain.build(params, 40)
    state = optimizer.init(params)
    updates, _ = optimizer.update(params, state, params)  # the gradient of half the sum of squares
    np.testing.assert_allclose(updates["weight_IO"], -0.1 * np.sign(params["weight_IO"]), rtol=1e-6)
    before = optax.tree.norm(params, squared=True)
    for _ in range(40):
        updates, state = optimizer.update(params, state, params)
        params = optax.apply_updates(params, updates)
    assert optax.tree.norm(params, squared=True) < 0.05 * before

    exec(compile(groups, "groups.py", "exec"), namespace)
    mixed = namespace["mixed"].build(params | {"norm_D": jnp.ones(2), "embedding_VD": jnp.ones((3, 2))}, 40)  # type: ignore[attr-defined]
    assert isinstance(mixed, optax.GradientTransformation)


def test_folder_of_the_hugging_face_tutorial_is_read_as_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = _python_blocks("hugging-face.md")
    tokenizer = str(tmp_path / "tokenizer")
    write_documents(documents := str(tmp_path / "docs.jsonl.zst"), [Document("0", "a few words " * 20, "test")])
    train_tokenizer(TrainTokenizerConfig(documents, 260, tokenizer))
    small = LlamaConfig(seq_len=8, hidden_dim=8, intermediate_dim=8, num_layers=1, num_heads=2, num_kv_heads=1)
    export_hf(small.build(264, key=jax.random.key(0)), small, tokenizer, tmp_path / "exported")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    exec(compile(block, "hugging-face.md", "exec"), namespace)
    assert namespace["config"].num_kv_heads == 1  # type: ignore[attr-defined]
    assert namespace["model"].lm_head_DV.shape == (8, 264)  # type: ignore[attr-defined]


def test_first_experiment_of_the_tutorial_dry_runs(tmp_path: Path, plain_environment: dict[str, str]) -> None:
    (script,) = _python_blocks("first-experiment.md")
    (tmp_path / "main.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "main.py", "--dry_run", "true", "--prefix", "store"],
        cwd=tmp_path,
        env=plain_environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^would run +checkpoints/speedrun/hello_world: never ran$", done.stdout, re.MULTILINE)
    assert re.search(r"^would run +checkpoints/speedrun/tied_head: never ran$", done.stdout, re.MULTILINE)
    assert not (tmp_path / "store").exists()


def test_dataset_of_the_tutorial_becomes_tokens_and_is_what_the_run_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script,) = _python_blocks("add-dataset.md")
    monkeypatch.chdir(ROOT)  # it reads `docs`
    module = types.ModuleType("notes_of_the_tutorial")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    (tmp_path / "main.py").write_text(script)
    exec(compile(script, str(tmp_path / "main.py"), "exec"), vars(module))
    prefix = str(tmp_path / "store")
    executor = Executor(ExecutorMainConfig(prefix=prefix, run_only=("tokenized",)))
    executor.run([module.notes_tokenized])
    cache = TokenCache.open(executor.output_path(module.notes_tokenized))
    corpus = Path(executor.output_path(module.notes))
    train, held_out = (list(read_documents(str(corpus / f"{name}.jsonl.zst"))) for name in ("train", "heldout"))
    pages = sorted((ROOT / "docs").rglob("*.md"))
    assert len(train) + len(held_out) == len(pages) and 0 < len(held_out) < len(train)
    assert cache.num_documents == len(train)
    assert module.config.dataset.tokenizer is module.tokenizer and module.config.vocab_size == 512
    with pytest.raises(DataError, match="0 files to train on, 0 held out: name a fuller folder"):
        module.read_notes(module.NotesConfig(str(tmp_path / "empty"), 1, str(tmp_path / "out")))


def test_gpu_example_of_the_tutorial_changes_the_hardware_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = _python_blocks("train-on-a-gpu.md")
    namespace: dict[str, object] = {"__name__": "on_gpu"}
    exec(compile(script, "on_gpu.py", "exec"), namespace)
    config = namespace["on_gpu"]
    assert config.resources.platform == "gpu" and config.resources.num_chips == 1  # type: ignore[attr-defined]
    assert config.train_config.num_train_steps == 460  # type: ignore[attr-defined]
