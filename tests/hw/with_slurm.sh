#!/usr/bin/env bash
# Runs a command in a Slurm of its own, with this host as its only node, and ends with the command's exit code:
#   tests/hw/with_slurm.sh CONTROLLER_PORT NODE_PORT srun -n 2 hw_launch_ranks
# Controller, node daemon and munge run as the current user, with all their files in a temporary folder. They
# end with the command, or 60 s after their start at the latest. A Slurm of this machine is not touched.
set -u
if [ $# -lt 3 ]; then
  echo "with_slurm.sh: $# arguments; allowed: CONTROLLER_PORT NODE_PORT COMMAND..." >&2
  exit 2
fi
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" # of daemons
controller_port=$1 node_port=$2
shift 2
user=$(id -un)
host=$(hostname -s)
folder=$(mktemp -d "${TMPDIR:-/tmp}/plumb-slurm-XXXXXX") || exit 1
export SLURM_CONF=$folder/slurm.conf

# shellcheck disable=SC2317 # the trap below calls it
stop() {
  scancel --quiet --user="$user" 2>/dev/null # so that no step outlives the daemons
  for _ in {1..50}; do
    [ -z "$(squeue --noheader 2>/dev/null)" ] && break
    sleep 0.1
  done
  jobs -p | xargs -r kill 2>/dev/null
  wait
  rm -rf "$folder"
}
trap stop EXIT
trap : INT TERM HUP PIPE # the command has got it too: go on when it has ended

fail() {
  echo "with_slurm.sh: $1" >&2
  tail -n 50 "$folder"/*.log >&2
  exit 1
}

# A daemon in the background; what it prints goes into its log.
start() {
  timeout -k 5 60 "$@" >"$folder/$1.log" 2>&1 </dev/null &
}

# Waits up to 5 s until the command succeeds.
await() {
  for _ in {1..250}; do
    "$@" >/dev/null 2>&1 && return
    sleep 0.02
  done
  fail "Slurm does not start: this fails: $*"
}

# shellcheck disable=SC2317 # await calls both
controller_is_up() { timeout 5 scontrol ping | grep -q 'is UP'; }
# shellcheck disable=SC2317
node_is_idle() { timeout 5 sinfo --noheader --format=%T | grep -qx idle; }

# munge with a key of its own lets no other user start jobs here. config_overrides: two ranks fit, whatever the
# hardware has.
cat >"$SLURM_CONF" <<END
ClusterName=plumb
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$node_port
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmUser=$user
SlurmdUser=$user
SlurmdParameters=config_overrides
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
END
mkdir "$folder/state" "$folder/spool"
(umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
# --force: the folder is of this user only, where munge wants all users to reach its socket.
start munged --foreground --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
  --pid-file="$folder/munged.pid" --seed-file="$folder/munged.seed"
await test -S "$folder/munge.socket"
start slurmctld -D
await controller_is_up
start slurmd -D
await node_is_idle

"$@"
code=$?
[ "$code" = 0 ] || tail -n 50 "$folder"/slurm*.log >&2
exit "$code"
