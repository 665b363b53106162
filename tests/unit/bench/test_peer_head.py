"""The head that all engines of the comparison load drafts as the one that it was made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from benchmarks.compare.peer_head import export_head
from forerun.engine.draft_head import DraftedNodes, HeadRows
from tests.fixtures.eagle3 import HEAD_DIM, hidden_states, load_head, write_head


def drafted(folder: Path) -> DraftedNodes:
    head = load_head(folder)
    sequence = head.open()
    assert head.reserve(sequence, 12 + 8)
    tokens = np.arange(3, 15, dtype=np.int32)
    [nodes] = head.draft([HeadRows(sequence, hidden_states(0, 12), tokens, 8, 4)], 0.0, 60.0)
    return nodes


def test_heads_that_add_nothing_make_their_number_a_divisor(tmp_path: Path) -> None:
    given, exported = write_head(tmp_path / "given"), tmp_path / "exported"
    # Three groups of two, of which 64 is no multiple.
    tensors = {
        name: value.bfloat16() if value.is_floating_point() else value
        for name, value in load_file(given / "model.safetensors").items()
    }
    for part, dim, size in (("q", 0, 2), ("k", 0, 1), ("v", 0, 1), ("o", 1, 2)):
        name = f"midlayer.self_attn.{part}_proj.weight"
        more = tensors[name].narrow(dim, 0, size * HEAD_DIM).flip(dim)
        tensors[name] = torch.cat([tensors[name], more], dim).contiguous()
    save_file(tensors, given / "model.safetensors")
    config = json.loads((given / "config.json").read_text())
    config |= {"num_attention_heads": 6, "num_key_value_heads": 3}
    (given / "config.json").write_text(json.dumps(config))

    export_head(given, exported)
    written = json.loads((exported / "config.json").read_text())
    assert (written["num_attention_heads"], written["num_key_value_heads"]) == (8, 4)
    one, other = drafted(given), drafted(exported)
    assert one.token_ids.tolist() == other.token_ids.tolist()
    assert one.parents.tolist() == other.parents.tolist()
    np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-5)
