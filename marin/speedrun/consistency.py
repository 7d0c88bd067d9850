"""Whether the figures of one run fit together: the arithmetic rung of verification.

Everything that follows from other figures in the file is computed again: tokens, parameters and FLOPs of a plain Llama,
the cost, the chips of a TPU slice, the peak of the device, MFU. Nothing is executed and nothing outside the file is
consulted but the device catalogue. Passing proves that the figures agree with each other, not that the run took place.
The findings are those of `marin.speedrun.verdict`.
"""

import dataclasses
import datetime
import math
import re
from typing import Any, Literal

from marin import hardware
from marin.data.batch_schedule import BatchSchedule
from marin.errors import ConfigError, HardwareError
from marin.speedrun import core_counts, probes
from marin.speedrun.results import RunInfo
from marin.speedrun.verdict import Finding, Severity

Status = Literal["arithmetic checked", "claimed", "does not add up"]

LLAMA3_VOCAB = 128_256
AUTO_GPU_FLOPS = 989.5e12  # what the public contest's table gives for a GPU whose type is "auto"
HIGHEST_PLAUSIBLE_MFU = 0.70  # the best published figure is 65.4 % (MaxText, Llama-2-70B on TPU v5p)
_EXACT = 1e-6  # the published files reproduce to the last digits of a float
_PEAK_TOLERANCE = 0.01
_COUNT_TOLERANCE = 0.10
_LLAMA_KEYS = ("hidden_dim", "intermediate_dim", "num_layers", "num_heads", "num_kv_heads")
_LONGEST_NAME = 64
# Whoever states a peak that nobody can look up states his own cost.
_UNKNOWN_DEVICE = (
    "the catalogue has no {name!r}, so its peak cannot be checked: add it to marin/hardware.py with its source"
)
_PLACEHOLDERS = ("your name", "your affiliation", "(none given)")
_TIMESTAMP = "%Y-%m-%d %H:%M:%S UTC"
_USUAL_TIMESTAMP = re.compile(r"[0-9]{4}(-[0-9]{2}){2} ([01][0-9]|2[0-3])(:[0-9]{2}){2} UTC")


@dataclasses.dataclass(frozen=True)
class _Device:
    name: str
    chips: int
    peak: float | None
    source: str


def check(run_info: RunInfo) -> list[Finding]:
    """Everything that is wrong, odd or not recomputable in a run's figures; empty when all of it fits."""
    device, findings = _device_of(run_info)
    findings += _check_signs(run_info)
    findings += _check_beginning(run_info)
    findings += _check_tokens(run_info)
    findings += _check_model(run_info)
    findings += _check_name(run_info, device)
    findings += _check_cost(run_info, device)
    findings += _check_mfu(run_info, device)
    findings += _check_quality(run_info)
    findings += core_counts.check(run_info)
    findings += probes.check(run_info)
    findings += _check_form(run_info)
    return findings


def status(findings: list[Finding] | tuple[Finding, ...]) -> Status:
    """How far the arithmetic rung was climbed."""
    arithmetic = {finding.severity for finding in findings if finding.rung == "arithmetic"}
    if "error" in arithmetic:
        return "does not add up"
    return "claimed" if "unchecked" in arithmetic else "arithmetic checked"


def _error(field: str, message: str, corrected: float | None = None) -> Finding:
    return _finding("error", field, message, corrected)


def _warning(field: str, message: str, corrected: float | None = None) -> Finding:
    return _finding("warning", field, message, corrected)


def _unchecked(field: str, message: str) -> Finding:
    return Finding("arithmetic", "unchecked", field, message)


def _note(field: str, message: str) -> Finding:
    return Finding("arithmetic", "note", field, message)


def _finding(severity: Severity, field: str, message: str, corrected: float | None) -> Finding:
    finite = corrected is not None and math.isfinite(corrected)
    return Finding("arithmetic", severity, field, message, corrected if finite else None)


def _close(a: float, b: float, tolerance: float = _EXACT) -> bool:
    return math.isclose(a, b, rel_tol=tolerance)


