"""The text of `print_run_info`: a config as JSON in the public tutorial's brace style, and what training it costs."""

import json
from collections.abc import Sequence
from typing import Any

_START = "----- START OF PRINT RUN INFO -----"
_END = "----- END OF PRINT RUN INFO -----"
_ASSUMED_MFU = (0.5, 0.2)
# The formula and the count differ by the softmax, which is no product; more than this is a disagreement.
_COUNT_TOLERANCE = 0.1


def run_info_text(
    config: dict[str, Any],
    *,
    model_flops: float | None,
    model_size: int | None,
    num_devices: int | None,
    num_chips: int | None,
    device_flops: float | None,
    notes: Sequence[str] = (),
) -> str:
    """All lines of the dry run's summary, without a trailing newline; `notes` come last. None is shown as unknown."""
    best, worst = (_scientific(None if model_flops is None else model_flops / mfu) for mfu in _ASSUMED_MFU)
    peak = None if num_chips is None or device_flops is None else num_chips * device_flops
    millions = "unknown" if model_size is None else f"{model_size / 1e6:.2f} million parameters"
    return "\n".join(
        [
            _START,
            "Speedrun Configuration:",
            brace_style_json(config),
            "The rough estimated compute (calculated as (total model FLOPs / Assumed MFU)) for your run is probably between:",
            f"      * {best} FLOPs assuming an MFU of {_ASSUMED_MFU[0]}, and",
            f"      * {worst} FLOPs assuming an MFU of {_ASSUMED_MFU[1]}.",
            "",
            "This is calculated based on assumed MFU values and can be used as a rough estimate to guide your "
            "config/training setup.",
            "Hardware and Model FLOPS Information:",
            f"Number of devices: {'unknown' if num_devices is None else num_devices}",
            f"Number of chips: {'unknown' if num_chips is None else num_chips}",
            f"Device FLOPs: {_scientific(device_flops)} FLOP/s",
            f"Total peak hardware FLOPs: {_scientific(peak)} FLOP/s",
            f"Model FLOPs: {_scientific(model_flops)} FLOP",
            f"Model size: {millions}",
            *notes,
            _END,
        ]
    )


def _scientific(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2e}"


def flop_notes(stated: float, counted: float, uncounted: Sequence[str]) -> list[str]:
    """What a person should know where the config's FLOPs a token and the traced program's do not agree."""
    notes = []
    if abs(counted - stated) > _COUNT_TOLERANCE * stated:
        notes.append(
            f"Warning: the config's flops_per_token says {stated:.4g} FLOPs, the traced program has {counted:.4g}"
            f" ({counted / stated:.2f} times, attention in full in both): correct `flops_per_token`, or say why in the description."
        )
    if uncounted:
        notes.append(
            f"Warning: the count of the traced program lacks {', '.join(uncounted)}, whose work is not counted."
        )
    return notes


def brace_style_json(value: Any, indent: int = 0) -> str:
    """JSON indented by two whose braces and brackets stand on lines of their own."""
    pad = " " * indent
    if isinstance(value, dict) and value:
        inner = ",\n".join(f"{pad}  {json.dumps(key)}:{_after_key(item, indent + 2)}" for key, item in value.items())
        return f"{pad}{{\n{inner}\n{pad}}}" if indent else f"{{\n{inner}\n}}"
    if isinstance(value, list) and value:
        inner = ",\n".join(f"{pad}  {brace_style_json(item, indent + 2).lstrip()}" for item in value)
        return f"{pad}[\n{inner}\n{pad}]"
    return _scalar(value)


def _after_key(value: Any, indent: int) -> str:
    if isinstance(value, dict | list) and value:
        return "\n" + brace_style_json(value, indent)
    return " " + _scalar(value)


def _scalar(value: Any) -> str:
    """As JSON, with small floats in full (0.00001) down to 1E-5 and in capital exponents below."""
    if isinstance(value, float):
        text = json.dumps(value)
        if "e" in text:
            return f"{value:.12f}".rstrip("0") if 1e-5 <= abs(value) < 1 else text.upper()
        return text
    return json.dumps(value)
