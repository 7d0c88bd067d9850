"""The report of the pipeline: `reset` before the first stage, `generate` after the last.

    python -m scripts.report reset
    python -m scripts.report generate      # BASE/report/report.md and report.html, and report.md here

Sections are written by the stages; `reset` forgets those of an earlier pipeline.
"""

import dataclasses
from pathlib import Path
from typing import Literal

import tyro

from marin.errors import ConfigError
from marin.gpt2.command import parse_flags, run_command
from marin.gpt2.places import Places
from marin.gpt2.report import HEADER_FILE, REPORT_FILE, collect, markdown, reset
from marin.site.gpt2_report import write_page
from marin.storage import files


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of report.

    Args:
        action: reset forgets earlier sections and notes the machine; generate writes the report.
        unless_begun: with reset, leave a report alone that has been begun, as a pipeline does that continues.
        price_per_hour: of the whole machine, for the cost; in whatever currency.
        copy_to: where generate copies report.md.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    action: tyro.conf.Positional[Literal["reset", "generate"]]
    unless_begun: bool = False
    price_per_hour: float | None = None
    copy_to: str = "."
    base_dir: str | None = None


def main() -> None:
    flags = parse_flags(Flags, __doc__)
    places = Places.of(flags.base_dir)
    if flags.action == "reset":
        if flags.unless_begun and (places.report / HEADER_FILE).is_file():
            print(f"going on with the report in {places.report}")
            return
        reset(places)
        print(f"{places.report} is ready for a new report")
        return
    if not Path(flags.copy_to).is_dir():
        raise ConfigError(f"`--copy-to` is {flags.copy_to}, which is no folder: give one that is there")
    if flags.price_per_hour is not None and flags.price_per_hour < 0:
        raise ConfigError(f"`--price-per-hour` is {flags.price_per_hour:g}: use 0 or more")
    report = collect(places, flags.price_per_hour)
    path = places.report / REPORT_FILE
    text = markdown(report).encode()
    files.write_bytes(str(path), text)
    page = write_page(places, report)
    copied = Path(flags.copy_to, REPORT_FILE)
    files.write_bytes(str(copied), text)
    print(f"the report is in {path} (copied to {copied}) and in {page}")


if __name__ == "__main__":
    run_command(main)