def _whole(config: dict[str, Any] | None, *names: str) -> int | None:
    """The first of `names` that holds a positive whole number."""
    for name in names:
        value = (config or {}).get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


# --- signs --------------------------------------------------------------------------------------------------------

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
            found.append(_error(field, f"{field} is {value:g}, which no run has; an unknown value is null"))
    return found


# --- tokens and model ---------------------------------------------------------------------------------------------


def _check_beginning(info: RunInfo) -> list[Finding]:
    """Whether the run began from nothing, since its cost counts its own steps alone."""
    return [
        _error(f"train_config.{name}", f"{name} is set: the cost of the weights that the run began with is not counted")
        for name in ("initialize_from_hf", "initialize_from_checkpoint_path")
        if (info.train_config or {}).get(name)
    ]


def _check_tokens(info: RunInfo) -> list[Finding]:
    found: list[Finding] = []
    steps = _whole(info.train_config, "num_train_steps")
    cut = info.stopped_by == "budget" and bool((info.train_config or {}).get("budget"))
    if cut and steps and info.num_train_steps is not None and info.num_train_steps < steps:
        message = f"the run stopped at its budget after {info.num_train_steps} of {steps} steps"
        found.append(_note("num_train_steps", message))
    elif steps and info.num_train_steps is not None and info.num_train_steps != steps:
        found.append(
            _error("num_train_steps", f"num_train_steps is {info.num_train_steps}, train_config says {steps}", steps)
        )
    steps = info.num_train_steps if info.num_train_steps is not None else steps
    batch = _batch_schedule(info.train_config)
    length = _whole(info.train_config, "train_seq_len") or _whole(info.model, "max_seq_len", "seq_len")
    if info.total_tokens is None:
        found.append(_unchecked("total_tokens", "the number of tokens is not stated"))
    elif not (batch and steps and length):
        missing = [
            name for name, value in (("batch size", batch), ("steps", steps), ("sequence length", length)) if not value
        ]
        found.append(_unchecked("total_tokens", f"tokens not recomputable: no {' or '.join(missing)} is stated"))
    elif (tokens := batch.offset_at(steps) * length) != info.total_tokens:
        sizes = " then ".join(str(size) for _, size in batch.entries)
        found.append(_error(
            "total_tokens",
            f"total_tokens is {info.total_tokens:,}, but {sizes} x {steps} steps x {length} tokens = {tokens:,}",
            tokens,
        ))  # fmt: skip
    return found


def _batch_schedule(train_config: dict[str, Any] | None) -> BatchSchedule | None:
    """The batch size of each step as the file states it: one number, or a list of [first step, size]."""
    try:
        return BatchSchedule.of((train_config or {}).get("train_batch_size"))
    except ConfigError:
        return None


def llama_parameters(config: dict[str, Any], vocab_size: int) -> int:
    """Trainable parameters of a Llama: SwiGLU, RMSNorm, and the options that `marin.models.LlamaConfig` has."""
    hidden, intermediate, layers, heads, kv_heads = (config[key] for key in _LLAMA_KEYS)
    head_dim = _whole(config, "head_dim") or hidden // heads
    queries, keys_values = heads * head_dim, kv_heads * head_dim
    scale = hidden if config.get("use_layer_norm_weight", True) else 0
    block = 2 * hidden * (queries + keys_values) + 3 * hidden * intermediate + 2 * scale
    qk_norm = config.get("qk_norm")
    if qk_norm and (not isinstance(qk_norm, dict) or qk_norm.get("use_weight", True)):
        block += 2 * head_dim
    if config.get("use_attention_sink"):
        block += heads
    if config.get("use_bias"):
        block += queries + 2 * keys_values + 2 * intermediate + 2 * hidden
    ends = scale * (2 if config.get("input_embedding_norm") else 1)
    tables = 1 if config.get("tie_word_embeddings") else 2
    return int(layers * block + ends + tables * vocab_size * hidden)


