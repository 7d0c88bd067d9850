"""Evaluating a base model, or a Hugging Face folder: CORE, bits per byte of both splits, samples.

    BASE/base_eval/{name}.csv                  CORE's tasks as nanochat writes them
    BASE/base_eval/{name}.json                 the same with intervals, both sets of baselines and what is missing
    BASE/base_eval/{tag}_{step}/records/       what was found of each item; an interrupted evaluation goes on from here
                               /core.json      the same as the JSON file above, which another run of as many steps replaces
                               /bits-.../      bits per byte of one set of documents, by one set of weights
                               /samples.json

`{name}` is `base_model_{step}` for a run, and the folder's name for a Hugging Face model. With at most N items of each task
`records` and `core` end in `_N_a_task`; the files of `{name}` are those of the last evaluation.
"""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import ClassVar

import jax

from marin.evaluation import bits_per_byte
from marin.evaluation.core import CoreResult, evaluate_core
from marin.evaluation.likelihood import LikelihoodScorer, default_batch_tokens
from marin.evaluation.records import RecordFolder
from marin.execution.step import ExecutorStep, placement, this_output_path
from marin.gpt2.datasets import Dataset, ValidationConfig
from marin.gpt2.places import Places
from marin.gpt2.samples import write_samples
from marin.gpt2.stages import stage
from marin.nn.precision import Precision
from marin.storage import files
from marin.training.checkpoint_manifest import seal_of
from marin.training.run_model import RunModel, load_hf_model, load_run_model

BITS_FILE, SAMPLES_FILE = "bits_per_byte.json", "samples.json"
# Bits per byte of weights from elsewhere are measured on sequences of at most so many tokens, as those of our own models are.
# Published models state contexts of up to 131,072: a batch of 32 has 4 million tokens, and most of its time is attention's.
_HF_CONTEXT = 2048


@dataclasses.dataclass(frozen=True)
class BaseModel:
    """Which model is evaluated, before it is loaded.

    Args:
        path: a run's directory, or a Hugging Face folder.
        name: of its files below `base_eval`.
        folder: of what is kept of its evaluation.
        identity: changes with the weights.
    """

    path: Path
    step: int | None
    is_hf: bool
    name: str
    folder: Path
    identity: str

    @staticmethod
    def of_run(places: Places, run: Path, step: int | None) -> "BaseModel":
        """The newest whole checkpoint of a run, or that of a step.

        Raises:
            CheckpointError: there is none.
        """
        from marin.training import checkpoint as checkpoints

        found = checkpoints.find(str(run)) if step is None else checkpoints.at_step(run, step)
        folder = places.base_eval / f"{run.name}_{found.step:06d}"
        return BaseModel(run, found.step, False, f"base_model_{found.step:06d}", folder, seal_of(found.path))

    @staticmethod
    def of_hf(places: Places, path: Path) -> "BaseModel":
        digest = hashlib.sha256()
        for file in sorted([*path.glob("*.safetensors"), *path.glob("*.json")]):
            digest.update(f"{file.name} {files.sha256_file(str(file))}\n".encode())
        name = path.resolve().name.replace("/", "-")
        return BaseModel(path, None, True, name, places.base_eval / name, digest.hexdigest())

    def load(self) -> RunModel:
        return _loaded(self.identity, str(self.path), self.step, self.is_hf)


@functools.lru_cache(maxsize=1)
def _loaded(identity: str, path: str, step: int | None, is_hf: bool) -> RunModel:
    """The model of these weights, which CORE, bits per byte and samples then share."""
    return load_hf_model(path) if is_hf else load_run_model(path, step=step)


# ---- CORE ------------------------------------------------------------------------------------------------------------


