"""Fetches CORE's data, the public archive of 22 tasks, into BASE/eval_bundle.

    python -m scripts.eval_bundle

Run again, it says what is there. Training and base_eval measure CORE where they find it.
"""

import dataclasses

from marin.data.core_tasks import CORE_TASKS, PUBLIC_ARCHIVE
from marin.gpt2.command import parse_flags, run_command
from marin.gpt2.places import Places


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of eval_bundle.

    Args:
        url: of the archive.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    url: str = PUBLIC_ARCHIVE
    base_dir: str | None = None


def main() -> None:
    flags = parse_flags(Flags, __doc__)

    from marin.evaluation.core.fetching import fetch_bundle  # imports JAX, which `--help` does not need

    places = Places.of(flags.base_dir)
    bundle = fetch_bundle(places.eval_bundle, flags.url)
    print(f"{places.eval_bundle} has {len(bundle.tasks)} of CORE's {len(CORE_TASKS)} tasks")
    for task in bundle.missing:
        print(f"  missing: {task}")


if __name__ == "__main__":
    run_command(main)