def has_llama_sizes(config: dict[str, Any]) -> bool:
    """Whether a model config states all sizes of a Llama, and they fit together."""
    sizes = [_whole(config, key) for key in _LLAMA_KEYS]
    return None not in sizes and config["hidden_dim"] % config["num_heads"] == 0


def llama_flops_per_token(config: dict[str, Any], vocab_size: int, context_length: int) -> float:
    """Forward FLOPs of one token of a plain Llama, attention in full, as the public contest counts them."""
    hidden, intermediate, layers, heads, kv_heads = (config[key] for key in _LLAMA_KEYS)
    head_dim = hidden / heads
    attention = 4 * context_length * heads * head_dim + 3 * context_length * heads
    projections = 2 * hidden * head_dim * (heads + 2 * kv_heads) + 2 * hidden * hidden
    return float(layers * (6 * hidden * intermediate + projections + attention) + 2 * hidden * vocab_size)


def _vocabulary(info: RunInfo) -> int | None:
    """The vocabulary that makes the stated parameters those of a Llama, or None where no vocabulary does."""
    config = info.model or {}
    if not info.model_size or not has_llama_sizes(config):
        return None
    tables = 1 if config.get("tie_word_embeddings") else 2
    vocab_size, rest = divmod(info.model_size - llama_parameters(config, 0), tables * config["hidden_dim"])
    return vocab_size if rest == 0 and vocab_size > 0 else None


def _check_model(info: RunInfo) -> list[Finding]:
    found: list[Finding] = []
    per_token = info.model_flops_per_token
    vocab_size = _vocabulary(info)
    length = _whole(info.train_config, "train_seq_len") or _whole(info.model, "max_seq_len", "seq_len")
    expected = llama_flops_per_token(info.model, vocab_size, length) if info.model and vocab_size and length else None
    if info.model_size is None:
        found.append(_unchecked("model_size", "the number of parameters is not stated"))
    if info.model_flops is None:
        found.append(_unchecked("model_flops", "the model FLOPs are not stated"))
    elif info.total_tokens:
        used = per_token if per_token is not None else expected
        if used is not None and not _close(info.model_flops, 3 * used * info.total_tokens):
            what = "the stated FLOPs per token" if per_token is not None else "a plain Llama's FLOPs per token"
            report = _error if per_token is not None else _warning
            found.append(report(
                "model_flops",
                f"model_flops is {info.model_flops:.5g}, but 3 x {used:.6g} ({what}) x {info.total_tokens:,} tokens "
                f"= {3 * used * info.total_tokens:.5g}",
                3 * used * info.total_tokens,
            ))  # fmt: skip
    if expected is None:
        found.append(
            _unchecked("model_size", "not recomputable: the architecture is not a Llama with all sizes stated")
        )
    elif per_token is not None and not _close(per_token, expected):
        found.append(_unchecked(
            "model_flops_per_token",
            f"the config's own formula says {per_token:.6g} FLOPs per token, a plain Llama of these sizes has {expected:.6g}",
        ))  # fmt: skip
    if vocab_size and vocab_size != LLAMA3_VOCAB and info.c4_en_bpb is not None:
        found.append(
            _note("model_size", f"the parameters imply a vocabulary of {vocab_size:,}, not Llama 3's {LLAMA3_VOCAB:,}")
        )
    counted = info.counted_flops_per_token
    if counted and per_token and not _close(counted, per_token, _COUNT_TOLERANCE):
        found.append(_warning(
            "model_flops_per_token",
            f"the config says {per_token:.5g} FLOPs per token, the traced program has {counted:.5g} ({counted / per_token:.2f} times)",
        ))  # fmt: skip
    return found


# --- hardware -----------------------------------------------------------------------------------------------------


