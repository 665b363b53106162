#!/usr/bin/env bash
# Runs kernel_test where AMX is: on this processor, or on the emulated one, which is built once.
# Without either says why, and exits with 0.
# usage: test.sh KERNEL_TEST     FORERUN_CACHE: folder of the emulator, ~/.cache/forerun if unset
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=${1:?usage: test.sh KERNEL_TEST}
emulator=${FORERUN_CACHE:-$HOME/.cache/forerun}/amx

if grep -qw amx_bf16 /proc/cpuinfo; then
  run=("$program")
elif [ "$(id -u)" != 0 ]; then
  echo "skipped: this processor has no AMX, and building the emulator takes root"
  exit 0
elif ! grep -qx 'ID=debian' /etc/os-release; then
  echo "skipped: this processor has no AMX, and the emulator is built on Debian alone"
  exit 0
else
  [ -e "$emulator/ready" ] || echo "building the emulator in $emulator; this takes some minutes"
  "$here/build.sh" "$emulator"
  echo "running on the emulator; this takes some minutes"
  run=("$here/run.sh" "$emulator" "$program")
fi
"${run[@]}"
# The test itself must notice a fault.
"${run[@]}" --plant swap
"${run[@]}" --plant prefix
