"""Which of several runs each budget of FLOPs was best spent on."""

from marin.gpt2.series import best_by_budget


def _row(tag, target_flops, total_flops, val_bpb):
    return {"tag": tag, "target_flops": target_flops, "total_flops": total_flops, "val_bpb": val_bpb}


def test_runs_of_one_budget_are_compared_however_far_whole_steps_are_from_it():
    rows = [
        _row("4e9_d1", 4e9, 4_027_637_760, 4.28),
        _row("4e9_d2", 4e9, 3_473_178_624, 4.29),
        _row("8e9_d1", 8e9, 8_055_275_520, 4.25),
        _row("8e9_d2", 8e9, 10_419_535_872, 4.21),
    ]
    assert [row["tag"] for row in best_by_budget(rows)] == ["4e9_d1", "8e9_d2"]


def test_runs_without_a_budget_are_compared_by_what_they_took():
    rows = [_row("a", None, 100, 1.2), _row("b", None, 109, 1.1), _row("c", None, 150, None), _row("d", None, 160, 1.3)]
    assert [row["tag"] for row in best_by_budget(rows)] == ["b", "d"]
