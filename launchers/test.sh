#!/usr/bin/env bash
# Style and tests, in the environment of demo.sh with the test extra.
#
#     bash launchers/test.sh [options of pytest, for example: -m "not slow"]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

ensure_environment test
say "ruff"
"$python" -m ruff check .
"$python" -m ruff format --check .
say "pytest"
exec "$python" -m pytest "$@"
