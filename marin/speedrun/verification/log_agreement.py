"""Whether a results file says what its log says: every figure that follows from the log is computed again.

The function that makes results (`figures_of_log`) makes them here too, and each is held against the claim: numbers to nine digits,
as sums may be rounded otherwise, and everything else exactly. The digests in the results name the log byte for byte, and the
evaluation by the chain's last link.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Any

from marin import hardware
from marin.errors import HardwareError, ResultsError
from marin.speedrun import strict_json
from marin.speedrun.arithmetic.stated_device import same_device
from marin.speedrun.board.labels import platform_and_chips
from marin.speedrun.evaluation_record import EvaluationRecord
from marin.speedrun.results import Digests, RunInfo
from marin.speedrun.run_results import check_steps, digests_of_log, figures_of_log
from marin.speedrun.verdict import Finding, Severity
from marin.speedrun.verification.run_log import RunLog
from marin.tracking.run_record import MOST_HELD

_DIGITS = 1e-9
_ALWAYS_STATED = ("seed",)  # by every file that was made with a log: without it one run could stand for several
_KNOWS_NOTHING = 0.9  # of the loss of a uniform guess; hello world begins within 0.1 % of it
# FLOP/s in float32 of vectors of four at 2 GHz; cores since 2011 have vectors of eight or more. Two of an EPYC under a load of ten: 53 GFLOP/s each.
_LEAST_OF_A_CORE = 16e9
_HANDED_IN = "experiments/speedrun/"
_MOST_FILES = 5  # that are named
_WALL_TIME = 1e-3  # seconds: stamps have milliseconds, and their differences are sums of them


def finding(severity: Severity, field: str, message: str, corrected: float | None = None) -> Finding:
    return Finding("log", severity, field, message, corrected)


def check_agreement(info: RunInfo, log: RunLog) -> list[Finding]:
    """What of the claim differs from the log; one finding alone where the log is not that of a whole run."""
    try:
        check_steps(log.record)
    except ResultsError as error:
        return [finding("error", "steps", str(error))]
    return [
        *_check_figures(info, log),
        *_check_seed(log),
        *_check_host(info, log),
        *_check_processor(log),
        *_check_calls_out(log),
        *_check_held(log),
        *_check_replaced(log),
        *_check_files(log),
        *_check_first_loss(log),
        *_check_data(info, log),
        *_check_digests(info, log),
        *_check_chain(log),
        *_check_evaluation(info, log),
    ]


def _check_figures(info: RunInfo, log: RunLog) -> Iterator[Finding]:
    per_token = info.model_flops_per_token
    stated = log.run.model_flops_per_token
    if stated is not None and per_token is not None and not _same(per_token, stated):
        yield finding(
            "error",
            "model_flops_per_token",
            f"model_flops_per_token is {per_token:.8g}, the log's run.json says {stated:.8g}",
            stated,
        )
    try:
        figures = figures_of_log(log.record, per_token or stated or math.nan)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError, OSError) as error:
        yield finding(
            "error", "metrics.jsonl", f"no results can be made from the log ({type(error).__name__}: {error})"
        )
        return
    for field, value in figures.items():
        claimed = getattr(info, field)
        if claimed is None and field not in info.model_fields_set and field not in _ALWAYS_STATED:
            continue  # a file from before there was such a figure
        if _same(claimed, value):
            continue
        shown = "model_config" if field == "model" else field
        number = float(value) if isinstance(value, int | float) and math.isfinite(value) else None
        missing = claimed is None or value is None
        yield finding(
            "warning" if missing and field not in _ALWAYS_STATED else "error",
            shown,
            f"{shown} is {_show(claimed)}, from the log it is {_show(value)}",
            number,
        )


def _check_seed(log: RunLog) -> Iterator[Finding]:
    """The seed that tells a run from its kin, against the config that it was trained with."""
    planned, stated = log.run.config.train.get("seed"), log.run.seeds.model
    if isinstance(planned, int) and stated is not None and planned != stated:
        message = (
            f"run.json says that the seed was {stated}, its config has {planned}: a run renamed to be another seed's"
        )
        yield finding("error", "seed", message, planned)
    planned, stated = log.run.config.train.get("data_seed"), log.run.seeds.data
    if isinstance(planned, int) and stated is not None and planned != stated:
        message = f"run.json says that the seed of the data was {stated}, its config has {planned}"
        yield finding("error", "data_seed", message, planned)


def _check_host(info: RunInfo, log: RunLog) -> Iterator[Finding]:
    """The kind of machine, and the GPUs that its driver named, against what the results and their cost count."""
    stated_platform, _ = platform_and_chips(info)
    if None not in (stated_platform, log.run.platform) and stated_platform != log.run.platform:
        message = f"the resources are of the platform {stated_platform}, run.json says {str(log.run.platform)[:20]!r}"
        yield finding("error", "platform", message)
    named = {gpu.name for gpu in log.run.host.gpus}
    if log.run.platform != "gpu" or not named:
        return
    stated, found = _entry(log.run.device_name or ""), {name: _entry(name) for name in sorted(named)}
    if stated is None or any(device is not None and same_device(device, stated) for device in found.values()):
        return  # a machine may have several kinds
    names = " and ".join(sorted({name[:60] if device is None else device.name for name, device in found.items()}))
    message = f"run.json says {stated.name}, its machine had {names}"
    if None in found.values():  # which the engine does not train on, but a driver may call a known one so
        yield finding("unchecked", "device_name", f"{message}, of which not all are in the catalogue")
    else:
        yield finding("error", "device_name", message)


def _entry(name: str) -> hardware.Device | None:
    """The catalogue's entry of a device; None where it has none."""
    try:
        return hardware.lookup_device(name)
    except HardwareError:
        return None


