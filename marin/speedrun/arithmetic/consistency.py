"""Whether the figures of one run fit together: the arithmetic rung of verification.

Everything that follows from other figures in the file is computed again: tokens, parameters and FLOPs of a model of
ours, the cost, the chips of a TPU slice, the peak of the device, MFU. Nothing is executed and nothing outside the file is
consulted but the device catalogue. Passing proves that the figures agree with each other, not that the run took place.
The findings are those of `marin.speedrun.verdict`.
"""

from typing import Literal

from marin.speedrun.arithmetic import core_counts, form, probes, scoring_cost
from marin.speedrun.arithmetic import findings as arithmetic
from marin.speedrun.arithmetic.findings import batch_schedule, close, row_length, whole_number
from marin.speedrun.arithmetic.known_models import likest_model
from marin.speedrun.arithmetic.stated_device import PEAK_TOLERANCE, StatedDevice, check_name, described, device_of
from marin.speedrun.results import C4_EN_BPB, RunInfo
from marin.speedrun.verdict import Finding

Status = Literal["arithmetic checked", "claimed", "does not add up"]

LLAMA3_VOCAB = 128_256
HIGHEST_PLAUSIBLE_MFU = 0.70  # the best published figure is 65.4 % (MaxText, Llama-2-70B on TPU v5p)
_COUNT_TOLERANCE = 0.10


def check(run_info: RunInfo, architecture: Finding | None = None) -> list[Finding]:
    """Everything that is wrong, odd or not recomputable in a run's figures; empty when all of it fits.

    Args:
        architecture: what the log says of an architecture that cannot be computed again; it stands for what the settings say of it.
    """
    device, findings = device_of(run_info)
    findings += _check_signs(run_info)
    findings += _check_beginning(run_info)
    findings += _check_tokens(run_info)
    findings += _check_model(run_info)
    findings += _check_architecture(run_info) if architecture is None else [architecture]
    findings += check_name(run_info, device)
    findings += _check_cost(run_info, device)
    findings += _check_mfu(run_info, device)
    findings += _check_quality(run_info)
    findings += scoring_cost.check(run_info)
    findings += core_counts.check(run_info)
    findings += probes.check(run_info)
    findings += form.check(run_info)
    return findings


def status(findings: list[Finding] | tuple[Finding, ...]) -> Status:
    """How far the arithmetic rung was climbed."""
    severities = {finding.severity for finding in findings if finding.rung == "arithmetic"}
    if "error" in severities:
        return "does not add up"
    return "claimed" if "unchecked" in severities else "arithmetic checked"


# --- signs ----------------------------------------------------------------------------------------------------------

_POSITIVE = (
    "model_size", "total_tokens", "num_train_steps", "model_flops", "model_flops_per_token", "counted_flops_per_token",
    "num_devices", "num_chips", "device_flops", "training_time", "training_hardware_flops", "peak_memory_bytes",
    "traced_flops", "traced_flops_per_token", "traced_training_flops_per_token",
)  # fmt: skip
_NOT_NEGATIVE = ("compile_time", "wasted_time", "num_resumes", "mfu", "traced_mfu")


def _check_signs(info: RunInfo) -> list[Finding]:
    found = []
    for field in _POSITIVE + _NOT_NEGATIVE:
        value = getattr(info, field)
        if value is None:
            continue
        if value < 0 or (value == 0 and field in _POSITIVE):
            found.append(arithmetic.error(field, f"{field} is {value:g}, which no run has; an unknown value is null"))
    return found


# --- tokens and model -----------------------------------------------------------------------------------------------


def _check_beginning(info: RunInfo) -> list[Finding]:
    """Whether the run began from nothing, since its cost counts its own steps alone."""
    return [
        arithmetic.error(
            f"train_config.{name}", f"{name} is set: the cost of the weights that the run began with is not counted"
        )
        for name in ("initialize_from_hf", "initialize_from_checkpoint_path")
        if (info.train_config or {}).get(name)
    ]


def _check_tokens(info: RunInfo) -> list[Finding]:
    found: list[Finding] = []
    steps = whole_number(info.train_config, "num_train_steps")
    cut = info.stopped_by == "budget" and bool((info.train_config or {}).get("budget"))
    if cut and steps and info.num_train_steps is not None and info.num_train_steps < steps:
        message = f"the run stopped at its budget after {info.num_train_steps} of {steps} steps"
        found.append(arithmetic.note("num_train_steps", message))
    elif steps and info.num_train_steps is not None and info.num_train_steps != steps:
        found.append(
            arithmetic.error(
                "num_train_steps", f"num_train_steps is {info.num_train_steps}, train_config says {steps}", steps
            )
        )
    steps = info.num_train_steps if info.num_train_steps is not None else steps
    batch = batch_schedule(info.train_config)
    length = row_length(info.train_config, info.model)
    if info.total_tokens is None:
        found.append(arithmetic.unchecked("total_tokens", "the number of tokens is not stated"))
    elif not (batch and steps and length):
        missing = [
            name for name, value in (("batch size", batch), ("steps", steps), ("sequence length", length)) if not value
        ]
        found.append(
            arithmetic.unchecked("total_tokens", f"tokens not recomputable: no {' or '.join(missing)} is stated")
        )
    elif (tokens := batch.offset_at(steps) * length) != info.total_tokens:
        sizes = " then ".join(str(size) for _, size in batch.entries)
        found.append(arithmetic.error(
            "total_tokens",
            f"total_tokens is {info.total_tokens:,}, but {sizes} x {steps} steps x {length} tokens = {tokens:,}",
            tokens,
        ))  # fmt: skip
    return found


