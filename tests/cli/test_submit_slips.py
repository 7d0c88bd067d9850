"""What `marin submit` says of slips that a person makes before anything is pushed."""

import json

import pytest
from forgeries.honest import Plan
from submission_place import Place

from marin.speedrun.results import RunInfo, dump_results


@pytest.mark.parametrize("description", ["TODO: what is new", "__SUBMISSION_DESCRIPTION__ (130m)"])
def test_description_that_was_not_written_is_put_right_as_the_message_says(place: Place, capsys, description: str):
    place.add_runs(Plan(description=description))
    assert place.submit() == 1
    assert "description is still the placeholder" in (said := capsys.readouterr().out)
    assert "give marin submit --description" in said
    assert place.submit("--description", "Wider and shallower.") == 0


def test_affiliation_that_was_not_filled_in_is_put_right_under_the_same_name(place: Place, capsys):
    (run,) = place.add_runs(Plan())
    path = run / "speedrun_results.json"
    content = json.loads(path.read_text())
    content["runs"][0]["run_info"]["author"]["affiliation"] = "Your Affiliation"
    path.write_bytes(dump_results([RunInfo.model_validate(content["runs"][0]["run_info"])]))
    assert place.submit() == 1
    assert "give marin submit --author and --affiliation" in capsys.readouterr().out
    assert place.submit("--author", "Ada Example", "--affiliation", "Independent") == 0
