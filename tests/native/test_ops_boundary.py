"""Between Python and native code: tensors that cannot be shared, and the GIL."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from forerun import ops
from tests.native.ops_cases import OPERATIONS, arguments_of, refuse


class NoCapsule:
    def __dlpack__(self) -> str:
        return "no capsule"

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_tensors_that_cannot_be_shared() -> None:
    for wrong, match in [
        (torch.zeros(4, 3, requires_grad=True), "^k_pool cannot be shared through DLPack: "),
        (torch.zeros(4, 3, device="meta"), "^k_pool cannot be shared through DLPack: "),
        (torch.zeros(1).expand(4, 3), "^k_pool has shape .*must be contiguous"),
        (torch.zeros(1, 3).expand(4, 3), "^k_pool has slots of 12 bytes, 0 bytes apart"),
        (np.zeros((4, 3))[::-1], "^k_pool has slots of 24 bytes, -24 bytes apart"),
        (NoCapsule(), "^k_pool gave no DLPack capsule"),
        (np.zeros(()), "^k_pool has shape "),
    ]:
        refuse(ops.compact_kv, {**arguments_of(ops.compact_kv), "k_pool": wrong}, match)


def repeated(operation: Callable[..., Any]) -> dict[str, Any]:
    """Arguments of many sessions, so that native code runs for milliseconds."""
    arguments = arguments_of(operation)
    times = 20_000
    for name, value in arguments.items():
        if isinstance(value, np.ndarray) and name != "req_to_token":
            arguments[name] = np.concatenate([value] * times)
    if operation is ops.verify_tree_greedy:
        shape = arguments["retrieve_index"].shape
        arguments["retrieve_index"] = np.arange(shape[0] * shape[1]).reshape(shape)
    if operation is ops.compact_kv:
        arguments["tgt_cache_loc"] = np.arange(4 * times)
        arguments["src_cache_loc"] = np.arange(4 * times)[::-1].copy()
    if "bs" in arguments:
        arguments["bs"] = arguments["verified_seq_len"].size
    return arguments


@pytest.mark.parametrize("operation", OPERATIONS)
def test_other_threads_run_during_native_work(operation: Callable[..., Any]) -> None:
    arguments = repeated(operation)
    finished = False

    def work() -> None:
        nonlocal finished
        operation(**arguments)
        finished = True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # from now on a thread runs on until it gives the GIL up by itself
    try:
        for _ in range(20):  # more than once, lest the system is too slow to wake this thread
            finished = False
            thread = threading.Thread(target=work)
            thread.start()
            ran_during_work = not finished
            thread.join()
            if ran_during_work:
                break
    finally:
        sys.setswitchinterval(interval)
    assert ran_during_work