def _check_processor(log: RunLog) -> Iterator[Finding]:
    """The peak of a processor, which no catalogue knows: who halves it halves his cost, as far as his MFU stays below 1."""
    run = log.run
    if run.platform != "cpu":
        return
    cores, resources = run.host.cores_usable or 1.0, run.config.train.get("resources")
    wanted = resources.get("num_cpus") if isinstance(resources, dict) else None
    cores = min(cores, wanted) if isinstance(wanted, int) and wanted > 0 else cores
    a_core = run.device_flops / cores
    if "x86_64" in (run.host.platform or "") and a_core < _LEAST_OF_A_CORE:
        message = (
            f"the processor's peak is {run.device_flops:.4g} FLOP/s, {a_core / 1e9:.3g} GFLOP/s for each of {cores:g} cores: measured,"
            f" a core of x86-64 has at least {_LEAST_OF_A_CORE / 1e9:g} unless it is busy with other work: train again when it is idle"
        )
        yield Finding("arithmetic", "unchecked", "device_flops", message, _LEAST_OF_A_CORE * cores)
    elif run.peak_is_given:
        message = (
            f"the processor's peak, {run.device_flops:.4g} FLOP/s, was given by MARIN_CPU_PEAK_FLOPS and not measured"
        )
        yield Finding("arithmetic", "warning", "device_flops", message)


def _check_calls_out(log: RunLog) -> Iterator[Finding]:
    """Whether the training step did all of its work itself: what it asks the host for may have been computed anywhere, by anything."""
    starts = ", ".join(dict.fromkeys(start["calls_out"] for start in log.record.of("start") if start.get("calls_out")))
    if log.run.calls_out or starts:
        names = (", ".join(log.run.calls_out) or starts)[:80]
        message = f"the training step calls out of itself ({names}): what is computed there is in no count of FLOPs, and by whom in no cost"
        yield finding("unchecked", "calls_out", message)


def _check_held(log: RunLog) -> Iterator[Finding]:
    """Whether parameters come from a seed and the training data alone, as far as programs show it."""
    held = max((start.get("held_bytes", 0) for start in log.record.of("start")), default=0)
    if held > MOST_HELD:
        message = (
            f"what makes the model or trains it holds {held:,} bytes of its own, more than {MOST_HELD:,}: parameters may be made of the"
            " evaluation set, or of weights that were trained elsewhere"
        )
        yield finding("unchecked", "held_bytes", message)


def _check_replaced(log: RunLog) -> Iterator[Finding]:
    """Whether the code that trained was what its files say, as far as the process itself could see."""
    names = dict.fromkeys(start["replaced"] for start in log.record.of("start") if start.get("replaced"))
    if names:
        message = (
            f"the run was trained by a process in which other code than their files have stands behind {', '.join(names)[:200]}: what was"
            " measured may be something else"
        )
        yield finding("unchecked", "replaced", message)


def _check_files(log: RunLog) -> Iterator[Finding]:
    """Whether others can have the code that trained; an experiment's own files are handed in."""
    others = [name for name in log.run.git.loaded_unlike if not name.startswith(_HANDED_IN)]
    if others:
        more = f" and {len(others) - _MOST_FILES} more" if len(others) > _MOST_FILES else ""
        message = (
            f"the run was trained and measured by files that its commit does not have so: {', '.join(others[:_MOST_FILES])[:200]}{more}; commit"
            " them and train again"
        )
        yield finding("unchecked", "git", message)


