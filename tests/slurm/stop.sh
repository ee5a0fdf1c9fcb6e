#!/usr/bin/env bash
# Stop what start.sh started, jobs included. Safe to run twice.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lab.sh"

# end PID-FILE PROGRAM: politely, then by force.
end() {
    local pid
    if alive "$1" "$2"; then
        pid=$(cat "$1")
        kill "$pid"
        for _ in $(seq 100); do
            alive "$1" "$2" || break
            sleep 0.05
        done
        if alive "$1" "$2"; then kill -9 "$pid"; fi
    fi
    rm -f "$1"
}

# Jobs first: a slurmstepd and its tasks outlive slurmd by design.
if alive "$VAR/run/slurmctld.pid" slurmctld; then
    mapfile -t jobs < <(client timeout 5 squeue --noheader --format=%A 2>/dev/null)
    if ((${#jobs[@]})); then
        client timeout 5 scancel "${jobs[@]}" 2>/dev/null
        for _ in $(seq 100); do
            [[ -z $(client timeout 5 squeue --noheader 2>/dev/null) ]] && break
            sleep 0.1
        done
    fi
fi
end "$VAR/run/slurmctld.pid" slurmctld
for file in "$VAR"/run/slurmd.*.pid; do
    [[ -e $file ]] && end "$file" slurmd
done
end "$VAR/run/munged.pid" munged
# A slurmstepd whose slurmd died under a running job ignores SIGTERM; its tasks go with it.
for process in /proc/[0-9]*; do
    [[ $(cat "$process/comm" 2>/dev/null) == slurmstepd ]] || continue
    grep -qzxF "SLURM_CONF=$LAB/slurm.conf" "$process/environ" 2>/dev/null || continue
    mapfile -t children < <(cat "$process"/task/*/children 2>/dev/null | tr ' ' '\n' | sed '/^$/d')
    kill -9 "${children[@]}" "${process#/proc/}" 2>/dev/null
done
for namespace in /run/netns/"$NETNS"-*; do
    [[ -e $namespace ]] && ip netns del "${namespace##*/}"
done
rm -f "$VAR"/run/munge.socket* "$VAR/mode"
echo "Slurm is stopped"
