"""The W&B copy: on with a login or offline mode, off otherwise, and never in the way of training."""

import pytest

from marin.tracking import wandb_mirror as module
from marin.tracking.mirrors import names_of, summarize
from marin.tracking.wandb_mirror import has_login, is_wanted, wandb_mirror


@pytest.fixture(autouse=True)
def _no_login(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_ENTITY", "WANDB_PROJECT", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_wandb_without_a_login_is_not_wanted_and_nothing_is_imported():
    assert not is_wanted()
    with wandb_mirror("run", {}, "/nowhere") as mirror:
        assert mirror is None


def test_wandb_with_a_stored_login_or_a_key_is_wanted_unless_disabled(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert has_login()
    assert is_wanted()
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert not is_wanted()
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_MODE", "online")
    assert not is_wanted()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert is_wanted()


def test_wandb_login_in_an_unreadable_netrc_is_no_login(tmp_path):
    (tmp_path / "netrc").write_bytes(b"\xff\xfe machine \x80")
    assert not has_login()


def test_wandb_asked_for_but_not_installed_says_so_and_goes_on(monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with wandb_mirror("run", {}, "/nowhere") as mirror:
        assert mirror is None
    assert "not installed" in capsys.readouterr().out


class _Run:
    url = "https://wandb.ai/team/project/runs/x"
    dir = "/prefix/.attempts/run-0123abcd/1/run-0123abcd/wandb/offline-run-1-x/files"

    def __init__(self):
        self.rows = []
        self.finished = False
        self.broken = False

    def log(self, metrics, step):
        if self.broken:
            raise ConnectionError("gone")
        self.rows.append((step, metrics))

    def finish(self):
        self.finished = True


@pytest.fixture
def stand_in(monkeypatch):
    """A module named wandb whose `init` keeps what it was given."""
    import sys
    import types

    fake = types.ModuleType("wandb")
    fake.__spec__ = types.SimpleNamespace()
    fake.run = _Run()
    fake.Settings = types.SimpleNamespace(model_fields={"finish_timeout": None})

    def init(**options):
        fake.options = options
        if options["project"] == "refuses":
            raise PermissionError("bad key")
        return fake.run

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: fake.__spec__)
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    return fake


def test_wandb_run_takes_entity_project_and_id_and_gets_the_metrics(stand_in, monkeypatch):
    monkeypatch.setenv("WANDB_ENTITY", "team")
    monkeypatch.setenv("WANDB_PROJECT", "project")
    with wandb_mirror("name-" + "0" * 80, {"lr": 1}, "dir", tags=("speedrun",)) as mirror:
        mirror.log(3, {"train/loss": 1.5})
        assert mirror.url == _Run.url
    assert stand_in.run.rows == [(3, {"train/loss": 1.5})]
    assert stand_in.run.finished
    options = stand_in.options
    assert (options["entity"], options["project"], options["tags"], len(options["id"])) == (
        "team",
        "project",
        ["speedrun"],
        64,
    )


def test_wandb_ids_of_long_names_that_differ_in_their_digests_differ(stand_in):
    """As those of a sweep's points do: with one id, the second run would go on in the curves of the first."""
    ids = []
    for digest in ("01234567", "89abcdef"):
        with wandb_mirror(f"learning_rate=0.01-weight_decay=0.1-batch_size=256-num_layers=24-{digest}", {}, "dir"):
            pass
        assert stand_in.options["id"].startswith("learning_rate=0.01-") and len(stand_in.options["id"]) == 64
        ids.append((stand_in.options["id"], stand_in.options["name"]))
    assert len(set(ids)) == 2


def test_wandb_offline_says_how_the_copy_is_uploaded_from_where_the_run_will_lie(stand_in, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    with wandb_mirror("run", {}, "dir"):
        pass
    assert "`wandb sync wandb/offline-run-1-x`" in capsys.readouterr().out
    assert stand_in.options["settings"] == {"quiet": True}  # else W&B names the attempt's directory


def test_wandb_that_fails_on_the_way_is_reported_once_and_training_goes_on(stand_in, capsys):
    with wandb_mirror("run", {}, "dir") as mirror:
        stand_in.run.broken = True
        mirror.log(0, {})
        mirror.log(1, {})
    assert capsys.readouterr().out.count("gone") == 1


def test_wandb_that_cannot_be_reached_at_the_end_holds_the_run_up_for_minutes_at_most(stand_in, monkeypatch, capsys):
    """By itself it tries for hours, while the run's results are not written."""

    def finish():
        raise TimeoutError("Timed out finishing run.")

    monkeypatch.setattr(stand_in.run, "finish", finish)
    with wandb_mirror("run", {}, "dir"):
        pass
    settings = stand_in.options["settings"]
    assert settings["finish_timeout_raises"] and 0 < settings["finish_timeout"] <= 600
    assert "`wandb sync wandb/offline-run-1-x`" in capsys.readouterr().out
    stand_in.Settings.model_fields.clear()  # an older W&B
    with wandb_mirror("run", {}, "dir"):
        pass
    assert stand_in.options["settings"] == {}


def test_wandb_that_does_not_start_is_no_reason_to_stop(stand_in, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_PROJECT", "refuses")
    with wandb_mirror("run", {}, "dir") as mirror:
        assert mirror is None
    assert "bad key" in capsys.readouterr().out


def test_a_directory_named_by_a_person_gets_its_configs_digest_as_id(tmp_path):
    info = {"digests": {"config": "0123456789"}, "run_name": "d26-feb"}
    assert names_of(tmp_path / "d26", info) == ("d26-01234567", "d26-feb")
    assert names_of(tmp_path / "d26", info | {"run_name": ""}) == ("d26-01234567", "d26")
    assert names_of(tmp_path / "hello-0123abcd", info) == ("hello-0123abcd", "hello-0123abcd")


def test_figures_of_the_whole_run_reach_the_summary_of_the_same_run(stand_in, tmp_path):
    stand_in.run.summary = {}
    info = {"digests": {"config": "0123456789"}, "run_name": "d26-feb", "config": {"lr": 1}}
    summarize(tmp_path / "d26", info, {"total_training_time": 9936.0, "core_metric": 0.26, "val_bpb": 0.718})
    assert stand_in.run.summary == {"total_training_time": 9936.0, "core_metric": 0.26, "val_bpb": 0.718}
    assert (stand_in.options["id"], stand_in.options["name"]) == ("d26-01234567", "d26-feb")
    assert stand_in.run.finished
