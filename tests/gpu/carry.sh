#!/usr/bin/env bash
# Puts the wheels that a machine with a GPU and no network lacks into tests/gpu/wheels: bash tests/gpu/carry.sh
# There: Linux on x86-64, Python 3.12, torch, Lightning, torchmetrics, NumPy, Numba, PyArrow, safetensors, pandas, psutil,
# PyYAML and nvidia-ml-py. The versions and hashes are those of requirements-cuda.lock. Take the tree and that folder there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
names="annotated-types blake3 docstring-parser jsonargparse platformdirs pydantic pydantic-core typeshed-client
  typing-extensions typing-inspection"
most_mib=50

lock=$(mktemp)
trap 'rm -f "$lock"' EXIT
for name in $names; do
  sed -n "/^$name==/,/[0-9a-f]\$/p" "$root/requirements-cuda.lock" >>"$lock"
done
rm -rf "$here/wheels"
platforms=(--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64)
"$python" -m pip download --quiet --no-deps --require-hashes --only-binary=:all: --python-version 3.12 \
  --implementation cp "${platforms[@]}" --dest "$here/wheels" --requirement "$lock"
wheels=$(du --summarize --bytes "$here/wheels" | cut -f1)
tree=$(cd "$root" && git ls-files -z | du --bytes --total --files0-from=- | tail -1 | cut -f1)
ls "$here/wheels"
echo "$((wheels / 2**20)) MiB of wheels, $((tree / 2**20)) MiB of tree"
if (((wheels + tree) / 2**20 >= most_mib)); then
  echo "More than $most_mib MiB: leave something out." >&2
  exit 1
fi
