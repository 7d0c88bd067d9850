"""Evaluates a base model: CORE, bits per byte, samples.

    python -m scripts.base_eval --model-tag d12
    python -m scripts.base_eval --hf-path FOLDER --eval core --max-per-task 100

Run again, it continues with the task that it was at; what is finished is not measured twice.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin.errors import ConfigError
from marin.flags import named_as_flags
from marin.gpt2.command import check_numbers, parse_flags, run_command
from marin.gpt2.datasets import open_dataset
from marin.gpt2.places import Places
from marin.gpt2.sections import read_section, timed
from marin.gpt2.stages import process_index, report_section, run_stage
from marin.storage import files

if TYPE_CHECKING:
    from marin.gpt2.base_evaluation import BaseModel

PARTS = ("core", "bpb", "sample")
_SECTION = "Base model evaluation"
_BITS = ("train_bpb", "train bytes", "val_bpb", "val bytes")
_NOT_CORE = "not CORE, as data is missing"


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of base_eval.

    Args:
        eval: what to measure, separated by commas: core, bpb, sample.
        hf_path: a folder in Hugging Face's layout (Llama's, Qwen3's or GPT-2's architecture) in place of a run.
        max_per_task: items of each of CORE's tasks; -1 for all.
        split_tokens: tokens of each split for bits per byte, counted as four bytes each.
        device_batch_size: sequences that a device takes at once; lower it where memory is short.
        model_tag: the run; the deepest by default.
        step: its checkpoint; the newest by default.
        device_type: auto, cpu or cuda.
        eval_bundle: the folder with CORE's data; BASE/eval_bundle by default.
        dataset: climbmix, embedded, or local files (see marin.gpt2.datasets).
        text_key: the field or column of files that has the text.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    eval: str = "core,bpb,sample"
    hf_path: str | None = None
    max_per_task: int = -1
    split_tokens: int = 40 * 524_288
    device_batch_size: int = 32
    model_tag: str | None = None
    step: int | None = None
    device_type: str = ""
    eval_bundle: str | None = None
    dataset: str = "climbmix"
    text_key: str = "text"
    base_dir: str | None = None

    def __post_init__(self) -> None:
        if not self.parts or any(part not in PARTS for part in self.parts):
            raise ConfigError(f"`--eval` is {self.eval!r}: use one or more of {', '.join(PARTS)}, separated by commas")
        check_numbers(self, ("device_batch_size", "split_tokens"), ("max_per_task",))
        if self.hf_path is not None and not self.hf_path.strip():
            raise ConfigError(
                f"`--hf-path` is {self.hf_path!r}: use a folder in Hugging Face's layout, or leave it out for a run"
            )
        if self.hf_path is not None and (self.model_tag is not None or self.step is not None):
            raise ConfigError("`--hf-path` names the model: leave out `--model-tag` and `--step`")

    @property
    def parts(self) -> list[str]:
        """What to measure."""
        return [part.strip().lower() for part in self.eval.split(",") if part.strip()]


def main() -> None:
    flags = parse_flags(Flags, __doc__)
    parts = flags.parts
    if process_index() > 0:  # one process evaluates; the others, which a launcher started, have nothing to do
        return

    # These import JAX, which `--help` does not need.
    from marin.gpt2.base_evaluation import (
        BITS_FILE,
        BaseModel,
        bits_step,
        core_records,
        measure_core,
        sample,
        samples_of,
    )
    from marin.gpt2.devices import take_devices
    from marin.gpt2.samples import samples_markdown
    from marin.models.hf_import import hf_folder
    from marin.training.compile_cache import use_compile_cache
    from marin.training.preflight import check_devices

    places = Places.of(flags.base_dir)
    check_devices(take_devices(flags.device_type))
    use_compile_cache()
    if flags.hf_path is not None:
        model = BaseModel.of_hf(places, hf_folder(flags.hf_path))
    else:
        model = BaseModel.of_run(places, places.find_run("base", flags.model_tag), flags.step)
    bundle = _bundle(flags, places) if "core" in parts else None
    if bundle is None:
        parts = [part for part in parts if part != "core"]
    figures = {"model": model.folder.name, "weights": model.identity[:16], **_measured_before(places, model, parts)}
    if "bpb" in parts:
        dataset = open_dataset(places, flags.dataset, flags.text_key)
        for split in ("train", "val"):
            step = bits_step(model, dataset, split, flags.split_tokens, flags.device_batch_size, places)
            output = run_stage(places, step, BITS_FILE)
            assert output is not None
            found = files.read_json(str(output / BITS_FILE))
            figures |= {f"{split}_bpb": found["value"], f"{split} bytes": found["num_bytes"]}
            print(f"{split} bits per byte: {found['value']:.6f} on {found['num_bytes']:,} bytes", flush=True)
    if bundle is not None:
        with timed(places, "base_eval_core"):
            core = measure_core(
                model, bundle, max_per_task=flags.max_per_task, rows=flags.device_batch_size, places=places
            )
        print(
            f"{core.to_text()}\n{places.base_eval / model.name}.csv, records in {core_records(model, flags.max_per_task)}",
            flush=True,
        )
        figures |= {
            "core_metric": core.core_metric,
            "core_metric_v2": core.core_metric_v2,
            core.name: core.partial_core_metric,
            "max_per_task": flags.max_per_task,
            "tasks": {
                task.label: {
                    "accuracy": task.accuracy,
                    "95 % interval": "{:.4f} to {:.4f}".format(*task.interval),
                    "centered (v1)": task.centered_v1,
                    "centered (v2)": task.centered_v2,
                    "items": task.num_items,
                }
                for task in core.tasks
            },
        }
        if core.incomplete:
            figures[_NOT_CORE] = {str(number): line for number, line in enumerate(core.incomplete, start=1)}
    if "sample" in parts:
        with timed(places, "base_eval_samples"):
            path = sample(model)
        print(samples_markdown(path))
    written = samples_of(model)
    report_section(places, _SECTION, figures, "" if written is None else samples_markdown(written))


def _measured_before(places: Places, model: "BaseModel", parts: list[str]) -> dict[str, Any]:
    """The figures of the same weights that the section has, of parts that are not measured now."""
    section = read_section(places, _SECTION)
    figures = {} if section is None else section["figures"]
    if figures.get("weights") != model.identity[:16]:
        return {}
    of_bits = {key: value for key, value in figures.items() if key in _BITS}
    of_core = {key: value for key, value in figures.items() if key not in (*_BITS, "model", "weights")}
    return {**({} if "bpb" in parts else of_bits), **({} if "core" in parts else of_core)}


def _bundle(flags: Flags, places: Places) -> Path | None:
    """CORE's data, found whole; None where there is none and other parts are asked for too.

    Raises:
        DataError: it is not there and was asked for, or is damaged.
        ConfigError: `--max-per-task` cannot be.
    """
    from marin.evaluation.core import check_core
    from marin.evaluation.core.bundle import CONFIG_FILE

    bundle = Path(flags.eval_bundle) if flags.eval_bundle else places.eval_bundle
    if flags.eval_bundle is None and flags.parts != ["core"] and not (bundle / CONFIG_FILE).is_file():
        print(
            f"note: CORE is not measured, as its data is not in {bundle}: `python -m scripts.eval_bundle` fetches it",
            flush=True,
        )
        return None
    with named_as_flags({"max_per_task": "--max-per-task"}):
        check_core(bundle, flags.max_per_task)
    return bundle


if __name__ == "__main__":
    run_command(main)
