"""The rows of a step as tensors."""

from __future__ import annotations

import torch

from omnistage.modeling.step import BlockTable, StepRows

BLOCK = 4


def test_rows_know_their_positions_and_places() -> None:
    """Fault: rows of the second sequence lie where the first one's do, or where its own would if it began at 0."""
    table = BlockTable.of([[7, 8], [0, 0], [3, 5]])
    step = StepRows(table, [2, 0], [3, 6], [2, 1], BLOCK, torch.device("cpu"), [11, 12, 13], [1, 2])
    assert step.token_ids.tolist() == [11, 12, 13]
    assert step.positions.tolist() == [3, 4, 6]
    assert [places.tolist() for places in step.cache_places] == [[3, 5, 8], [3, 0, 2]]
    assert step.asked.tolist() == [1, 2]
    assert (step.num_rows, step.longest, step.q_start) == (3, 7, [0, 2, 3])


def test_a_table_is_seen_as_it_is_written() -> None:
    """Fault: a tensor or an address of a table that was copied."""
    table = BlockTable(2, 3)
    assert table.address == table.blocks.ctypes.data
    step = StepRows(table, [1], [0], [1], BLOCK, torch.device("cpu"))
    table.blocks[1] = 9
    assert step.block_table.tolist() == [[0, 0, 0], [9, 9, 9]]


def test_the_step_behind_computes_one_token_of_every_sequence() -> None:
    """Fault: it begins where this step does, or asks for this step's rows."""
    step = StepRows(BlockTable.of([[1], [2]]), [1, 0], [0, 3], [2, 1], BLOCK, torch.device("cpu"), (), [1, 2])
    behind = step.following([8, 9])
    assert (list(behind.slots), list(behind.starts), list(behind.counts)) == ([1, 0], [2, 4], [1, 1])
    assert (list(behind.tokens), list(behind.logit_rows)) == ([8, 9], [0, 1])
