# shellcheck shell=bash
# Sourced by the other scripts: an environment with this project's pinned dependencies.
# Afterwards $python is its interpreter and the working directory is the project's.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

say() { printf '==> %s\n' "$*" >&2; }

# says TEXT FILE: the file holds that text.
says() { [[ -f $2 && $(<"$2") == "$1" ]]; }

# ensure_environment [EXTRA]: use the active virtual environment, or create .venv, and install what is missing.
ensure_environment() {
    local extra=${1:-} target=. stamp wanted
    local environment=${VIRTUAL_ENV:-$PWD/.venv}
    if [[ ! -x $environment/bin/python ]]; then
        local base=${PYTHON:-python3}
        if ! "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            say "$base is $("$base" --version 2>&1); Python 3.11 or newer is needed. Name one with: PYTHON=python3.11 bash $0"
            exit 2
        fi
        say "creating $environment"
        "$base" -m venv "$environment"
    fi
    python=$environment/bin/python
    [[ -n $extra ]] && target=".[$extra]"
    # The stamp spares a second run pip's look at every package.
    stamp=$environment/.native-vs-lightning${extra:+-$extra}
    wanted="$PWD $(cat pyproject.toml constraints.txt | sha256sum)"
    # What was installed with the test extra serves those who need none, too.
    if ! says "$wanted" "$stamp" && ! { [[ -z $extra ]] && says "$wanted" "$stamp-test"; }; then
        say "installing $target into $environment with the versions of constraints.txt (the first time takes minutes)"
        "$python" -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable "$target"
        printf '%s' "$wanted" >"$stamp"
    fi
}