def _device_of(info: RunInfo) -> tuple[_Device | None, list[Finding]]:
    """What the run says it ran on, in every era's spelling of resources."""
    resources = info.resources or {}
    device = resources.get("device")
    fray = device if isinstance(device, dict) else {}
    kind = str(fray.get("kind") or fray.get("type") or "")
    name, count = "", 0
    if "tpu_type" in resources or kind == "tpu":
        name = str(resources.get("tpu_type") or fray.get("variant") or fray.get("topology") or "")[:_LONGEST_NAME]
        try:
            count = hardware.tpu_chips(name)
        except HardwareError as error:
            return None, [_unchecked("resources", f"chips not recomputable: {error}")]
        count *= _whole(resources, "slice_count", "replicas") or 1
    elif "gpu_count" in resources or kind == "gpu":
        name = str(resources.get("accelerator_type") or fray.get("variant") or "auto")[:_LONGEST_NAME]
        count = (_whole(resources, "gpu_count") or _whole(fray, "count") or 1) * (_whole(resources, "replicas") or 1)
    elif "num_cpus" in resources or kind == "cpu" or info.platform == "cpu":
        if info.platform not in (None, "cpu"):
            return None, [
                _error("platform", f"the resources are a processor, the platform is {str(info.platform)[:20]!r}")
            ]
        if (accelerator := _accelerator(info.device_name)) is not None:
            message = f"the resources are a processor, device_name is {accelerator.name}, an accelerator"
            return None, [_error("device_name", message, accelerator.peak_flops.get("bf16"))]
        note = "the peak of a processor is measured on the machine at hand, so it is taken as stated"
        return _Device("cpu", 1, None, "measured"), [_note("device_flops", note)]
    else:
        said = "the hardware is not stated" + ("" if info.device_name is None else " but for a name")
        if info.device_flops is None or info.training_hardware_flops is None:
            return None, [_unchecked("resources", said)]
        return None, [_error("resources", f"{said}, so nothing says that its peak is {info.device_flops:.4g} FLOP/s")]
    override = resources.get("device_flops_override")
    if isinstance(override, int | float) and not isinstance(override, bool):
        return _typed_in(name, count, float(override))
    if name.lower() == "auto":
        if info.device_name:
            name = info.device_name[:_LONGEST_NAME]
        else:
            note = f"the GPU's type was left open (`auto`); the public contest takes {AUTO_GPU_FLOPS:.5g} FLOP/s for it"
            return _Device("auto", count, AUTO_GPU_FLOPS, "auto"), [_warning("device_flops", note)]
    try:
        entry = hardware.lookup_device(name)
        return _Device(name, count, entry.peak("bf16"), entry.source), []
    except HardwareError as error:
        if info.device_flops is None:
            return _Device(name, count, None, ""), [
                _unchecked("device_flops", f"the peak is not recomputable: {error}")
            ]
        return _Device(name, count, None, ""), [_error("device_flops", _UNKNOWN_DEVICE.format(name=name))]


def _accelerator(name: str | None) -> hardware.Device | None:
    """The catalogue's entry of a name; None where it has none, as for a processor."""
    try:
        return None if name is None else hardware.lookup_device(name[:_LONGEST_NAME])
    except HardwareError:
        return None


def _typed_in(name: str, count: int, override: float) -> tuple[_Device, list[Finding]]:
    """A device whose peak the author typed in: for one that the catalogue has, it must be the catalogue's."""
    said = f"the peak of {name} was typed in by the author ({override:.4g} FLOP/s), not taken from the catalogue"
    try:
        entry = hardware.lookup_device(name)
    except HardwareError:
        return _Device(name, count, override, "override"), [
            _error("device_flops", f"{said}: {_UNKNOWN_DEVICE.format(name=name)}")
        ]
    peaks = sorted(entry.peak_flops.values())
    known = entry.peak_flops.get("bf16") or entry.peak_flops.get("fp16") or peaks[0]  # a V100 has no bfloat16
    # FP8 trains at another peak than bf16; a lower one, such as float32's, would make the same hardware cheaper.
    if any(_close(override, peak, _PEAK_TOLERANCE) for peak in peaks if peak >= known):
        return _Device(name, count, override, "override"), [_note("device_flops", said)]
    message = f"{said}, where it is {known:.4g} FLOP/s ({entry.source})"
    return _Device(name, count, override, "override"), [_error("device_flops", message, known)]


