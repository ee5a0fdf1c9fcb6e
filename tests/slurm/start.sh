#!/usr/bin/env bash
# Boot a throw-away Slurm of several simulated nodes on this one machine, to test launchers on.
#
#     SLURM_LAB_DIR=/tmp/slurm-lab bash tests/slurm/start.sh
#     SLURM_LAB_DIR=/tmp/slurm-lab bash tests/slurm/login.sh srun --nodes=2 hostname
#     SLURM_LAB_DIR=/tmp/slurm-lab bash tests/slurm/stop.sh
#
#     NODES=2 CPUS=4 GPUS=2   size; the GPUs are pretended: CUDA_VISIBLE_DEVICES is set, no device is behind it
#     MODE=netns  each node has its host name, /etc/hosts and network: separate loopbacks, like real nodes
#     MODE=uts    each node has its host name and /etc/hosts; all share the machine's loopback
# MODE is chosen by what the machine allows, unless given. launchers/test.sh --slurm installs the packages.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/lab.sh"
NODES=${NODES:-2} CPUS=${CPUS:-4} GPUS=${GPUS:-2}

choose_mode() {
    if unshare --uts --mount --net true 2>/dev/null && command -v ip >/dev/null &&
        ip netns add "$NETNS-probe" 2>/dev/null; then
        ip netns del "$NETNS-probe"
        echo netns
    elif unshare --uts --mount true 2>/dev/null; then
        echo uts
    else
        echo "this machine allows neither network nor host name namespaces (root with CAP_SYS_ADMIN is needed)" >&2
        return 1
    fi
}
MODE=${MODE:-$(choose_mode)}

range() { if ((NODES > 1)); then echo "$1[$2-$(($2 + NODES - 1))]"; else echo "$1$2"; fi; }

write_configuration() { # job ids begin elsewhere each time: what an earlier cluster's jobs left is never in the way
    local host="localhost(127.0.0.1)" address=127.0.0.1 port communication=""
    port=$(range "" "$NODE_PORT")
    if [[ $MODE == netns ]]; then
        host="login(10.77.0.254)" address=$(range 10.77.0. 1) port=$NODE_PORT
    elif [[ $(getent ahostsv4 "$(hostname)" | head -n 1) == "127.0.0.1 "* ]]; then
        # These make slurmd and srun listen on what the host name resolves to, while peers call 127.0.0.1.
        communication="CommunicationParameters=NoCtldInAddrAny,NoInAddrAny"
    fi
    cat >"$LAB/slurm.conf" <<CONF
ClusterName=lab
SlurmctldHost=$host
SlurmctldPort=$CONTROLLER_PORT
$communication
AuthType=auth/munge
# Slurm starts a job again only once the credentials of its first start have expired: two minutes, by default.
AuthInfo=socket=$VAR/run/munge.socket,cred_expire=5
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
StateSaveLocation=$VAR/state
SlurmdSpoolDir=$VAR/spool/%n
SlurmctldPidFile=$VAR/run/slurmctld.pid
SlurmdPidFile=$VAR/run/slurmd.%n.pid
SlurmctldLogFile=$VAR/log/slurmctld.log
SlurmdLogFile=$VAR/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
FirstJobId=$((1000 + RANDOM * 100 % 1000000))
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
GresTypes=gpu
NodeName=$(range node 1) NodeHostname=localhost NodeAddr=$address Port=$port CPUs=$CPUS RealMemory=4000 Gres=gpu:$GPUS
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    # Slurm wants device files behind its GPUs; a count alone is refused.
    local number
    for number in $(seq 0 $((GPUS - 1))); do ln -sfn /dev/null "$VAR/dev/nvidia$number"; done
    echo "Name=gpu File=$VAR/dev/nvidia[0-$((GPUS - 1))]" >"$LAB/gres.conf"
}

# write_hosts NAME: the /etc/hosts that NAME sees, its own name first so that its full name is its name.
write_hosts() {
    local name=$1 number
    {
        [[ $MODE == netns ]] || echo "127.0.0.1 $name"
        cat /etc/hosts
        for number in $(seq "$NODES"); do
            if [[ $MODE == netns ]]; then echo "10.77.0.$number node$number"; else echo "127.0.0.1 node$number"; fi
        done
        [[ $MODE != netns ]] || echo "10.77.0.254 login"
    } >"$VAR/run/hosts.$name"
}

connect_nodes() { # a bridge in the login node's namespace; the machine's own network is left alone
    local number
    ip netns add "$NETNS-login"
    ip -n "$NETNS-login" link set lo up
    ip -n "$NETNS-login" link add br0 type bridge
    ip -n "$NETNS-login" addr add 10.77.0.254/24 dev br0
    ip -n "$NETNS-login" link set br0 up
    for number in $(seq "$NODES"); do
        ip netns add "$NETNS-node$number"
        ip -n "$NETNS-login" link add "v$number" type veth peer name eth0 netns "$NETNS-node$number"
        ip -n "$NETNS-login" link set "v$number" master br0 up
        ip -n "$NETNS-node$number" link set lo up
        ip -n "$NETNS-node$number" addr add "10.77.0.$number/24" dev eth0
        ip -n "$NETNS-node$number" link set eth0 up
    done
}

# as_host NAME COMMAND...: run a command with that host name, that host's /etc/hosts and, in netns mode, network.
as_host() {
    local name=$1
    shift
    local -a enter=()
    [[ $MODE == netns ]] && enter=(nsenter --net="/run/netns/$NETNS-$name")
    # shellcheck disable=SC2016  # expanded by the inner shell
    "${enter[@]}" unshare --uts --mount --propagation private bash -c \
        'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"' _ "$name" "$VAR/run/hosts.$name" "$@"
}

bash "$HERE/stop.sh" >/dev/null # half up, or another size: start clean
mkdir -p "$VAR"/{run,state,spool,log,dev}
rm -rf "${VAR:?}"/state/* "${VAR:?}"/spool/*
echo "$MODE" >"$VAR/mode"
write_configuration
[[ -s $VAR/munge.key ]] || (umask 077 && dd if=/dev/urandom of="$VAR/munge.key" bs=1024 count=1 status=none)
munged --key-file="$VAR/munge.key" --socket="$VAR/run/munge.socket" --pid-file="$VAR/run/munged.pid" \
    --log-file="$VAR/log/munged.log" --seed-file="$VAR/run/munged.seed"
for name in login $(seq -f node%.0f "$NODES"); do write_hosts "$name"; done
[[ $MODE != netns ]] || connect_nodes
if [[ $MODE == netns ]]; then as_host login slurmctld -c; else slurmctld -c; fi
for number in $(seq "$NODES"); do as_host "node$number" slurmd -N "node$number"; done

for _ in $(seq 150); do
    if [[ $(client sinfo --noheader --Node --format=%t 2>/dev/null | grep -c '^idle$') == "$NODES" ]]; then
        version=$(slurmctld -V | cut -d ' ' -f 2)
        echo "Slurm $version is up: $NODES nodes of $CPUS cores and $GPUS pretended GPUs, MODE=$MODE"
        exit 0
    fi
    sleep 0.1
done
echo "Slurm did not come up in 15 s; the ends of its logs:" >&2
client sinfo -N -l >&2 || true
tail -n 8 "$VAR"/log/slurm*.log >&2
bash "$HERE/stop.sh" >&2
exit 1
