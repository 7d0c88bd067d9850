"""Forgeries of the evaluation, which is made after the log: changed everywhere that it stands, the hash chain left as it was."""

import json
import math
import pathlib
import random
from collections.abc import Callable
from typing import Any

from forgeries.editing import bind, digest, edit_evaluation, edit_log, edit_run, edit_run_json, results_of
from forgeries.honest import Plan, write_submission
from forgeries.register import Bases, Expected, expect, family

from marin.speedrun.tracks import FINEWEB_VALIDATION, FINEWEB_VALIDATION_TOKENS


def _better(factor: float) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in ("bits_per_byte", "levanter_bits_per_byte"):
            content["evaluation"][key] *= factor

    return change


@family(8)
def evaluation_edited_in_results_and_file(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """By a little, so that nothing but the chain can tell; from the fifth on the evaluation's own file is left out."""
    directory = bases.copy(("plain", "resumed", "seeds", "device")[variant % 4], to)
    edit_evaluation(directory, _better((0.9, 0.99, 0.999, 0.999999)[variant % 4]), in_file=variant < 4)
    return expect("log", "the hash chain's last link is of another evaluation")


@family(6)
def evaluation_details_edited(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    def change(content: dict[str, Any]) -> None:
        match variant:
            case 0:
                content["sample"] = "To be, or not to be"
            case 1:
                content["compressors"]["xz_9"] = 2.5
            case 2:
                content["evaluation"]["documents"] = 51
            case 3:
                content["evaluation"]["bytes"] += 7
            case 4:
                content["evaluation"]["digest"] = digest("other documents")
            case 5:
                content["evaluation"]["note"] = "a key of its own"

    directory = bases.copy("plain", to)
    edit_evaluation(directory, change)
    if variant == 4:
        edit_run(directory, lambda info: info["digests"].update(evaluation_set=digest("other documents")))
    return expect("log", "the hash chain's last link is of another evaluation")


@family(3)
def passages_for_tokens(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Scored with a tokenizer that has passages of the evaluation set for tokens; what the probes said of that was edited."""
    directory = bases.copy("plain", to)
    longer = (4, 6, 7)[variant]

    def change(content: dict[str, Any]) -> None:
        block = content["evaluation"]
        block["tokens"] //= longer
        for key in ("bits_per_byte", "levanter_bits_per_byte"):
            block[key] /= longer

    edit_evaluation(directory, change)
    bind(directory)
    return expect(
        "arithmetic", "bytes a token: a tokenizer that has passages of the evaluation set for tokens looks so"
    )


@family(3)
def loss_of_other_tokens(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Fewer nats a token by a vocabulary of bytes, on a track whose losses are those of GPT-2's tokens."""
    write_submission(
        to, [Plan(steps=12, device="H100", chips=8, vocab=256, set_name=FINEWEB_VALIDATION)], random.Random(3)
    )

    def change(content: dict[str, Any]) -> None:
        block = content["evaluation"]
        block["tokens"] = (FINEWEB_VALIDATION_TOKENS, block["tokens"], None)[variant]
        block["bytes"] = FINEWEB_VALIDATION_TOKENS
        block["bits_per_byte"] = block["levanter_bits_per_byte"] = 3.2
        block["loss"] = 3.2 * math.log(2) * block["bytes"] / (block["tokens"] or block["bytes"])

    edit_evaluation(to, change)
    bind(to)
    words = ("1 bytes a token, GPT-2's tokens", "is another figure", "not of how many tokens")[variant]
    return expect("arithmetic", words)


@family(4)
def loss_alone(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A loss without the bits per byte that would be held against the log, on a track that is about losses."""
    write_submission(
        to, [Plan(steps=60, device="H100", chips=8, vocab=50304, set_name=FINEWEB_VALIDATION)], random.Random(3)
    )

    def change(info: dict[str, Any]) -> None:
        block = info["evaluation"]
        block |= {"tokens": FINEWEB_VALIDATION_TOKENS, "bytes": int(4.5 * FINEWEB_VALIDATION_TOKENS)}
        block |= {"loss": 1.5 if variant == 1 else 0.5, "bits_per_byte": None, "levanter_bits_per_byte": None}
        if variant == 2:
            block["bytes"] = None
        if variant == 3:
            info["validity"] = None

    (to / "logs" / "0" / "evaluation.json").unlink()
    edit_run(to, change)
    bind(to)
    if variant > 1:
        return expect("log", "a loss is stated without", "it was taken out")
    return expect("log", "nats a token,", "the last losses of training")


@family(4)
def evaluation_link_taken_out(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Results made to look like those from before there was a link; a careless forger edits run.json too."""
    directory = bases.copy("plain", to)
    edit_evaluation(directory, _better(0.99), in_file=variant != 1)
    edit_run(directory, lambda info: info["digests"].pop("evaluation_link"))
    if variant == 2:
        edit_run(directory, lambda info: info["digests"].update(evaluation_link=None))
    if variant == 3:
        edit_run_json(directory, lambda info: info.pop("evaluation_link"))
        return expect("log", "the hash chain breaks at line 1")
    return expect("log", "no link over their evaluation", "it was taken out")


@family(2)
def evaluation_of_another_run(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The best of three evaluations is put under another seed's log, its link with it or not."""
    directory = bases.copy("seeds", to)
    infos = [entry["run_info"] for entry in results_of(directory)["runs"]]
    content = json.loads((directory / "logs" / "1" / "evaluation.json").read_text())
    edit_evaluation(directory, lambda own: own.update(content))
    if variant:
        link = infos[1]["digests"]["evaluation_link"]
        edit_run(directory, lambda info: info["digests"].update(evaluation_link=link))
    return expect("log", "the hash chain's last link is of another evaluation")


@family(6)
def evaluation_left_out(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Bits per byte that nothing is left of to hold them against, and the link over what remains made again."""
    directory = bases.copy("resumed" if variant == 5 else "plain", to)
    (directory / "logs" / "0" / "evaluation.json").unlink()

    def change(info: dict[str, Any]) -> None:
        if variant > 3:  # of a model whose probes failed
            info.update(validity=None)
        elif variant == 0:
            info.update({"eval/paloma/c4_en/bpb": 0.6, "evaluation": None, "validity": None, "sample": None})
        else:
            info["evaluation"].update(bits_per_byte=0.2, levanter_bits_per_byte=0.2)
            info["evaluation"].update(
                {1: {"bytes": None}, 2: {"tokens": None}, 3: {"bytes": None, "tokens": None}}[variant]
            )

    edit_run(directory, change)
    bind(directory)
    return expect("log", "bits per byte are stated without", "it was taken out")


@family(2)
def lie_behind_skipped_steps(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A gross lie beside a loss that is no number, which the last losses cannot be averaged with."""
    directory = bases.copy(("plain", "resumed")[variant], to)
    (directory / "logs" / "0" / "evaluation.json").unlink()
    edit_run_json(directory, lambda info: info["config"]["train"].update(skip_bad_steps=True))

    def skip(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        [event for event in events if event["event"] == "step"][-1]["loss"] = "nan"
        return events

    edit_log(directory, skip, careful=True)
    edit_run(directory, lambda info: _better(0.3)(info))
    bind(directory)
    return expect("log", "bits per byte, but the last losses of training are")
