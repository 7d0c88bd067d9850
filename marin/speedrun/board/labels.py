"""What a run is called by in tables and filters: its hardware, platform, optimizer and depth, in every era's spelling.

Labels are read from what the file says and never guessed: what it does not say is `None`.
"""

import re

from marin.errors import HardwareError
from marin.speedrun.arithmetic.findings import whole_number
from marin.speedrun.arithmetic.stated_device import device_block, stated_resources
from marin.speedrun.results import RunInfo

_OPTIMIZERS = (
    "C-AdamC", "AdamC", "AdamH", "AdaMuon", "NorMuon", "MuonH", "Muon", "AdEMAMix", "Adamax", "Cautious", "Lion", "SOAP", "Scion", "Kron",
    "Sophia", "MARS", "ADOPT", "AdamW",
)  # fmt: skip
_ORDER = {name.lower(): place for place, name in enumerate(_OPTIMIZERS)}
_OPTIMIZER_NAMES = re.compile(rf"(?<![a-z])(?:{'|'.join(map(re.escape, _ORDER))})(?![a-z])")
_LONGEST_NAME = 64
# What the classes of `marin.optim` are called here, by their names without "Config".
_CLASSES = {"Adam": "AdamW", "GptMuon": "Muon", "Mars": "MARS", "Soap": "SOAP", "Adopt": "ADOPT", "Ademamix": "AdEMAMix"} | {
    name: name for name in ("AdamH", "MuonH", "Muon", "NorMuon", "Lion", "Scion", "Sophia")
}  # fmt: skip
# Fields that only one optimizer's config has, beside those that it shares with Adam.
_OWN_FIELDS = {
    "precondition_frequency": "SOAP", "update_interval": "Sophia", "beta3": "AdEMAMix", "gamma": "MARS", "adam_lr": "AdamH",
}  # fmt: skip


def optimizer_name(info: RunInfo, run_name: str, optimizer_class: str | None = None) -> str | None:
    """By the run's name, or else its description, where they name one; of several that which its config holds, if it is one of them.

    None where neither name, description nor config says it.

    Args:
        optimizer_class: as `run.json` names it, "module:Class" or "module:GroupsConfig of Class, Class"; fields do not tell all apart.
    """
    if optimizer_class is None:
        configured = _optimizer_of((info.train_config or {}).get("optimizer_config"))
    else:
        of_groups = optimizer_class.partition(" of ")[2] or optimizer_class.rpartition(":")[2]
        configured = _CLASSES.get(of_groups.split(", ")[0].removesuffix("Config"))
    for text in (run_name, info.description):
        found = _OPTIMIZER_NAMES.findall(text.lower())
        if found:
            named = [_OPTIMIZERS[place] for place in sorted(_ORDER[name] for name in found)]
            return configured if configured in named else named[0]
    return configured


def _optimizer_of(config: object) -> str | None:
    """By the fields of a config; of groups with an optimizer each, the first, whose rate is the one that is recorded."""
    if not isinstance(config, dict):
        return None
    groups = config.get("groups")
    if isinstance(groups, list) and groups and isinstance(groups[0], dict):
        return _optimizer_of(groups[0].get("optimizer"))
    if "muon_epsilon" in config or "momentum_steps" in config:  # MuonConfig, GptMuonConfig
        return "Muon"
    if not {"beta1", "beta2", "epsilon", "weight_decay"} <= config.keys():
        return None
    return next((name for field, name in _OWN_FIELDS.items() if field in config), "AdamW")


def platform_and_chips(info: RunInfo) -> tuple[str | None, int | None]:
    """Processor, GPU or TPU, and how many chips; `None` for what the file does not say."""
    stated = stated_resources(info)
    if stated is None:
        return info.platform, info.num_chips
    if info.num_chips is not None:
        return stated.kind, info.num_chips
    try:
        return stated.kind, stated.chips()
    except HardwareError:
        return stated.kind, None


def describe_hardware(info: RunInfo) -> str | None:
    """Such as "4 x A100", "v5p-32", "2 x v4-128" or "CPU (AMD EPYC)"; None where the file does not say."""
    resources, device = info.resources or {}, device_block(info)
    count: object = None
    if isinstance(resources.get("tpu_type"), str):
        name, count = resources["tpu_type"], resources.get("slice_count")
    elif isinstance(resources.get("accelerator_type"), str):
        name, count = resources["accelerator_type"], resources.get("gpu_count")
        name = info.device_name or name if name == "auto" else name
    elif device:
        name = next((device[key] for key in ("variant", "type", "kind") if isinstance(device.get(key), str)), "")
        name, count = ("GPU" if name == "auto" else name), device.get("count")
    elif info.device_name and info.device_name != "cpu":
        name, count = info.device_name, info.num_chips
    elif "num_cpus" in resources or info.platform == "cpu":
        name = f"CPU ({info.processor[:_LONGEST_NAME]})" if info.processor else "CPU"
    else:
        return None
    return f"{count} x {name}" if isinstance(count, int) and count > 1 else name or None


def depth_of(info: RunInfo) -> int | None:
    """The number of layers."""
    return whole_number(info.model, "depth", "num_layers", "n_layer")
