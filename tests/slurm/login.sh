#!/usr/bin/env bash
# Run a command (srun, sbatch, squeue, a launcher) on the login node of the cluster that start.sh booted.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lab.sh"

if [[ $(cat "$VAR/mode" 2>/dev/null) != netns ]]; then
    exec "$@"
fi
# shellcheck disable=SC2016  # expanded by the inner shell
exec nsenter --net="/run/netns/$NETNS-login" unshare --uts --mount --propagation private bash -c \
    'hostname login; mount --bind "$1" /etc/hosts; shift; exec "$@"' _ "$VAR/run/hosts.login" "$@"