def _check_first_loss(log: RunLog) -> Iterator[Finding]:
    """Whether the model knew something before its first step: one that is made from a seed alone takes all tokens for about as likely."""
    # A step without a finite loss is skipped, so that the next one begins where it did.
    vocab_size = log.run.config.vocab_size
    losses = [step["loss"] for step in log.record.steps() if math.isfinite(step["loss"])]
    if not vocab_size or vocab_size < 2 or not losses:
        return
    begin, new = losses[0], math.log(vocab_size)
    if begin < _KNOWS_NOTHING * new:
        yield finding(
            "unchecked",
            "loss",
            f"the first step's loss is {begin:.4g} nats, where a new model of {vocab_size:,} tokens has about {new:.4g} (ln {vocab_size:,}):"
            " what it knew before, weights or counts of the data, was made off the clock",
        )


def _check_data(info: RunInfo, log: RunLog) -> Iterator[Finding]:
    """The caches that results name, relative to a prefix, against the paths that `run.json` has of them."""
    data = log.run.config.data
    if data is None or info.tokenized_dataset is None:
        yield finding(
            "unchecked", "tokenized_dataset", "the training data is as stated: run.json or the results do not name it"
        )
        return
    components = data.get("components") if isinstance(data, dict) else {"": data}
    paths = [str(path) for path in components.values()] if isinstance(components, dict) else []
    names = [part.rpartition(" x ")[2] for part in info.tokenized_dataset.split(" + ")]
    if len(names) != len(paths) or not all(map(_is_cache, names, paths)):
        shown = ", ".join(path.rpartition("/")[2] for path in paths[:4])
        message = (
            f"tokenized_dataset is {info.tokenized_dataset[:80]!r}, run.json says {shown[:200] or 'something else'!r}"
        )
        yield finding("error", "tokenized_dataset", message)


def _is_cache(name: str, path: str) -> bool:
    """Whether a cache's name is of a path, which run.json has relative to the run; one outside of the prefix is named whole."""
    if name.startswith("/") or "://" in name:
        return name.endswith("/" + path.lstrip("./"))
    return path == name or path.endswith(f"/{name}")


def _check_digests(info: RunInfo, log: RunLog) -> Iterator[Finding]:
    claimed = info.digests.model_dump() if info.digests else {}
    found = digests_of_log(log.record, log.files.run, log.files.metrics, log.links.head)
    what = {"metrics_log": "metrics.jsonl", "run": "run.json", "log_head": "the log's hash chain"}
    for field, value in found.items():
        stated = claimed.get(field)
        if stated is None and field == "metrics_log":
            yield finding("unchecked", "digests.metrics_log", "the results do not name their log by its digest")
        elif stated is None and field == "log_head":
            yield finding(
                "unchecked",
                "digests.log_head",
                "the results do not name the head of the log's hash chain: made before there was one",
            )
        elif stated is not None and stated != value:
            yield finding(
                "error", f"digests.{field}",
                f"the results name {what.get(field, f'a {field}')} {str(stated)[:16]}..., the log that is given has {str(value)[:16]}...",
            )  # fmt: skip


def _check_chain(log: RunLog) -> Iterator[Finding]:
    links = log.links
    if links.first_linked is None:
        yield finding(
            "unchecked", "chain", "the log has no hash chain: it was written before there was one, or it was taken out"
        )
    elif links.broken is not None:
        yield finding(
            "error", "chain",
            f"the hash chain breaks at line {links.broken}: run.json or a line up to there was changed, dropped, added or moved",
        )  # fmt: skip
    elif links.first_linked > 1:
        yield finding(
            "unchecked",
            "chain",
            f"the hash chain begins at line {links.first_linked}: the lines before it were written without",
        )


def check_evaluation_link(info: RunInfo, log: RunLog | None) -> Iterator[Finding]:
    """Whether the evaluation that results state is the one that the hash chain's last link names; a log is not needed for that."""
    digests = info.digests or Digests()
    head = digests.log_head or (log.links.head if log else None)
    if digests.evaluation_link is not None:
        if head is None or EvaluationRecord.of(info).link(head) != digests.evaluation_link:
            yield finding(
                "error",
                "digests.evaluation_link",
                "the hash chain's last link is of another evaluation: bits per byte, CORE, probes, compressors, sample or the log was"
                " changed after the results were made",
            )
    elif log is not None and any(part is not None for part in (info.evaluation, info.c4_en_bpb, info.core)):
        if log.run.evaluation_link is None:
            message = "the results do not bind their evaluation: made before the hash chain had a link for it"
            yield finding("note", "digests.evaluation_link", message)
        else:
            message = "the results have no link over their evaluation, with which a run of this run.json is written: it was taken out"
            yield finding("error", "digests.evaluation_link", message)


