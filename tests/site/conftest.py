"""A small board in every state, made by the test: checked, claimed, contradictory, unreadable, two evaluation sets."""

import json
import pathlib
from typing import Any

import pytest

from marin.site.leaderboard_page import build_site
from marin.speedrun.results import Author, Compressors, Evaluation, RunInfo, write_results

HOSTILE = "</script><script>document.title='hit'</script><img src=x onerror=\"document.title='hit'\">'\"{{7*7}}${7*7}"


def _run(number: int, **changes: Any) -> RunInfo:
    seconds, peak = 100.0 * (number + 1), 312e12
    values: dict[str, Any] = {
        "author": Author(name=f"Author {number}", affiliation="Independent", url="example.org/me"),
        "description": f"Run number {number}.",
        "resources": {"accelerator_type": "A100", "gpu_count": 1},
        "model_size": 10**6 * (number + 1),
        "model_flops": 0.3 * seconds * peak,
        "training_time": seconds,
        "training_hardware_flops": seconds * peak,
        "c4_en_bpb": 1.5 - 0.05 * number,
        "run_completion_timestamp": f"2026-01-{number + 1:02d} 00:00:00 UTC",
        "wandb_run_link": f"https://example.org/runs/{number}",
    }
    return RunInfo(**values | changes)


@pytest.fixture(scope="session")
def results_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("results")
    runs = {f"family/size_{number}": _run(number) for number in range(8)}
    runs["family/worse"] = _run(3, c4_en_bpb=1.9, description="off the frontier")
    runs["too_good"] = _run(1, training_time=1e-9, c4_en_bpb=0.9)
    evaluation = Evaluation(
        name="python_docs", digest="ab" * 32, bits_per_byte=1.55, bytes=1000, tokens=300, documents=3
    )
    compressors = Compressors(gzip_9=2.5, xz_9=2.2, zstd_19=2.25)
    runs["hello"] = _run(
        9, c4_en_bpb=None, evaluation=evaluation, compressors=compressors, sample="Return the value.", seed=42
    )
    for name, info in runs.items():
        write_results(root / name / "speedrun_results.json", info)
    (root / "broken").mkdir()
    (root / "broken" / "speedrun_results.json").write_text('{"runs": [')
    return root


@pytest.fixture(scope="session")
def hostile_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Markup, scripts, formulas and odd links in every text of a results file, and in a list of rows."""
    root = tmp_path_factory.mktemp("hostile")
    evaluation = Evaluation(name=HOSTILE, digest=HOSTILE, bits_per_byte=1.2)
    info = _run(
        0,
        author=Author(name=HOSTILE, affiliation=HOSTILE, url="javascript:document.title='hit'"),
        description=HOSTILE,
        evaluation=evaluation,
        resources={"accelerator_type": HOSTILE, "gpu_count": 2},
        sample=HOSTILE,
        run_completion_timestamp=HOSTILE,
        wandb_run_link="https://example.org/\"><script>document.title='hit'</script>",
        git_commit=HOSTILE,
    )
    write_results(root / "tree" / "<img src=x onerror=alert(1)>" / "speedrun_results.json", info)
    broken = root / "tree" / "<b>broken" / "speedrun_results.json"
    broken.parent.mkdir()
    broken.write_text(json.dumps({HOSTILE: 1, "author": {"name": HOSTILE}}))
    row = {"run_name": HOSTILE, "author": {"name": "=HYPERLINK(1)", "affiliation": "@x"}, "eval_paloma_c4_en_bpb": 1.0,
           "training_hardware_flops": 1e15, "wandb_link": "javascript:alert(1)"}  # fmt: skip
    (root / "runs.json").write_text(json.dumps([row]))
    return root


@pytest.fixture(scope="session")
def site(results_dir: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("site")
    build_site([results_dir], [], output)
    return output


@pytest.fixture(scope="session")
def hostile_site(hostile_dir: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("hostile_site")
    build_site([hostile_dir / "tree"], [hostile_dir / "runs.json"], output)
    return output
