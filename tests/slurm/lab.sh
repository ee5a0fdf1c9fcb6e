# shellcheck shell=bash
# Sourced by start.sh, stop.sh and login.sh: where the throw-away cluster lives, and what its parts are called.

LAB=${SLURM_LAB_DIR:?name a folder for the cluster: SLURM_LAB_DIR=/tmp/slurm-lab}
# shellcheck disable=SC2034  # used by the scripts that source this
VAR=$LAB/var
export SLURM_CONF=$LAB/slurm.conf PATH=$PATH:/usr/sbin:/sbin
# Two clusters on one machine must not share namespaces or ports.
LAB_ID=$(cksum <<<"$LAB" | cut -d ' ' -f 1)
NETNS=slurmlab-$LAB_ID
CONTROLLER_PORT=$((16000 + LAB_ID % 900 * 16))
# shellcheck disable=SC2034
NODE_PORT=$((CONTROLLER_PORT + 1))

# alive PID-FILE PROGRAM: that very program runs. A zombie does not count: PID 1 of a container may reap late.
alive() {
    local pid
    pid=$(cat "$1" 2>/dev/null) && [[ -n $pid && $(cat "/proc/$pid/comm" 2>/dev/null) == "$2" ]] &&
        ! grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null
}

# client COMMAND...: run a client of the cluster where it can reach the controller.
client() {
    if [[ -e /run/netns/$NETNS-login ]]; then
        nsenter --net="/run/netns/$NETNS-login" "$@"
    else
        "$@"
    fi
}