def _check_name(info: RunInfo, device: _Device | None) -> list[Finding]:
    """Whether what the engine found and what the resources say are one device, but for the size of its memory."""
    if device is None or device.name in ("cpu", "auto"):
        return []
    found, stated = _accelerator(info.device_name), _accelerator(device.name)
    if found is None or stated is None or same_device(found, stated):
        return []
    return [_error("device_name", f"device_name is {found.name}, the resources say {stated.name}")]


def same_device(one: hardware.Device, other: hardware.Device) -> bool:
    """Whether two entries of the catalogue differ in their memory alone, as A100-40G and A100-80G.

    An H200 has the peak of an H100 and is faster all the same.
    """
    return one.peak_flops == other.peak_flops and one.name.partition("-")[0] == other.name.partition("-")[0]


def _check_cost(info: RunInfo, device: _Device | None) -> list[Finding]:
    found: list[Finding] = []
    cost, seconds = info.training_hardware_flops, info.training_time
    chips, peak = info.num_chips or (device and device.chips), info.device_flops or (device and device.peak)
    if device and info.num_chips is not None and info.num_chips != device.chips:
        found.append(
            _error("num_chips", f"num_chips is {info.num_chips}, but {_described(info, device)}", device.chips)
        )
    if device and device.peak and info.device_flops and not _close(info.device_flops, device.peak, _PEAK_TOLERANCE):
        found.append(_error(
            "device_flops",
            f"device_flops is {info.device_flops:.4g}, but the peak of {device.name} is {device.peak:.4g} FLOP/s ({device.source})",
            device.peak,
        ))  # fmt: skip
    if cost is None or seconds is None:
        missing = "cost" if cost is None else "time"
        found.append(_unchecked("training_hardware_flops", f"the training {missing} is not stated"))
    elif not (chips and peak):
        found.append(_unchecked("training_hardware_flops", "the cost is not recomputable without chips and their peak"))
    elif not _close(cost, seconds * chips * peak):
        corrected = seconds * chips * peak
        message = f"the cost is {cost:.4g}, but {seconds:,.1f} s x {chips} chips x {peak:.4g} FLOP/s = {corrected:.4g}"
        if device and _close(cost, 2 * corrected) and device.name.lower().startswith(("v2", "v3", "v4", "v5p")):
            message += f": cores were counted as chips ({_described(info, device)})"
        found.append(_error("training_hardware_flops", message, corrected))
    return found


def _described(info: RunInfo, device: _Device) -> str:
    slices = _whole(info.resources, "slice_count", "replicas") or 1
    return (
        f"{f'{slices} x ' if slices > 1 else ''}{device.name} has {device.chips} chip{'s' if device.chips > 1 else ''}"
    )


def _check_mfu(info: RunInfo, device: _Device | None) -> list[Finding]:
    if not info.model_flops or not info.training_hardware_flops or info.training_hardware_flops < 0:
        return []
    mfu = info.model_flops / info.training_hardware_flops
    found = []
    if mfu >= 1:
        found.append(_error(
            "training_time",
            f"MFU is {mfu:.1%}: the hardware cannot have done this work in the time stated "
            f"(as when the time covers only the tail of a resumed run)",
        ))  # fmt: skip
    elif mfu > HIGHEST_PLAUSIBLE_MFU and (device is None or device.name != "cpu"):
        found.append(_warning("mfu", f"MFU is {mfu:.1%}, above the best published for language models"))
    if info.mfu is not None and not _close(info.mfu, mfu, 1e-3):
        found.append(_error("mfu", f"mfu is {info.mfu:.4f}, but model FLOPs / hardware FLOPs = {mfu:.4f}", mfu))
    traced = info.traced_flops
    if traced and traced >= info.training_hardware_flops:
        found.append(_error(
            "traced_flops",
            f"the program's own FLOPs are {traced / info.training_hardware_flops:.1%} of what the hardware could have done in the time stated",
        ))  # fmt: skip
    if (
        traced
        and info.traced_mfu is not None
        and not _close(info.traced_mfu, traced / info.training_hardware_flops, 1e-3)
    ):
        expected = traced / info.training_hardware_flops
        found.append(_error(
            "traced_mfu", f"traced_mfu is {info.traced_mfu:.4f}, but traced FLOPs / hardware FLOPs = {expected:.4f}", expected
        ))  # fmt: skip
    per_token = info.traced_training_flops_per_token
    if traced and per_token and info.total_tokens and not _close(traced, per_token * info.total_tokens):
        found.append(_error(
            "traced_flops",
            f"traced_flops is {traced:.5g}, but {per_token:.6g} a token x {info.total_tokens:,} tokens ="
            f" {per_token * info.total_tokens:.5g}",
            per_token * info.total_tokens,
        ))  # fmt: skip
    return found


