"""Forgeries of the results file alone: its figures, and its metric."""

import json
import pathlib
import random
from collections.abc import Callable
from typing import Any

from forgeries.editing import (
    bind,
    edit_evaluation,
    edit_run,
    edit_run_json,
    replace_text,
    results_of,
    set_figure,
)
from forgeries.honest import Plan, write_submission
from forgeries.register import Bases, Expected, expect, family, without_logs

from marin.speedrun.arithmetic.known_models import GPT, LLAMA
from marin.speedrun.verification.claims import KNOWN_SETS

# --- figures of the results file alone ---------------------------------------------------------------------------------

_COSTS = ("training_hardware_flops", "training_time", "model_flops", "total_tokens", "device_flops", "model_size")


@family(6)
def zero_cost(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    set_figure(without_logs(bases.copy("plain", to)), _COSTS[variant], 0)
    return expect("arithmetic", _COSTS[variant], "which no run has")


@family(6)
def negative_cost(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    set_figure(without_logs(bases.copy("plain", to)), _COSTS[variant], -1)
    return expect("arithmetic", _COSTS[variant], "which no run has")


@family(12)
def not_a_number(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    value = results_of(directory)["runs"][0]["run_info"][_COSTS[variant % 6]]
    literal = ("NaN", "Infinity")[variant // 6]
    replace_text(directory, f'"{_COSTS[variant % 6]}": {json.dumps(value)}', f'"{_COSTS[variant % 6]}": {literal}')
    return expect(None, literal, "is not a number")


@family(6)
def infinite_by_size(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    value = results_of(directory)["runs"][0]["run_info"][_COSTS[variant]]
    replace_text(directory, f'"{_COSTS[variant]}": {json.dumps(value)}', f'"{_COSTS[variant]}": 1e99{variant}')
    return expect(None, "too large for a number")


@family(6)
def null_cost(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    field = ("training_hardware_flops", "training_time", "model_flops", "total_tokens", "model_size", "resources")[
        variant
    ]
    set_figure(without_logs(bases.copy("plain", to)), field, None)
    if field == "resources":
        edit_run(to, lambda info: info.update(platform=None))
    return expect("arithmetic", "not stated")


@family(6)
def string_cost(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    value = results_of(directory)["runs"][0]["run_info"][_COSTS[variant]]
    set_figure(directory, _COSTS[variant], str(value))
    return expect(None, _COSTS[variant], "expected a valid")


@family(8)
def boolean_or_list_figures(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    field = ("training_time", "total_tokens", "model_flops", "seed")[variant % 4]
    set_figure(bases.copy("plain", to), field, (True, [1.0])[variant // 4])
    return expect(None, field, "expected a valid")


@family(6)
def duplicate_keys(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    replace_text(directory, f'"{_COSTS[variant]}":', f'"{_COSTS[variant]}": 1.0, "{_COSTS[variant]}":')
    return expect(None, _COSTS[variant], "appears twice")


@family(8)
def wrong_peak(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy(("plain", "device")[variant % 2], to))
    factor = (0.1, 0.5, 0.9, 2.0)[variant // 2]

    def change(info: dict[str, Any]) -> None:
        info["device_flops"] *= factor
        info["training_hardware_flops"] *= factor
        info["mfu"] /= factor
        info["traced_mfu"] /= factor

    edit_run(directory, change)
    return expect("arithmetic", "device_flops is", "but the peak of")


@family(6)
def typed_in_peak(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    peak = 1e13 * (variant + 1)

    def change(info: dict[str, Any]) -> None:
        info["training_hardware_flops"] = info["training_time"] * peak
        info["device_flops"] = info["resources"]["device_flops_override"] = peak
        info["mfu"], info["traced_mfu"] = (
            info["model_flops"] / info["training_hardware_flops"],
            info["traced_flops"] / info["training_hardware_flops"],
        )

    edit_run(directory, change)
    return expect("arithmetic", "typed in by the author")


@family(6)
def other_device_name(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A run's own device renamed in the results, the log left as it is."""
    directory = bases.copy("plain", to)
    name = ("H100", "L4", "A10", "V100", "T4", "A40")[variant]
    edit_run(directory, lambda info: (info.update(device_name=name), info["resources"].update(accelerator_type=name)))
    return expect("log", "device_name is", "from the log it is 'A100'")


@family(6)
def miscounted_chips(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("device", to))
    chips = (1, 4, 8, 15, 32, 64)[variant]

    def change(info: dict[str, Any]) -> None:
        info["training_hardware_flops"] *= chips / info["num_chips"]
        info["num_chips"] = chips

    edit_run(directory, change)
    return expect("arithmetic", f"num_chips is {chips}", "v5p-32 has 16 chips")


@family(6)
def impossible_speed(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))

    def change(info: dict[str, Any]) -> None:
        info["training_time"] = info["model_flops"] / info["device_flops"] / (1.1 + variant)
        info["training_hardware_flops"] = info["training_time"] * info["device_flops"]
        info["mfu"], info["traced_mfu"] = (
            info["model_flops"] / info["training_hardware_flops"],
            info["traced_flops"] / info["training_hardware_flops"],
        )

    edit_run(directory, change)
    return expect("arithmetic", "MFU is", "cannot have done this work")


@family(6)
def wrong_tokens(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    factor = (0.5, 0.9, 0.99, 1.1, 2, 10)[variant]
    edit_run(directory, lambda info: info.update(total_tokens=int(info["total_tokens"] * factor)))
    return expect("arithmetic", "total_tokens is", "steps x")


@family(6)
def custom_flops(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """An architecture of one's own, whose figures nobody can compute again: never more than open."""
    directory = bases.copy("plain", to)
    if variant % 2:
        edit_run_json(directory, lambda info: info.update(model_class=f"__main__:Idea{variant}"), careful=True)
        return expect("arithmetic", "not recomputable", f"Idea{variant}")
    without_logs(directory)
    edit_run(directory, lambda info: info["model_config"].update({f"num_experts_{variant}": 8}))
    return expect("arithmetic", "settings of its own", "not recomputable")


@family(4)
def false_flops_of_a_known_model(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Log and results agree on FLOPs that a model of this class and these sizes has not."""
    known = (LLAMA, GPT)[variant % 2]
    directory = write_submission(to, [Plan(steps=12, model_class=known.model_class)], random.Random(variant))
    factor = (0.5, 1.25)[variant // 2]

    def scale(info: dict[str, Any]) -> None:
        info["model_flops_per_token"] *= factor

    edit_run(directory, scale)
    edit_run_json(directory, scale, careful=True)
    return expect("log", f"a {known.name} of these sizes", "FLOPs per token")


# --- metric ------------------------------------------------------------------------------------------------------------


def _of_known_set(directory: pathlib.Path, change: Callable[[dict[str, Any]], object]) -> None:
    known = KNOWN_SETS[0]

    def apply(info: dict[str, Any]) -> None:
        block = info["evaluation"]
        block.update(
            name=known.name,
            digest=known.digest,
            bytes=known.num_bytes,
            documents=known.num_documents,
            tokens=known.num_bytes // 3,
        )
        info["digests"]["evaluation_set"] = known.digest
        change(info)

    edit_run(directory, apply)


@family(8)
def byte_miscount(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    if variant < 5:
        factor = (1.01, 1.1, 1.5, 2.0, 1.0001)[variant]
        _of_known_set(
            directory, lambda info: info["evaluation"].update(bytes=int(info["evaluation"]["bytes"] * factor))
        )
        return expect("arithmetic", "evaluation.bytes is", "miscounted")
    if variant == 5:
        _of_known_set(directory, lambda info: info["evaluation"].update(documents=100))
        return expect("arithmetic", "evaluation.documents is 100")
    edit_run(
        directory,
        lambda info: info["evaluation"].update(bytes=info["evaluation"]["tokens"] * (50 if variant == 6 else 100)),
    )
    return expect("arithmetic", "bytes a token")


@family(8)
def other_metric_version(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    if variant < 2:
        edit_run(
            directory,
            lambda info: info.update(
                {"eval/paloma/c4_en/bpb": info["evaluation"]["bits_per_byte"] * (1 - 0.1 * variant)}
            ),
        )
        return expect("arithmetic", "C4-EN are stated, but the evaluation is of")
    if variant < 4:

        def as_c4(info: dict[str, Any]) -> None:
            info["evaluation"]["name"] = "paloma/c4_en"
            info["eval/paloma/c4_en/bpb"] = info["evaluation"]["bits_per_byte"] * (1 if variant == 2 else 0.9)

        edit_run(directory, as_c4)
        return expect(
            "arithmetic", "the mean over batches", "the sum over all bytes" if variant == 2 else "another figure"
        )
    if variant < 6:
        edit_run(directory, lambda info: info["evaluation"].update(metric_version=variant))
        return expect("arithmetic", "version", "of the metric")
    if variant == 6:
        _of_known_set(
            directory,
            lambda info: (info["evaluation"].update(digest="0" * 64), info["digests"].update(evaluation_set="0" * 64)),
        )
        return expect("arithmetic", "another version of the set")
    edit_run(
        directory,
        lambda info: info["evaluation"].update(levanter_bits_per_byte=3 * info["evaluation"]["bits_per_byte"]),
    )
    return expect("arithmetic", "not of one evaluation")


@family(6)
def better_quality_than_the_log(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    (directory / "logs" / "0" / "evaluation.json").unlink()
    factor = (0.1, 0.2, 0.3, 0.4, 0.55, 0.65)[variant]
    edit_run(
        directory,
        lambda info: info["evaluation"].update(
            {key: info["evaluation"][key] * factor for key in ("bits_per_byte", "levanter_bits_per_byte")}
        ),
    )
    return expect("log", "bits per byte", "the last losses of training")


@family(1)
def mean_over_batches_that_is_better_than_the_log(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """As far below bits per byte as two averages of one evaluation may lie, and those themselves a little better than they are."""
    directory = bases.copy("plain", to)
    (directory / "logs" / "0" / "evaluation.json").unlink()

    def change(info: dict[str, Any]) -> None:
        bits = 0.9 * info["evaluation"]["bits_per_byte"]
        info["evaluation"].update(bits_per_byte=bits, levanter_bits_per_byte=0.71 * bits)

    edit_run(directory, change)
    return expect("log", "bits per byte as the mean over batches", "the last losses of training")


@family(6)
def evaluation_edited(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    factor = 1 - 10.0 ** -(variant + 1)
    edit_run(
        directory,
        lambda info: info["evaluation"].update(
            {key: info["evaluation"][key] * factor for key in ("bits_per_byte", "levanter_bits_per_byte")}
        ),
    )
    return expect("log", "evaluation is", "evaluation.json")


@family(3)
def loss_of_another_evaluation(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A loss that its own bits per byte contradict, in results and evaluation alike, bound anew."""
    directory = bases.copy("plain", to)
    factor = (0.5, 0.99, 1.5)[variant]

    def change(content: dict[str, Any]) -> None:
        content["evaluation"]["loss"] = content["evaluation"]["bits_per_byte"] * factor

    edit_evaluation(directory, change)
    bind(directory)
    return expect("arithmetic", "nats a token are not")


@family(3)
def cheaper_hardware_by_name(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Another device's name in one of two places, or a peak of it that no training counts."""
    directory = without_logs(bases.copy("plain", to))

    def change(info: dict[str, Any]) -> None:
        if variant == 0:
            info["device_name"] = "H100"
        elif variant == 1:
            info["resources"]["device_flops_override"] = info["device_flops"] = 19.5e12  # an A100 in float32
        else:
            info["resources"] = {"num_cpus": 8}
            info["platform"] = "gpu"

    edit_run(directory, change)
    return expect("arithmetic", ("device_name is H100", "typed in by the author", "the platform is 'gpu'")[variant])


@family(6)
def hardware_that_nobody_can_look_up(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A device of one's own invention with a peak that makes the run cheap, or none named at all."""
    directory = bases.copy("plain", to)
    if variant < 3:
        without_logs(directory)

    def change(info: dict[str, Any]) -> None:
        peak = info["device_flops"] / (2.0, 5.0, 1.5, 3.0, 2.0, 1.0)[variant]
        if variant in (2, 5):
            info.pop("resources")
        else:
            info["resources"].update(accelerator_type="X9000", device_flops_override=peak if variant % 2 else None)
            info["device_name"] = "X9000"
        info.update(device_flops=peak, training_hardware_flops=info["training_time"] * peak, mfu=None, traced_mfu=None)

    edit_run(directory, change)
    return expect("arithmetic", "the hardware is not stated" if variant in (2, 5) else "the catalogue has no 'X9000'")


@family(2)
def other_gpu_in_the_machine(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The log of an H100, or of two, under the name of the A100 that the cost counts."""
    directory = bases.copy("plain", to)
    gpus = [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 8 << 30}] * (variant + 1)
    edit_run_json(directory, lambda info: info["host"].update(gpus=gpus), careful=True)
    return expect("log", "run.json says A100", "its machine had")


@family(2)
def machine_with_gpus_that_no_catalogue_has(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The same on a machine whose GPUs, or one of them, nobody can look up."""
    directory = bases.copy("plain", to)
    gpus = [{"name": name, "memory_bytes": 8 << 30} for name in ("NVIDIA X9000", "NVIDIA L4")[: variant + 1]]
    edit_run_json(directory, lambda info: info["host"].update(gpus=gpus), careful=True)
    return expect("log", "run.json says A100", "NVIDIA X9000", "of which not all are in the catalogue")


@family(2)
def gpu_among_processors(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A GPU's run under the resources of a processor, so that it stands on the processors' track; what says otherwise left out."""
    directory = bases.copy("plain", to)
    processor = {"num_cpus": 2, "num_hosts": 1}
    edit_run_json(directory, lambda info: info["config"]["train"].update(resources=processor), careful=True)

    def change(info: dict[str, Any]) -> None:
        info["resources"] = processor
        for field in ("platform", "device_name")[: 1 + variant]:
            info.pop(field, None)

    edit_run(directory, change)
    if variant:
        return expect("log", "the resources are of the platform cpu", "run.json says 'gpu'")
    return expect("arithmetic", "the resources are a processor", "A100-40G, an accelerator")


@family(2)
def program_with_more_flops_than_its_hardware(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A model that counts few FLOPs of its own and whose traced program has more than the time allows."""
    directory = without_logs(bases.copy("plain", to))

    def change(info: dict[str, Any]) -> None:
        info["traced_flops"] = info["training_hardware_flops"] * (1.0, 7.0)[variant]
        info["traced_training_flops_per_token"] = info["traced_flops"] / info["total_tokens"]
        info["traced_mfu"] = (1.0, 7.0)[variant]

    edit_run(directory, change)
    return expect("arithmetic", "of what the hardware could have done in the time stated")


@family(2)
def c4_without_the_mean_over_batches(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The published rows' figure, free to choose where the evaluation does not have it."""
    directory = without_logs(bases.copy("plain", to))

    def change(info: dict[str, Any]) -> None:
        info["evaluation"].update(name="paloma/c4_en", levanter_bits_per_byte=None)
        info["eval/paloma/c4_en/bpb"] = info["evaluation"]["bits_per_byte"] * (0.9, 0.99)[variant]

    edit_run(directory, change)
    return expect("arithmetic", "lacks the mean over batches")


@family(2)
def c4_by_the_sum_over_all_bytes(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The figure of the published rows taken out, so that the row stands on the other average of the same losses, if that is lower."""
    directory = without_logs(bases.copy("plain", to))

    def change(info: dict[str, Any]) -> None:
        info["evaluation"].update(name="paloma/c4_en")
        info["evaluation"].update(levanter_bits_per_byte=(1.002 * info["evaluation"]["bits_per_byte"], None)[variant])
        info["eval/paloma/c4_en/bpb"] = None

    edit_run(directory, change)
    return expect("arithmetic", "mean over batches that its rows are ranked by is not stated")


@family(3)
def tpu_that_nobody_can_look_up(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The same for TPUs, whose chips follow from their names."""
    directory = without_logs(bases.copy("device", to))
    name = ("v99-32", None, "pod")[variant]

    def change(info: dict[str, Any]) -> None:
        info["resources"].update(tpu_type=name)
        peak = info["device_flops"] / 2
        cost = info["training_time"] * info["num_chips"] * peak
        info.update(device_name=name, device_flops=peak, training_hardware_flops=cost, mfu=None, traced_mfu=None)

    edit_run(directory, change)
    return expect("arithmetic", "chips not recomputable")
