"""What every operation refuses: each argument in turn made wrong in each way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forerun import ops
from tests.native.ops_cases import OPERATIONS, arguments_of, refuse

TENSORS = [
    (operation, name)
    for operation, (arguments, _) in OPERATIONS.items()
    for name, value in arguments().items()
    if isinstance(value, np.ndarray)
]
OUTPUTS = [(operation, name) for operation, (_, names) in OPERATIONS.items() for name in names]
INPUTS = [case for case in TENSORS if case not in OUTPUTS]
FREE_SHAPES = ("accept_index", "out_cache_loc")  # of fill_accept_out_cache_loc
BYTES = ("tree_mask", "k_pool", "v_pool")  # what is no index argument


def each(cases: list[tuple[Callable[..., Any], str]]) -> pytest.MarkDecorator:
    ids = [f"{operation.__name__}-{name}" for operation, name in cases]
    return pytest.mark.parametrize(("operation", "name"), cases, ids=ids)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_the_arguments_that_the_tests_below_spoil_are_right(operation: Callable[..., Any]) -> None:
    operation(**arguments_of(operation))


@each(TENSORS)
def test_a_list_is_no_tensor(operation: Callable[..., Any], name: str) -> None:
    arguments = arguments_of(operation)
    arguments[name] = arguments[name].tolist()
    refuse(operation, arguments, f"^{name} is a list; give a numpy array", TypeError)


@each(TENSORS)
def test_dtype(operation: Callable[..., Any], name: str) -> None:
    arguments = arguments_of(operation)
    wrong = object if name in ("k_pool", "v_pool") else np.float32
    arguments[name] = arguments[name].astype(wrong)
    refuse(operation, arguments, f"^{name} has dtype ")


@each([case for case in TENSORS if case[1] != "tree_mask"])
def test_byte_order(operation: Callable[..., Any], name: str) -> None:
    arguments = arguments_of(operation)
    arguments[name] = arguments[name].astype(arguments[name].dtype.newbyteorder(">"))
    refuse(operation, arguments, f"^{name} has dtype .*native byte order")


@each(TENSORS)
def test_layout(operation: Callable[..., Any], name: str) -> None:
    arguments = arguments_of(operation)
    arguments[name] = arguments[name].repeat(2, axis=-1)[..., ::2]
    refuse(operation, arguments, f"^{name} has shape .* it must be contiguous")


@each([case for case in TENSORS if case[1] not in BYTES])
def test_alignment(operation: Callable[..., Any], name: str) -> None:
    arguments = arguments_of(operation)
    value = arguments[name]
    moved = np.empty(value.nbytes + 1, np.uint8)[1:].view(value.dtype).reshape(value.shape)
    moved[...] = value
    arguments[name] = moved
    refuse(operation, arguments, f"^{name} does not start at a multiple of")


@each([case for case in TENSORS if case != (ops.fill_accept_out_cache_loc, "accept_index")])
def test_too_few_items(operation: Callable[..., Any], name: str) -> None:
    arguments = arguments_of(operation)
    arguments[name] = arguments[name][:-1].copy()
    refuse(operation, arguments, " has | is ")


@each(
    [
        (operation, name)
        for operation, name in TENSORS
        if name not in ("k_pool", "v_pool")
        and (operation, name) not in [(ops.fill_accept_out_cache_loc, n) for n in FREE_SHAPES]
    ]
)
def test_too_many_dimensions(operation: Callable[..., Any], name: str) -> None:
    arguments = arguments_of(operation)
    arguments[name] = arguments[name][..., None]
    refuse(operation, arguments, f"{name} has ")


@each(OUTPUTS)
def test_read_only_outputs(operation: Callable[..., Any], name: str) -> None:
    arguments = arguments_of(operation)
    arguments[name].flags.writeable = False
    refuse(operation, arguments, f"^{name} is read-only")


@each([case for case in OUTPUTS if case[1] != "tree_mask"])
def test_outputs_that_share_memory(operation: Callable[..., Any], name: str) -> None:
    for other in [name for op, name in INPUTS if op is operation]:
        arguments = arguments_of(operation)
        memory = np.zeros(max(arguments[name].nbytes, arguments[other].nbytes), np.uint8)
        for shared in (name, other):
            value = arguments[shared]
            arguments[shared] = memory[: value.nbytes].view(value.dtype).reshape(value.shape)
        refuse(operation, arguments, f"^{name} shares memory with {other}")


@each(INPUTS)
def test_inputs_may_be_read_only(operation: Callable[..., Any], name: str) -> None:
    arguments = arguments_of(operation)
    arguments[name].flags.writeable = False
    operation(**arguments)