def _check_model(info: RunInfo) -> list[Finding]:
    found: list[Finding] = []
    per_token = info.model_flops_per_token
    config = info.model or {}
    known = likest_model(config)
    vocab_size, expected = _recomputed(info)
    if info.model_size is None:
        found.append(arithmetic.unchecked("model_size", "the number of parameters is not stated"))
    if info.model_flops is None:
        found.append(arithmetic.unchecked("model_flops", "the model FLOPs are not stated"))
    elif info.total_tokens:
        used = per_token if per_token is not None else expected
        if used is not None and not close(info.model_flops, 3 * used * info.total_tokens):
            what = "the stated FLOPs per token" if per_token is not None else f"a plain {known.name}'s FLOPs per token"
            report = arithmetic.error if per_token is not None else arithmetic.warning
            found.append(report(
                "model_flops",
                f"model_flops is {info.model_flops:.5g}, but 3 x {used:.6g} ({what}) x {info.total_tokens:,} tokens "
                f"= {3 * used * info.total_tokens:.5g}",
                3 * used * info.total_tokens,
            ))  # fmt: skip
    if expected is not None and per_token is not None and not close(per_token, expected):
        found.append(arithmetic.unchecked(
            "model_flops_per_token",
            f"the config's own formula says {per_token:.6g} FLOPs per token, a plain {known.name} of these sizes has {expected:.6g}",
        ))  # fmt: skip
    if vocab_size and vocab_size != LLAMA3_VOCAB and info.c4_en_bpb is not None:
        found.append(
            arithmetic.note(
                "model_size", f"the parameters imply a vocabulary of {vocab_size:,}, not Llama 3's {LLAMA3_VOCAB:,}"
            )
        )
    counted = info.counted_flops_per_token
    if counted and per_token and not close(counted, per_token, _COUNT_TOLERANCE):
        found.append(arithmetic.warning(
            "model_flops_per_token",
            f"the config says {per_token:.5g} FLOPs per token, the traced program has {counted:.5g} ({counted / per_token:.2f} times)",
        ))  # fmt: skip
    return found


def _recomputed(info: RunInfo) -> tuple[int | None, float | None]:
    """The vocabulary that the parameters imply, and the FLOPs a token of a model of ours with these settings; None where nothing tells."""
    config = info.model or {}
    known = likest_model(config)
    if not info.model_size or not known.has_sizes(config):
        return None, None
    vocab_size = known.vocabulary_of(config, info.model_size)
    length = row_length(info.train_config, config)
    return vocab_size, known.flops_per_token(config, vocab_size, length) if vocab_size and length else None


def _check_architecture(info: RunInfo) -> list[Finding]:
    """What the settings say of the architecture: with keys that no model of ours has, only its code knows parameters and FLOPs."""
    known = likest_model(info.model or {})
    own = sorted(set(info.model or {}) - known.keys)
    if own:
        named = ", ".join(repr(key[:40]) for key in own[:4]) + (" and more" if len(own) > 4 else "")
        message = f"the model has settings of its own ({named}): its parameters and FLOPs are not recomputable"
        return [arithmetic.unchecked("model_size", message)]
    if _recomputed(info)[1] is None:
        message = "not recomputable: the architecture is not a Llama or GPT of ours with all sizes stated"
        return [arithmetic.unchecked("model_size", message)]
    message = f"taken for a {known.name}, whose settings it has: a results file does not name the class of its model"
    return [arithmetic.note("model_config", message)]


# --- cost -----------------------------------------------------------------------------------------------------------


