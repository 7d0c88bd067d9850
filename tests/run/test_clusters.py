"""The shipped cluster configurations: the cloud's by Ray's own schema, Slurm's by running it with stand-ins for Slurm's commands."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

CLUSTERS = Path(__file__).parents[2] / "marin" / "run" / "clusters"

# As Slurm does since 20.11, a step keeps its node to itself unless it and the others there may overlap.
SRUN = """#!/usr/bin/env bash
echo "srun $*" >> "$CALLS"
share=--exclusive
while [ "${1#--}" != "$1" ]; do
  case "$1" in --overlap) share=--shared; shift;; --nodelist) node="$2"; shift 2;; *) shift 2;; esac
done
exec flock $share "$CALLS.$node" "$@"
"""
RAY = """#!/usr/bin/env bash
echo "ray $*" >> "$CALLS"
case "$1" in start) while [ ! -e "$CALLS.stop" ]; do sleep 0.05; done;; stop) touch "$CALLS.stop";; esac
"""
SCONTROL = """#!/usr/bin/env bash
printf 'node1\\nnode2\\n'
"""


def test_the_cloud_cluster_is_what_ray_takes():
    ray = pytest.importorskip("ray", reason="Ray is not installed: the extra `ray`")
    jsonschema = pytest.importorskip("jsonschema")
    config = yaml.safe_load((CLUSTERS / "gcp.yaml").read_text())
    schema = json.loads(Path(ray.__file__).with_name("autoscaler").joinpath("ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    types = config["available_node_types"]
    assert config["head_node_type"] in types
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config | {"no_such_field": 1}, schema)
    # What steps ask for is what the nodes are said to have.
    from marin.execution.ray_cluster import check_fits, request_for
    from marin.resources import CpuOnlyConfig, GpuConfig, TpuPodConfig

    nodes = [{"NodeID": name, "Resources": kind["resources"]} for name, kind in types.items()]
    for resources in (None, CpuOnlyConfig(8), GpuConfig(8, "H100"), TpuPodConfig("v6e-8")):
        check_fits("a", request_for(resources, nodes), nodes, grows=False)
        # At first only the head is there, and the nodes that come must be those that were asked for.
        check_fits("a", request_for(resources, nodes[:1], grows=True), nodes, grows=False)


@pytest.fixture
def slurm(tmp_path, plain_environment):
    """An environment in which Slurm's and Ray's commands are stand-ins that write down what they were asked."""
    if shutil.which("bash") is None or shutil.which("flock") is None:
        pytest.skip("no bash, or no flock")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("srun", SRUN), ("ray", RAY), ("scontrol", SCONTROL)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return plain_environment | {
        "PATH": f"{commands}{os.pathsep}{plain_environment['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_GPUS_ON_NODE": "2",
    }


def test_the_slurm_job_starts_a_node_each_runs_the_command_and_ends_the_cluster(slurm, tmp_path):
    code = "import os; print(os.environ['RAY_ADDRESS'], os.environ['MARIN_RUNNER']); raise SystemExit(3)"
    command = ["bash", str(CLUSTERS / "slurm.sh"), sys.executable, "-c", code]
    done = subprocess.run(command, env=slurm, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr  # the command's
    address, runner = done.stdout.split()[-2:]
    assert address.endswith(":6379") and runner == "ray"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert any("--nodelist node1 ray start --head --port 6379 --num-cpus 4 --num-gpus 2" in call for call in calls)
    assert any(f"--nodelist node2 ray start --address {address}" in call for call in calls)
    step = "srun --overlap --cpus-per-task 4 --nodes 1 --ntasks 1 --nodelist"
    stopped = {call for call in calls if "ray stop" in call and call.startswith("srun")}
    assert stopped == {f"{step} {node} ray stop --grace-period 60" for node in ("node1", "node2")}


SAVES = """
import os, signal, sys, time
def save(*_):
    time.sleep(1.0)
    sys.exit(9 if os.path.exists(os.environ["CALLS"] + ".stop") else 5)
signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
while True:
    time.sleep(1.0)
"""


def test_ray_stays_until_the_driver_has_saved_when_the_time_of_the_slurm_job_is_up(slurm, tmp_path):
    command = ["bash", str(CLUSTERS / "slurm.sh"), sys.executable, "-c", SAVES]
    process = subprocess.Popen(command, env=slurm, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)  # as `--signal=B:TERM@120` does, to the script alone
    assert process.wait(timeout=60) == 5  # the driver's; 9 if Ray had ended under it
    assert (tmp_path / "calls.stop").exists()
    process.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "missing", "message"),
    [((), None, "name the command"), (("true",), "SLURM_JOB_NODELIST", "start this with sbatch")],
)
def test_the_slurm_job_says_what_is_missing(slurm, arguments, missing, message):
    environment = {name: value for name, value in slurm.items() if name != missing}
    done = subprocess.run(
        ["bash", str(CLUSTERS / "slurm.sh"), *arguments], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert message in done.stderr
