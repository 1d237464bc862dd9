#!/usr/bin/env bash
# The README's two commands on a fresh Debian, as root: tests/fresh/debian.sh [SUITE] [WHERE]
#
# debootstrap makes the smallest Debian of SUITE (trixie, or bookworm) in the new folder WHERE, with python3, python3-venv,
# make and git besides. There, a user who is not root clones the last commit of this checkout, and runs `make run` and
# `make test`. Without WHERE, the folder is a temporary one, and is removed. This takes about an hour and 15 GB with the
# CUDA build of torch, so CI does not run it.
#
# What this machine needs to reach a package index is passed on: the variables PIP_*, and the files and folders that
# PIP_CERT and PIP_FIND_LINKS name. MIRROR names a mirror of Debian, if not its usual one.
set -euo pipefail

main() {
  local suite=${1:-trixie} paths path
  [[ $(id -u) == 0 ]] || { echo "tests/fresh/debian.sh needs root: debootstrap does." >&2; exit 2; }
  export root=${2:-} settings
  umask 022
  if [[ -z $root ]]; then
    root=$(mktemp -d)
    trap 'rm -rf --one-file-system "$root"' EXIT
    chmod 755 "$root"
  fi
  debootstrap --variant=minbase --include=python3,python3-venv,make,git "$suite" "$root" ${MIRROR:+"$MIRROR"}
  # What Debian's installer would write.
  printf '127.0.0.1 localhost\n127.0.1.1 %s\n::1 localhost\n' "$(hostname)" >"$root/etc/hosts"
  chroot "$root" useradd --create-home --shell /bin/bash user

  git -C "$(dirname "$0")" bundle create --quiet "$root/repository.bundle" HEAD
  settings=$(compgen -e PIP_ | paste -sd, || true)
  read -ra paths <<<"${PIP_CERT:-} ${PIP_FIND_LINKS:-}"
  for path in "${paths[@]}"; do
    if [[ -e $path ]]; then
      mkdir -p "$root$(dirname "$path")"
      cp -rL "$path" "$root$path"
    fi
  done

  # In namespaces of its own: the mounts, and the processes that are left, end with it.
  export -f on_the_machine as_user
  unshare --mount --pid --fork --kill-child bash -euo pipefail -c on_the_machine
}

on_the_machine() {
  local target start code exit_code=0
  mount --bind "$root" "$root"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  # Not chroot: the kernel gives no user namespaces in one.
  cd "$root"
  pivot_root . mnt
  umount --lazy /mnt
  as_user 'cat /etc/debian_version; python3 --version; git clone --quiet /repository.bundle trainwright'
  for target in run test; do
    start=$SECONDS
    code=0
    as_user "make -C trainwright $target" || code=$?
    echo "make $target: $((SECONDS - start)) s, exit code $code"
    ((exit_code)) || exit_code=$code
  done
  exit "$exit_code"
}

as_user() {
  su --login ${settings:+--whitelist-environment="$settings"} user --command "$1"
}

main "$@"
