#!/usr/bin/env bash
# The tests of training with other versions of torch: bash tests/torch/versions.sh [VERSION ...]
# Default: the oldest and the newest that pyproject.toml allows. Each version gets an environment of its own, with the
# locked versions of all else, and a line of the result. The environment is removed again: a CUDA build takes 7 GB.
# PYTHON names the interpreter (default: python3). CI does not run this.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
python=${PYTHON:-python3}
versions=("$@")
((${#versions[@]})) || versions=(2.11.0 2.15.0)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
code=0
for version in "${versions[@]}"; do
  environment=$work/$version
  # torch 2.11 needs an older setuptools.
  grep -Ev '^(torch|setuptools)==' requirements.lock >"$work/rest.lock"
  printf 'torch==%s\nsetuptools>=80\n' "$version" >>"$work/rest.lock"
  "$python" -m venv "$environment"
  { command -v uv >/dev/null && uv pip install --quiet --python "$environment/bin/python" -r "$work/rest.lock"; } \
    || "$environment/bin/python" -m pip install --quiet -r "$work/rest.lock" || { code=1; continue; }
  "$environment/bin/python" -m pip install --quiet --no-deps --no-build-isolation -e . || { code=1; continue; }
  "$environment/bin/python" -m pytest --quiet -p no:cacheprovider --numprocesses 2 --dist loadfile -rf \
    tests/unit/training tests/distributed tests/gpu >"$work/$version.log" 2>&1 || { code=1; cat "$work/$version.log"; }
  KIT_PYTHON=$environment/bin/python bash tests/gpu/run.sh --dry-run --out "$work" >>"$work/kit.log" 2>&1 \
    || { code=1; tail -n 40 "$work/kit.log"; }
  echo "torch $version, $("$environment/bin/python" --version): $(tail -n 1 "$work/$version.log")"
  rm -rf "$environment"
done
exit "$code"