def _check_evaluation(info: RunInfo, log: RunLog) -> Iterator[Finding]:
    """The evaluation is made after training, so no line of the log holds it; its own file may be handed in beside the log."""
    if log.files.evaluation is not None:
        name = f"{log.name}/evaluation.json"
        try:
            found = EvaluationRecord.parse(strict_json.parse_json(log.files.evaluation, name), name).parts()
        except ResultsError as error:
            yield finding("error", "evaluation", str(error))
            return
        claims = EvaluationRecord.of(info).parts()
        for field in ("evaluation", "validity", "compressors", "sample"):
            if claims.get(field) != found.get(field):
                yield finding(
                    "error",
                    field,
                    f"{field} is {_show(claims.get(field))}, in {name} it is {_show(found.get(field))}",
                )
    yield from _check_core(info)
    block = info.evaluation
    loss_alone = info.quality is None and block is not None and block.loss is not None
    whole = block is not None and None not in (block.bytes, block.tokens)
    if (
        (info.quality is not None or loss_alone)
        and log.run.evaluation_link is not None
        and not (whole and info.validity is not None)
    ):
        missing = "an evaluation" if block is None else "validity probes" if whole else "its bytes and tokens"
        what = "a loss is" if loss_alone else "bits per byte are"
        message = (
            f"{what} stated without {missing}, with which an engine of this run.json writes them: it was taken out"
        )
        yield finding("error", "evaluation", message)
    # Steps that were skipped have no loss, and took nothing from what the model knew.
    tail = [step["loss"] for step in log.record.steps() if math.isfinite(step["loss"])]
    if block is None or not tail:
        return
    tail = tail[-max(1, len(tail) // 10) :]
    nats = math.fsum(tail) / len(tail)
    if loss_alone and block.loss is not None:
        yield from _check_score("evaluation.loss", block.loss, nats, "nats a token")
    if block.bits_per_byte and block.bytes and block.tokens and block.bytes > 0 and block.tokens > 0:
        expected = nats * block.tokens / (math.log(2) * block.bytes)
        yield from _check_score("evaluation.bits_per_byte", block.bits_per_byte, expected, "bits per byte")
        # What C4-EN is ranked by. Over batches of some thousand tokens the two averages lie a percent apart.
        if block.levanter_bits_per_byte:
            unit = "bits per byte as the mean over batches"
            yield from _check_score("evaluation.levanter_bits_per_byte", block.levanter_bits_per_byte, expected, unit)


def _check_score(field: str, stated: float, expected: float, unit: str) -> Iterator[Finding]:
    """A score against what the last losses of training are in its unit: a gross lie is found."""
    if not math.isfinite(expected):
        return
    if stated < 0.5 * expected:
        text = f"{stated:.4g} {unit}, but the last losses of training are {expected:.3g} {unit} of that text"
        yield finding("error", field, text)
    elif stated < 0.75 * expected:
        text = f"{stated:.4g} {unit}, well below the last losses of training ({expected:.3g})"
        yield finding("unchecked", field, text)


def _check_core(info: RunInfo) -> Iterator[Finding]:
    """CORE is measured after training too: its counts are bound by the chain's last link, and name the run's last checkpoint."""
    if info.core_metric is None:
        return
    digests = info.digests or Digests()
    if info.core is None or digests.evaluation_link is None:
        message = "CORE is as stated: no counts of its tasks are bound to the log, so that somebody has to score the checkpoint again"
        yield finding("unchecked", "core_metric", message)
    elif digests.checkpoint is None or info.core.weights is None:
        message = "CORE's counts do not name the checkpoint that the log ends with"
        yield finding("unchecked", "core.weights", message)
    elif info.core.weights != digests.checkpoint:
        message = f"CORE was measured on the checkpoint {info.core.weights[:16]}..., the log ends with {digests.checkpoint[:16]}..."
        yield finding("error", "core.weights", message)


def _same(claimed: Any, value: Any) -> bool:
    if isinstance(claimed, bool) or isinstance(value, bool):
        return claimed is value
    if isinstance(claimed, float | int) and isinstance(value, float | int):
        return math.isclose(claimed, value, rel_tol=_DIGITS)
    if isinstance(claimed, dict) and isinstance(value, dict) and "goodput" in value:
        return claimed.keys() == value.keys() and all(
            math.isclose(claimed[k], value[k], rel_tol=1e-6, abs_tol=_WALL_TIME) for k in value
        )
    return bool(claimed == value)


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{hashlib.sha256(repr(value).encode('utf-8', 'replace')).hexdigest()[:8]} ({len(value)} entries)"
    if isinstance(value, float):
        return f"{value:.10g}"
    return repr(value)[:80]
