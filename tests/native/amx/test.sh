#!/usr/bin/env bash
# Runs kernel_test and model_test where AMX is: on this processor, or on the emulated one, which is
# built once. Both plant faults in themselves, which they must notice. Without AMX or the emulator
# says why, and exits with 0.
# usage: test.sh FOLDER PYTHON     the folder of both programs; a Python that has forerun
# FORERUN_CACHE: folder of the emulator, ~/.cache/forerun if unset
# FORERUN_AMX_LAYERS: layers of the model to run; 2 if unset on the emulator, else all
# FORERUN_AMX_GRID: run one of so many cases of the grid of attention; 5 if unset on the emulator,
# else 1
set -euo pipefail

usage='usage: test.sh FOLDER PYTHON'
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
programs=${1:?$usage}
python=${2:?$usage}
emulator=${FORERUN_CACHE:-$HOME/.cache/forerun}/amx
model=$programs/model.bin

if grep -qw amx_bf16 /proc/cpuinfo; then
  run() { "${@#@}"; }
  layers=${FORERUN_AMX_LAYERS:-}
  grid=${FORERUN_AMX_GRID:-1}
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
  run() { "$here/run.sh" "$emulator" "$@"; }
  layers=${FORERUN_AMX_LAYERS:-2}
  grid=${FORERUN_AMX_GRID:-5}
fi
run "$programs/kernel_test" --plants amx
run "$programs/kernel_test" --grid "$grid" --level amx
"$python" "$here/write_model.py" "$model" ${layers:+--layers "$layers"}
run "$programs/model_test" "@$model" --tokens 3 --plants
