"""Flags win over the environment, which wins over the defaults; nothing unknown is ignored."""

from __future__ import annotations

import argparse
import math

import pytest

from forerun.tree import Budget
from tests.fixtures.scripted_target import ScriptedTarget, hash_next
from verify_server.config import VerifyConfig
from verify_server.scheduler import Scheduler


def parse(*flags: str, **environment: str) -> VerifyConfig:
    parser = argparse.ArgumentParser()
    VerifyConfig.add_arguments(parser)
    return VerifyConfig.from_args(parser.parse_args(flags), environment)


def test_defaults_flags_and_environment() -> None:
    assert parse() == VerifyConfig()
    environment = {"FORERUN_VERIFY_MAX_NODES": "9", "FORERUN_VERIFY_REFLECTION": "false"}
    config = parse("--max-depth", "5", "--patience-ms", "1.5", **environment)
    assert (config.max_nodes, config.max_depth, config.patience_ms) == (9, 5, 1.5)
    assert not config.reflection
    assert parse("--max-nodes", "8", **environment).max_nodes == 8
    assert not parse("--no-reflection").reflection
    assert parse("--tracing").tracing and parse(FORERUN_VERIFY_TRACING="1").tracing


def test_an_unknown_variable_is_an_error() -> None:
    with pytest.raises(ValueError, match="FORERUN_VERIFY_MAX_NODE is not a setting"):
        parse(FORERUN_VERIFY_MAX_NODE="3")


def test_a_variable_that_cannot_be_read_names_itself() -> None:
    with pytest.raises(ValueError, match="FORERUN_VERIFY_THREADS"):
        parse(FORERUN_VERIFY_THREADS="many")
    with pytest.raises(ValueError, match="neither true nor false"):
        parse(FORERUN_VERIFY_REFLECTION="perhaps")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"page_size": 0}, "--page-size is 0"),
        ({"patience_ms": -1}, "--patience-ms is -1"),
        ({"patience_ms": math.nan}, "--patience-ms is nan; it must be a finite number"),
        ({"grace_s": math.inf}, "--grace-s is inf; it must be a finite number"),
        ({"patience_ms": 3000}, "--patience-ms is 3000; it must not exceed --max-patience-ms 2000"),
        ({"dtype": "float16"}, "--dtype is 'float16'"),
        ({"draft_nodes": 9, "max_nodes": 8}, "--draft-nodes is 9"),
        ({"tls_cert": "c"}, "--tls-cert and --tls-key belong together"),
        ({"tls_ca": "c"}, "--tls-ca needs"),
        ({"listen": "127.0.0.1:99999"}, "127.0.0.1:99999: the port is 99999; .* 0..65535"),
        ({"listen": "127.0.0.1:-1"}, "the port is -1"),
        ({"listen": "localhost"}, "localhost names no port; give host:port"),
        ({"metrics_port": 99999}, "--metrics-port is 99999; it must be at most 65535"),
        ({"kv_tokens": 99999999999999}, "--kv-tokens is 9.*; it must be at most 2147483647"),
        ({"page_size": 2**31}, "--page-size is 2147483648; it must be at most 2147483647"),
        ({"max_nodes": 10**6}, "--max-nodes is 1000000; it must be at most 4096"),
        ({"outbox_bytes": 2**63}, "--outbox-bytes is .* at most 9223372036854775807"),
        ({"grace_s": 1e9}, "--grace-s is 1000000000.0; it must be at most 4000000"),
    ],
)
def test_values_out_of_range_are_errors(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VerifyConfig(**settings)  # type: ignore[arg-type]


def test_the_rows_of_the_engine_hold_a_chunk_and_the_largest_tree() -> None:
    assert VerifyConfig(prefill_chunk=100, max_nodes=64, row_budget=32).max_rows == 165
    assert VerifyConfig(prefill_chunk=1, max_nodes=64, row_budget=32).max_rows == 87
    assert VerifyConfig(draft_depth=9, max_depth=4).draft_limit == Budget(8, 4)


def test_the_rows_of_prompts_are_bounded_by_what_a_step_can_use() -> None:
    assert VerifyConfig(prefill_chunk=10**9, max_context=1000).max_rows == 65 + 1000
    config = VerifyConfig(prefill_chunk=10**9, max_context=10**9, kv_tokens=2000)
    assert config.max_rows == 65 + 2000


@pytest.mark.parametrize("listen", ["unix:/tmp/a:99999", "unix-abstract:x", "[::]:0", "h:65535"])
def test_addresses_to_listen_on(listen: str) -> None:
    assert VerifyConfig(listen=listen).listen == listen


@pytest.mark.parametrize("prefill_chunk", [1, 7, 32])
@pytest.mark.parametrize("max_nodes", [8, 64, 100])
def test_the_largest_tree_has_room_beside_short_chunks_of_prompts(
    prefill_chunk: int, max_nodes: int
) -> None:
    config = VerifyConfig(prefill_chunk=prefill_chunk, max_nodes=max_nodes)
    target = ScriptedTarget(hash_next(64), max_rows=config.max_rows)
    Scheduler(target, config, vocab_size=64)  # it refuses rows that do not suffice
