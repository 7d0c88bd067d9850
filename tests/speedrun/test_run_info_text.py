"""What a dry run says where the config's FLOPs and the traced program's do not agree."""

from marin.speedrun.run_info_text import flop_notes, run_info_text


def test_notes_are_absent_where_formula_and_count_agree_but_for_the_softmax() -> None:
    assert flop_notes(227_868_672, 227_278_848, ()) == []


def test_notes_flag_a_formula_that_leaves_something_out_and_stand_before_the_end() -> None:
    (note,) = flop_notes(1e8, 2e8, ())
    assert "1e+08" in note and "2e+08" in note and "2.00 times" in note
    text = run_info_text({}, model_flops=1.0, model_size=1, num_devices=1, num_chips=1, device_flops=1.0, notes=[note])
    assert text.splitlines()[-2:] == [note, "----- END OF PRINT RUN INFO -----"]


def test_notes_name_what_the_count_lacks() -> None:
    (note,) = flop_notes(1e8, 1e8, ("ffi_call", "while"))
    assert "ffi_call, while" in note


def test_figures_that_nobody_knows_are_called_unknown() -> None:
    text = run_info_text({}, model_flops=None, model_size=None, num_devices=None, num_chips=8, device_flops=None)
    for line in ("Model FLOPs: unknown FLOP", "Model size: unknown", "Number of devices: unknown", "unknown FLOP/s"):
        assert line in text
    assert "0.00e+00" not in text