def measure_core(model: BaseModel, bundle: Path, *, max_per_task: int, rows: int, places: Places) -> CoreResult:
    """Evaluates CORE with progress on standard output, and writes its CSV and JSON files.

    Args:
        rows: sequences of the model's context that a device takes at once.
    """
    loaded = model.load()
    batch_tokens = min(default_batch_tokens(), rows * loaded.config.max_seq_len)
    scorer = LikelihoodScorer(loaded.model, precision=loaded.precision, batch_tokens=batch_tokens)
    result = evaluate_core(
        scorer,
        loaded.tokenizer,
        bundle,
        max_per_task=max_per_task,
        # Weights from elsewhere may know no position beyond their context; ours do, and published figures use them.
        max_tokens=loaded.config.max_seq_len if model.is_hf else None,
        records=RecordFolder(core_records(model, max_per_task), {"weights": model.identity}),
        progress=lambda line: print(line, flush=True),
    )
    files.write_bytes(str(places.base_eval / f"{model.name}.csv"), result.to_csv().encode())
    for path in (places.base_eval / f"{model.name}.json", model.folder / f"core{_limited(max_per_task)}.json"):
        files.write_json(str(path), result.to_json() | {"weights": model.identity})
    return result


def core_records(model: BaseModel, max_per_task: int) -> Path:
    """The folder of what was found of each item."""
    return model.folder / f"records{_limited(max_per_task)}"


def _limited(max_per_task: int) -> str:
    """A look at some items of each task does not take the place of hours of asking all."""
    return "" if max_per_task < 0 else f"_{max_per_task}_a_task"


# ---- bits per byte ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class BitsConfig:
    """Scoring a model on the beginning of a file.

    Args:
        weights: the model's identity, as `path` and `step` only say where it lies.
    """

    marin_resumable: ClassVar[bool] = True

    weights: str
    documents: ValidationConfig
    path: str = placement(default="")
    step: int | None = placement(default=None)
    is_hf: bool = placement(default=False)
    batch_size: int = placement(default=32)
    output_path: str = this_output_path()


def bits_step(
    model: BaseModel, dataset: Dataset, split: str, num_tokens: int, rows: int, places: Places
) -> ExecutorStep:
    """The step that measures bits per byte on "train" (the first file) or "val" (the one held out)."""
    file = dataset.train[0] if split == "train" else dataset.validation
    config = BitsConfig(
        weights=model.identity,
        documents=ValidationConfig(file, dataset.text_key, num_tokens),
        path=str(model.path),
        step=model.step,
        is_hf=model.is_hf,
        batch_size=rows,
    )
    # Other weights or text under the same names have a folder of their own, and so has another context.
    made_from = [model.identity, dataset.text_key, file.name, file.num_bytes, file.digest]
    made_from += [_HF_CONTEXT] if model.is_hf else []
    which = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:8]
    folder = model.folder / f"bits-{split}-{dataset.name}-{num_tokens}-{which}"
    return stage(f"base_eval_{split}", measure_bits, config, places, folder)


def measure_bits(config: BitsConfig) -> None:
    loaded = _loaded(config.weights, config.path, config.step, config.is_hf)
    context = loaded.config.max_seq_len
    measured = bits_per_byte(
        loaded.model,
        config.documents.read(),
        loaded.tokenizer,
        min(context, _HF_CONTEXT) if config.is_hf else context,
        precision=loaded.precision,
        batch_size=config.batch_size * jax.local_device_count(),
    )
    figures = dataclasses.asdict(measured)
    del figures["nats_of_targets"]  # an array, which only probes ask for
    files.write_json(str(Path(str(config.output_path)) / BITS_FILE), figures)


# ---- samples ---------------------------------------------------------------------------------------------------------


def sample(model: BaseModel) -> Path:
    """Lets the model write; what it wrote before is kept, as it would write the same."""
    path = model.folder / SAMPLES_FILE
    if samples_of(model) is None:
        loaded = model.load()
        precision = Precision(loaded.precision.compute)
        write_samples(loaded.model, loaded.tokenizer, loaded.config.max_seq_len, precision, path)
        files.write_json(str(path), {**files.read_json(str(path)), "weights": model.identity})
    return path


def samples_of(model: BaseModel) -> Path | None:
    """What the model wrote before, if these weights did."""
    path = model.folder / SAMPLES_FILE
    return path if path.is_file() and files.read_json(str(path)).get("weights") == model.identity else None
