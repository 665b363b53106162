"""Settings, methods and vocabularies: what cannot work is refused at the start, with the reason."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from draft_server.config import DraftConfig
from draft_server.drafters.none import NoDrafter
from draft_server.drafters.registry import (
    METHODS,
    DraftSettings,
    check_method,
    create_drafter,
    engine_config,
)
from draft_server.drafters.vocabulary import check_equal, check_shared
from forerun.errors import ModelMismatch
from forerun.models import open_checkpoint
from forerun.tree import Budget
from tests.fixtures.drafting import tiny_tokenizer
from tests.fixtures.tiny import shared_checkpoint

MAX_POSITIONS = 2048  # of the tiny model


def parse(*arguments: str, **environment: str) -> DraftConfig:
    parser = argparse.ArgumentParser()
    DraftConfig.add_arguments(parser)
    return DraftConfig.from_args(parser.parse_args(arguments), environment)


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    assert parse().draft == "ngram"
    assert parse(FORERUN_DRAFT_DRAFT="none").draft == "none"
    assert parse("--draft", "ngram", FORERUN_DRAFT_DRAFT="none").draft == "ngram"
    assert parse(FORERUN_DRAFT_REFLECTION="false").reflection is False
    assert parse("--no-reflection").reflection is False
    assert (parse().tracing, parse("--tracing").tracing) == (False, True)
    assert parse(FORERUN_DRAFT_TRACING="yes").tracing is True
    assert "draft=ngram" in parse().describe()


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ([], {"FORERUN_DRAFT_VERIFYER": "x"}, "FORERUN_DRAFT_VERIFYER is not a setting"),
        ([], {"FORERUN_DRAFT_THREADS": "many"}, "FORERUN_DRAFT_THREADS is 'many'"),
        (["--min-match", "0"], {}, "--min-match is 0; it must be at least 1"),
        (["--draft", "standalone"], {}, "needs a draft model; name it with --draft-model"),
        (["--draft-model", "/m"], {}, "--draft ngram uses no model; drop --draft-model /m"),
        ([], {"FORERUN_DRAFT_DRAFT": "magic"}, "--draft is 'magic'; it must be one of"),
        (["--tls-cert", "c"], {}, "--tls-cert and --tls-key belong together"),
        (["--tls-ca", "c"], {}, "--tls-ca needs --tls-cert"),
        (["--listen", "[::1]:65536"], {}, "the port is 65536; it must be in 0..65535"),
        (["--verifier", "10.0.0.1:99999"], {}, "10.0.0.1:99999: the port is 99999"),
        (["--metrics-port", "65536"], {}, "--metrics-port is 65536; it must be at most 65535"),
        (["--verifier-tls-cert", "c"], {}, "--verifier-tls-cert"),
        (["--verifier-tls-cert", "c", "--verifier-tls-key", "k"], {}, "--verifier-tls-ca"),
    ],
)
def test_what_cannot_work_is_refused(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        parse(*arguments, **environment)


def test_unknown_methods_are_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="'magic', which is not a method") as caught:
        check_method("magic", DraftSettings())
    assert all(name in str(caught.value) for name in METHODS)


@pytest.mark.parametrize("name", ["mtp", "ngram+mtp"])
def test_a_layer_may_be_named_or_left_to_the_target(name: str) -> None:
    check_method(name, DraftSettings())
    check_method(name, DraftSettings(model=Path("/m")))


def test_methods_make_drafters() -> None:
    for name in ("none", "ngram"):
        assert create_drafter(name, DraftSettings(), tiny_tokenizer()).info.name == name
    with pytest.raises(ValueError, match="drop --draft-model"):
        create_drafter("none", DraftSettings(model=Path("/m")), tiny_tokenizer())


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"prefill_chunk": 100}, 100),
        ({"prefill_chunk": 10**9}, MAX_POSITIONS),
        ({"prefill_chunk": 10**9, "max_context": 128}, 128),
        ({"prefill_chunk": 10**9, "kv_tokens": 64}, 64),
    ],
)
def test_rows_of_a_forward_are_bounded_by_a_context(settings: dict[str, int], rows: int) -> None:
    with open_checkpoint(shared_checkpoint()) as checkpoint:
        assert checkpoint.config.max_positions == MAX_POSITIONS
        assert engine_config(DraftSettings(**settings), checkpoint).max_rows == rows  # type: ignore[arg-type]


def test_none_proposes_nothing() -> None:
    drafter = NoDrafter()
    state = drafter.open([1, 2])
    drafter.advance(state, [3])
    [tree] = drafter.draft([(state, Budget(4, 4))])
    assert (tree.token_ids, tree.num_nodes, drafter.info.idle) == ((3,), 0, True)


VOCABULARY = [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ([b"a", b"c", b"b", b"d"], "token id 1 is b'b' in ours .* and b'c' in theirs"),
        ([b"a", b"b", b"c"], "token id 3 is b'd' in ours .4 tokens. and b'' in theirs .3 tokens"),
    ],
)
def test_vocabularies_that_differ(other: list[bytes], message: str) -> None:
    with pytest.raises(ModelMismatch, match=message):
        check_equal("ours", VOCABULARY, "theirs", other)


def test_tokens_beyond_the_shared_range_may_differ() -> None:
    assert check_shared("ours", VOCABULARY, "theirs", VOCABULARY) == 4
    assert check_shared("ours", VOCABULARY, "theirs", VOCABULARY[:3]) == 3
    assert check_shared("ours", VOCABULARY, "theirs", [*VOCABULARY, b"[PAD]"]) == 4
    with pytest.raises(ModelMismatch, match=r"token id 0 .*4 tokens.* and .*5 tokens"):
        check_shared("ours", VOCABULARY, "theirs", [b"x", *VOCABULARY[1:], b"[PAD]"])