def _check_cost(info: RunInfo, device: StatedDevice | None) -> list[Finding]:
    found: list[Finding] = []
    cost, seconds = info.training_hardware_flops, info.training_time
    chips, peak = info.num_chips or (device and device.chips), info.device_flops or (device and device.peak)
    if device and info.num_chips is not None and info.num_chips != device.chips:
        found.append(
            arithmetic.error("num_chips", f"num_chips is {info.num_chips}, but {described(info, device)}", device.chips)
        )
    if device and device.peak and info.device_flops and not close(info.device_flops, device.peak, PEAK_TOLERANCE):
        found.append(arithmetic.error(
            "device_flops",
            f"device_flops is {info.device_flops:.4g}, but the peak of {device.name} is {device.peak:.4g} FLOP/s ({device.source})",
            device.peak,
        ))  # fmt: skip
    if cost is None or seconds is None:
        missing = "cost" if cost is None else "time"
        found.append(arithmetic.unchecked("training_hardware_flops", f"the training {missing} is not stated"))
    elif not (chips and peak):
        found.append(
            arithmetic.unchecked("training_hardware_flops", "the cost is not recomputable without chips and their peak")
        )
    elif not close(cost, seconds * chips * peak):
        corrected = seconds * chips * peak
        message = f"the cost is {cost:.4g}, but {seconds:,.1f} s x {chips} chips x {peak:.4g} FLOP/s = {corrected:.4g}"
        if device and close(cost, 2 * corrected) and device.name.lower().startswith(("v2", "v3", "v4", "v5p")):
            message += f": cores were counted as chips ({described(info, device)})"
        found.append(arithmetic.error("training_hardware_flops", message, corrected))
    return found


def _check_mfu(info: RunInfo, device: StatedDevice | None) -> list[Finding]:
    if not info.model_flops or not info.training_hardware_flops or info.training_hardware_flops < 0:
        return []
    mfu = info.model_flops / info.training_hardware_flops
    found = []
    if mfu >= 1:
        found.append(arithmetic.error(
            "training_time",
            f"MFU is {mfu:.1%}: the hardware cannot have done this work in the time stated "
            f"(as when the time covers only the tail of a resumed run)",
        ))  # fmt: skip
    elif mfu > HIGHEST_PLAUSIBLE_MFU and (device is None or device.name != "cpu"):
        found.append(arithmetic.warning("mfu", f"MFU is {mfu:.1%}, above the best published for language models"))
    if info.mfu is not None and not close(info.mfu, mfu, 1e-3):
        found.append(
            arithmetic.error("mfu", f"mfu is {info.mfu:.4f}, but model FLOPs / hardware FLOPs = {mfu:.4f}", mfu)
        )
    traced = info.traced_flops
    if traced and traced >= info.training_hardware_flops:
        found.append(arithmetic.error(
            "traced_flops",
            f"the program's own FLOPs are {traced / info.training_hardware_flops:.1%} of what the hardware could have done in the time stated",
        ))  # fmt: skip
    if (
        traced
        and info.traced_mfu is not None
        and not close(info.traced_mfu, traced / info.training_hardware_flops, 1e-3)
    ):
        expected = traced / info.training_hardware_flops
        found.append(arithmetic.error(
            "traced_mfu", f"traced_mfu is {info.traced_mfu:.4f}, but traced FLOPs / hardware FLOPs = {expected:.4f}", expected
        ))  # fmt: skip
    per_token = info.traced_training_flops_per_token
    if traced and per_token and info.total_tokens and not close(traced, per_token * info.total_tokens):
        found.append(arithmetic.error(
            "traced_flops",
            f"traced_flops is {traced:.5g}, but {per_token:.6g} a token x {info.total_tokens:,} tokens ="
            f" {per_token * info.total_tokens:.5g}",
            per_token * info.total_tokens,
        ))  # fmt: skip
    return found


# --- quality --------------------------------------------------------------------------------------------------------


def _check_quality(info: RunInfo) -> list[Finding]:
    found: list[Finding] = []
    figures = {C4_EN_BPB: info.c4_en_bpb}
    if info.evaluation is not None:
        figures["evaluation.bits_per_byte"] = info.evaluation.bits_per_byte
        figures["evaluation.levanter_bits_per_byte"] = info.evaluation.levanter_bits_per_byte
        for field in ("bytes", "tokens", "documents", "context_length", "flops_per_token"):
            value = getattr(info.evaluation, field)
            if value is not None and value <= 0:
                found.append(
                    arithmetic.error(f"evaluation.{field}", f"evaluation.{field} is {value:g}, which no evaluation has")
                )
    if all(value is None for value in figures.values()):
        found.append(arithmetic.unchecked("evaluation", "no bits per byte are stated"))
    for field, value in figures.items():
        if value is not None and value <= 0:
            found.append(arithmetic.error(field, f"{value:g} bits per byte: no model predicts text for nothing"))
        elif value is not None and value > 8:
            found.append(arithmetic.warning(field, f"{value:.3g} bits per byte is worse than the plain text (8)"))
    if info.c4_en_bpb is not None and 0 < info.c4_en_bpb < 0.5:
        found.append(arithmetic.warning(C4_EN_BPB, f"{info.c4_en_bpb:.3g} is below any published model's on C4"))
    return found
