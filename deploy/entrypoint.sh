#!/bin/sh
# Runs forerun on one NUMA node, processors and memory, where FORERUN_NUMA_NODE names it.
set -eu
node=${FORERUN_NUMA_NODE:-}
if [ -z "$node" ]; then
  exec forerun "$@"
fi
if [ ! -d "/sys/devices/system/node/node$node" ]; then
  echo "this machine has no NUMA node $node: set VERIFY_NODE and DRAFT_NODE to one that it has, or to nothing" >&2
  exit 1
fi
exec numactl --cpunodebind="$node" --membind="$node" forerun "$@"
