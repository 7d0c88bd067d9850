#!/usr/bin/env bash
# A Ray cluster inside one Slurm job, and a command on it.
#
#   sbatch --nodes 2 --gpus-per-node 8 --time 12:00:00 marin/run/clusters/slurm.sh \
#     python -m experiments.speedrun.hello_world_gpu_speedrun.hello_world_gpu_speedrun --prefix /shared/marin
#
# The first node is the head and the driver; all nodes run steps. The prefix must be on a file system that all nodes share.
# When the command ends, or the job's time is up, the cluster ends; submitted again it goes on from the last checkpoints.
# Without Ray, `srun --kill-on-bad-exit=1 python -m marin.run.together ...` trains on all nodes just as well (docs/tutorials/scale.md).
#
#SBATCH --job-name=marin
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
set -euo pipefail

if [ $# -eq 0 ]; then
  echo "error: name the command: sbatch --nodes 2 $0 python -m experiments.NAME.main --prefix /shared/marin" >&2
  exit 2
fi
: "${SLURM_JOB_NODELIST:?start this with sbatch, inside of a Slurm job}"

PORT="${MARIN_RAY_PORT:-6379}"
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${nodes[0]}"
cpus="${SLURM_CPUS_PER_TASK:-1}"
gpus="${SLURM_GPUS_ON_NODE:-0}"

on_node() { # NODE COMMAND...
  # Ray holds its node for as long as the job lasts, and other steps must start beside it (Slurm 20.11 and later wait otherwise).
  srun --overlap --cpus-per-task "$cpus" --nodes 1 --ntasks 1 --nodelist "$1" "${@:2}"
}

stop() {
  for node in "${nodes[@]}"; do on_node "$node" ray stop --grace-period 60 >/dev/null 2>&1 || true; done
}
trap stop EXIT
trap 'exit 143' TERM

address="$(on_node "$head" hostname --ip-address | awk '{print $1}'):$PORT"
on_node "$head" ray start --head --port "$PORT" --num-cpus "$cpus" --num-gpus "$gpus" --disable-usage-stats --block &
for _ in $(seq 60); do
  on_node "$head" ray status --address "$address" >/dev/null 2>&1 && break
  sleep 2
done
for node in "${nodes[@]:1}"; do
  on_node "$node" ray start --address "$address" --num-cpus "$cpus" --num-gpus "$gpus" --disable-usage-stats --block &
done

# Steps wait for the resources that they ask for, so the command may start before the last node is there.
export RAY_ADDRESS="$address" MARIN_RUNNER=ray RAY_CLUSTER_GROWS=1
"$@" &
driver=$!
# When the time is up the driver has its steps save, and Ray must be there until it has ended: a signal only interrupts the wait.
trap 'signalled=1; kill -TERM "$driver" 2>/dev/null || true' TERM
signalled=1
while [ -n "$signalled" ]; do
  signalled=""
  status=0
  wait "$driver" || status=$?
done
exit "$status"
