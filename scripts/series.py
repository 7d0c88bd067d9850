"""Puts several base runs into one table, as runs/miniseries.sh and runs/scaling_laws.sh do at their end.

    python -m scripts.series jan --tags jan_d10 jan_d12 jan_d14

The table is BASE/jan.csv, and a section of the report.
"""

import dataclasses
from pathlib import Path

import tyro

from marin.gpt2.command import parse_flags, run_command
from marin.gpt2.places import Places, check_name
from marin.gpt2.sections import report_section


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of series.

    Args:
        name: of the table, BASE/NAME.csv.
        tags: of the runs.
        best_by_budget: also print which run each budget of FLOPs was best spent on.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    name: tyro.conf.Positional[str]
    tags: tuple[str, ...]
    best_by_budget: bool = False
    base_dir: str | None = None


def main() -> None:
    flags = parse_flags(Flags, __doc__)

    from marin.gpt2.series import best_by_budget, series_rows, write_csv  # imports JAX, which `--help` does not need

    places = Places.of(flags.base_dir)
    check_name("name", flags.name)
    rows = series_rows(places, flags.tags)
    path = Path(places.base, f"{flags.name}.csv")
    write_csv(rows, path)
    shown = ("depth", "parameters", "tokens", "total_flops", "val_bpb", "core_metric", "total_training_time")
    report_section(
        places, f"Series {flags.name}", {"runs": {row["tag"]: {key: row[key] for key in shown} for row in rows}}
    )
    for row in best_by_budget(rows) if flags.best_by_budget else rows:
        bits = "not measured" if row["val_bpb"] is None else f"{row['val_bpb']:.5f}"
        print(f"{row['tag']:<28} d{row['depth']:<3} {row['total_flops']:.3g} FLOPs   {bits} bits per byte")
    print(f"the table of {len(rows)} runs is in {path}")


if __name__ == "__main__":
    run_command(main)
