# shellcheck shell=bash
# Sourced by test.sh: Slurm's Debian packages, for the throw-away cluster of tests/slurm/.

# install_slurm: install what is missing. Says why it cannot, on stdout, and fails.
install_slurm() {
    local program missing=()
    for program in slurmctld slurmd srun munged ip; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || missing+=("$program")
    done
    ((${#missing[@]})) || return 0
    if [[ $(id -u) != 0 ]]; then
        echo "${missing[*]} missing, and only root may install packages"
    elif ! command -v apt-get >/dev/null; then
        echo "${missing[*]} missing, and there is no apt-get to install packages with"
    elif ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        slurmd slurmctld slurm-client munge iproute2; } >"$1" 2>&1; then
        echo "${missing[*]} missing, and apt-get could not install them: $(tail -n 1 "$1")"
    else
        return 0
    fi
    return 1
}
