#!/usr/bin/env bash
# Builds the image, starts both servers as compose.two-cores.yaml has them, and uses them as a client
# outside does; ends with nothing left. Needs Docker with Compose v2 and root.
#
# usage: deploy/smoke.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export COMPOSE_PROJECT_NAME=forerun-smoke FORERUN_VERSION=smoke FORERUN_PORT=${FORERUN_PORT:-50151}
export FORERUN_BIND=127.0.0.1 FORERUN_BUILD_NETWORK=${FORERUN_BUILD_NETWORK:-host}
# Processors that the kernel can be seen to hold to: the verify server on the first alone.
export VERIFY_CPUS=${VERIFY_CPUS:-0} DRAFT_CPUS=${DRAFT_CPUS:-1}
# The default model by n-grams, whatever deploy/.env says of the servers that are not for this test.
export FORERUN_MODEL= DRAFT_METHOD= DRAFT_HEAD=
# The machine's own cache of models, so that nothing is fetched twice.
export FORERUN_MODELS=${FORERUN_MODELS:-${FORERUN_CACHE:-$HOME/.cache/forerun}}

compose() { docker compose -f deploy/compose.yaml -f deploy/compose.two-cores.yaml "$@"; }
say() { printf '\n== %s\n' "$*"; }
die() { printf 'smoke: %s\n' "$*" >&2; exit 1; }
finish() {
  local code=$?
  [ "$code" = 0 ] || compose logs --tail 40 verify draft >&2 || true
  compose down --volumes --timeout 20 >/dev/null 2>&1 || true
  exit "$code"
}
trap finish EXIT

generate() {
  local answer
  answer=$(.venv/bin/forerun generate --address "127.0.0.1:$FORERUN_PORT" --max-tokens 24 --json \
    "Repeat after me: one two three, one two three, one two three.")
  printf '%s\n' "$answer"
  grep -q '"token_ids"' <<<"$answer" || die "the answer has no tokens"
}
healthy() {
  for _ in $(seq 120); do
    [ "$(docker inspect -f '{{.State.Health.Status}}' "$(compose ps -q "$1")")" = healthy ] && return
    sleep 1
  done
  die "$1 does not become healthy"
}
# Prints the value of a sample that a container serves, as another one of the network sees it.
sample() {
  compose exec -T draft python -c '
import sys, urllib.request
text = urllib.request.urlopen(f"http://{sys.argv[1]}:9100/metrics", timeout=10).read().decode()
print(next(line.split()[-1] for line in text.splitlines() if line.startswith(sys.argv[2] + " ")))
' "$1" "$2"
}

# The client outside the containers.
[ -x .venv/bin/forerun ] || { say "set-up"; make setup; }

say "build"
compose build --quiet verify
docker run --rm --entrypoint sh forerun:smoke -c 'command -v g++ gcc cc cmake ninja' &&
  die "build tools are in the image"
[ "$(docker run --rm --entrypoint id forerun:smoke -u)" != 0 ] || die "the image runs as root"

say "start"
compose up --detach --wait verify draft

say "generate, from outside"
first=$(generate)
printf '%s\n' "$first"

say "pinning"
for server in verify draft; do
  cpus=$(compose exec -T $server sed -n 's/^Cpus_allowed_list:\t//p' /proc/1/status)
  wanted=$VERIFY_CPUS
  [ $server = verify ] || wanted=$DRAFT_CPUS
  printf '%s: processors %s\n' $server "$cpus"
  [ "$cpus" = "$wanted" ] || die "$server runs on processors $cpus, not on $wanted"
done

say "ports"
[ -z "$(docker port "$(compose ps -q verify)")" ] || die "the verify server publishes a port"
docker port "$(compose ps -q draft)"

say "metrics"
emitted=$(sample draft forerun_draft_emitted_total)
printf 'draft: emitted %s\nverify: emitted %s\n' "$emitted" "$(sample verify forerun_verify_emitted_total)"
[ "${emitted%.*}" -gt 0 ] || die "no tokens were counted"

say "the draft server dies"
kill -9 "$(docker inspect -f '{{.State.Pid}}' "$(compose ps -q draft)")"
sleep 1
healthy draft
again=$(generate)
[ "$(grep -o '"token_ids": \[[^]]*\]' <<<"$again")" = "$(grep -o '"token_ids": \[[^]]*\]' <<<"$first")" ] ||
  die "the answer is another one after the restart"
printf 'it came back, and answers the same\n'

say "stop"
compose down --volumes --timeout 20
[ -z "$(docker ps -aq --filter label=com.docker.compose.project=forerun-smoke)" ] || die "containers are left"
printf '\nsmoke: passed\n'
