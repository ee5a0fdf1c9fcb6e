#!/usr/bin/env bash
# Style and tests, in the environment of demo.sh with the test extra.
#
#     bash launchers/test.sh [options of pytest, for example: -m "not slow"]
#     bash launchers/test.sh --slurm [options of pytest]
#
# --slurm also runs the tests that need a Slurm, on a throw-away cluster of two simulated nodes that is booted for them
# and stopped afterwards. As root it installs Debian's packages for that; where it cannot, it says so and leaves them out.
# --whole-matrix runs what others nearly cover, too: every combination of half, strategy, layout and launcher under Slurm,
# more faults, the scripts for several GPUs on CPU ranks, a whole session of the workbook with runs of its own.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source launchers/slurm_packages.sh

options=()
with_slurm=false
for option in "$@"; do
    if [[ $option == --slurm ]]; then with_slurm=true; else options+=("$option"); fi
done

# start_cluster: boot the cluster in a folder of its own. Says why it cannot, on stdout, and fails.
start_cluster() {
    install_slurm "$SLURM_LAB_DIR/apt.log" || return 1
    bash tests/slurm/start.sh >"$SLURM_LAB_DIR/start.log" 2>&1 || { tail -n 1 "$SLURM_LAB_DIR/start.log"; return 1; }
}

stop_cluster() {
    bash tests/slurm/stop.sh >&2
    rm -rf "$SLURM_LAB_DIR"
}

ensure_environment test
say "ruff"
"$python" -m ruff check .
"$python" -m ruff format --check .
if $with_slurm; then
    say "Slurm"
    SLURM_LAB_DIR=$(mktemp -d "${TMPDIR:-/tmp}/slurm-lab.XXXXXX")
    chmod a+rx "$SLURM_LAB_DIR" # munged wants its socket within everybody's reach
    export SLURM_LAB_DIR
    trap stop_cluster EXIT
    trap 'exit 130' INT TERM
    if why=$(start_cluster); then
        say "$(tail -n 1 "$SLURM_LAB_DIR/start.log")"
        options+=(--slurm)
    else
        say "no throw-away cluster, so the tests that need one are skipped: $why"
        export NO_SLURM_BECAUSE=$why
    fi
fi
say "pytest"
"$python" -m pytest "${options[@]}"
