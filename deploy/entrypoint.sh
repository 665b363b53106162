#!/bin/sh
# Runs forerun on one NUMA node, processors and memory, where FORERUN_NUMA_NODE names it.
set -eu
if [ -n "${FORERUN_NUMA_NODE:-}" ]; then
  exec numactl --cpunodebind="$FORERUN_NUMA_NODE" --membind="$FORERUN_NUMA_NODE" forerun "$@"
fi
exec forerun "$@"
