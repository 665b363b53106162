"""From prompts to a published head in one go, and from there into both servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.training.command import Job, train_draft
from forerun.training.methods import METHODS
from forerun.training.settings import TrainingSettings
from tests.fixtures.tiny import random_prompts, shared_checkpoint
from tests.fixtures.training import DRAFT_VOCAB, SETTINGS, checkpoint


def job(folder: Path, method: str, target: Path, tokens: int = 300) -> Job:
    prompts = [
        [{"role": "user", "content": bytes(prompt).decode("latin-1")}]
        for prompt in random_prompts(20, max_length=24, num_ids=128)
    ]
    return Job(
        target=target,
        out=folder / method,
        work=folder / "work",
        prompts=prompts,
        answer_tokens=10**9,
        generation=SETTINGS,
        training=TrainingSettings(
            method=method, tokens=tokens, draft_vocab=DRAFT_VOCAB, batch_rows=128
        ),
        threads=1,
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_command_makes_data_trains_and_writes_a_card(method: str, tmp_path: Path) -> None:
    wanted = job(tmp_path, method, checkpoint())
    assert train_draft(wanted)
    card = (wanted.out / "README.md").read_text()
    assert card.startswith(f"# {METHODS[method].title} head for ")
    assert f"--method {method}`" in card and f"--draft {method} " in card
    assert "20 documents" in card
    assert "| chain of 4 |" in card and "| tree of 8 |" in card
    assert f"| training.draft_vocab | {DRAFT_VOCAB} |" in card
    assert f"| training.method | {method} |" in card
    assert {file.name for file in wanted.out.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    written = (wanted.out / "model.safetensors").read_bytes()

    # All is done, so doing it again gives the same head.
    assert train_draft(wanted)
    assert (wanted.out / "model.safetensors").read_bytes() == written


def test_methods_share_a_folder_of_data(tmp_path: Path) -> None:
    for method in METHODS:
        assert train_draft(job(tmp_path, method, checkpoint(), tokens=1))
    names = {file.name for file in (tmp_path / "work").iterdir()}
    assert {name for name in names if not name.startswith("states-")} == {
        "corpus",
        "training.safetensors",  # of eagle3, as it was before there were others
        "training-eagle.safetensors",
        "training-mtp.safetensors",
    }
    assert len(list((tmp_path / "work" / "corpus").glob("shard-*"))) == 1


def test_a_target_that_has_no_such_head_is_refused_before_there_is_data(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the target has 2 layers"):
        train_draft(job(tmp_path, "eagle3", shared_checkpoint()))
    assert not list(tmp_path.rglob("shard-*"))