# --- quality and form ---------------------------------------------------------------------------------------------


def _check_quality(info: RunInfo) -> list[Finding]:
    found: list[Finding] = []
    figures = {"eval/paloma/c4_en/bpb": info.c4_en_bpb}
    if info.evaluation is not None:
        figures["evaluation.bits_per_byte"] = info.evaluation.bits_per_byte
        figures["evaluation.levanter_bits_per_byte"] = info.evaluation.levanter_bits_per_byte
        for field in ("bytes", "tokens", "documents"):
            value = getattr(info.evaluation, field)
            if value is not None and value <= 0:
                found.append(_error(f"evaluation.{field}", f"evaluation.{field} is {value}, which no evaluation has"))
    if all(value is None for value in figures.values()):
        found.append(_unchecked("evaluation", "no bits per byte are stated"))
    for field, value in figures.items():
        if value is not None and value <= 0:
            found.append(_error(field, f"{value:g} bits per byte: no model predicts text for nothing"))
        elif value is not None and value > 8:
            found.append(_warning(field, f"{value:.3g} bits per byte is worse than the plain text (8)"))
    if info.c4_en_bpb is not None and 0 < info.c4_en_bpb < 0.5:
        found.append(_warning("eval/paloma/c4_en/bpb", f"{info.c4_en_bpb:.3g} is below any published model's on C4"))
    return found


def _check_form(info: RunInfo) -> list[Finding]:
    found: list[Finding] = []
    texts = {
        "author.name": info.author.name, "author.affiliation": info.author.affiliation, "author.url": info.author.url or "-",
        "description": info.description,
    }  # fmt: skip
    for field, text in texts.items():
        if is_placeholder(text):
            found.append(
                Finding(
                    "submission",
                    "error",
                    field,
                    f"{field} is still the template's placeholder {text[:80]!r}: fill it in",
                )
            )
        elif not text.strip() and field != "author.affiliation":
            found.append(Finding("submission", "error", field, f"{field} is empty: fill it in"))
    stamp = info.run_completion_timestamp
    if stamp is None:
        found.append(
            Finding("submission", "warning", "run_completion_timestamp", "the time of completion is not stated")
        )
    elif parse_timestamp(stamp) is None:
        message = f"{stamp[:40]!r} is not a time: expected such as '2025-06-28 17:29:21 UTC'"
        found.append(Finding("submission", "error", "run_completion_timestamp", message))
    return found


def is_placeholder(text: str) -> bool:
    """Whether a text is one that a template or a pipeline leaves for its user to fill in."""
    return re.search(r"__[A-Z][A-Z_]*__", text) is not None or text.strip().lower() in _PLACEHOLDERS


def parse_timestamp(text: str | None) -> datetime.datetime | None:
    """A completion time of the schema's form, or None if it has another."""
    try:
        if text is not None and _USUAL_TIMESTAMP.fullmatch(text):  # `strptime` takes ten times as long
            return datetime.datetime.fromisoformat(text.removesuffix(" UTC")).replace(tzinfo=datetime.UTC)
        return datetime.datetime.strptime(text or "", _TIMESTAMP).replace(tzinfo=datetime.UTC)
    except ValueError:
        return None
