#!/usr/bin/env bash
# Measures everything that only a GPU can show, in nine minutes: bash tests/gpu/run.sh --out DIR [--dry-run]
# Writes DIR/<date>-gpu.txt after each row. Needs no network; wheels that `carry.sh` has put beside it are unpacked.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${KIT_PYTHON:-python3}
path=$root
site=
if ! "$python" -c "import blake3, jsonargparse, platformdirs, pydantic" 2>/dev/null; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  for wheel in "$here"/wheels/*.whl; do
    "$python" -m zipfile -e "$wheel" "$site"
  done
  path=$path:$site
fi
# Where no name server answers, each look-up of an address would take ten seconds.
export RES_OPTIONS="timeout:1 attempts:1"
export PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
"$python" "$here/kit.py" --spent-s "$SECONDS" "$@"
