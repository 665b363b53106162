#!/usr/bin/env bash
# What AMX does on this processor, in at most five minutes: the kernels and a whole model are checked,
# then products of weights, attention, and the engine's steps are timed by number of rows, at the amx
# level and the one below. Prints one JSON object; everything else goes to standard error.
# usage: benchmarks/amx_silicon.sh > amx.json     THREADS: default one a physical core
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! grep -qw amx_bf16 /proc/cpuinfo; then
  echo "amx_silicon.sh cannot run here: this processor has no AMX (no amx_bf16 in /proc/cpuinfo);" \
    "it takes a Xeon of the fourth generation (Sapphire Rapids) or later" >&2
  exit 1
fi
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
programs=build/native-tests/native/tests
bin=.venv/bin

make setup >&2
"$bin/cmake" -S . -B build/native-tests -G Ninja -DFORERUN_NATIVE_TESTS=ON \
  -DCMAKE_MAKE_PROGRAM="$PWD/$bin/ninja" >&2
"$bin/cmake" --build build/native-tests >&2
threads=${THREADS:-$("$bin/python" -c 'from forerun.hardware import default_threads
print(default_threads().count)')}

"$programs/kernel_test" --level amx >&2
"$bin/python" tests/native/amx/write_model.py "$results/model.bin" >&2
"$programs/model_test" "$results/model.bin" >&2
for level in amx avx512_bf16; do
  timeout 60 "$programs/kernel_time" "$level" "$threads" >"$results/kernels_$level.json"
  FORERUN_ISA=$level timeout 60 "$bin/forerun" bench engine --json --rounds 5 --threads "$threads" \
    >"$results/engine_$level.json"
done
"$bin/python" - "$results" <<'END'
import json, pathlib, platform, sys

from forerun.hardware import processor_name

results = {path.stem: json.loads(path.read_text()) for path in pathlib.Path(sys.argv[1]).glob("*.json")}
print(json.dumps({"processor": processor_name(), "kernel": platform.release(), **results}, indent=2))
END
