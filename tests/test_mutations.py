"""The list of safety measures still fits the code: each is there to be taken out. (python -m tests.mutations takes them out.)"""

from __future__ import annotations

import ast

import pytest

from tests.mutations import MUTATIONS, ROOT, Mutation, mutated


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_each_can_be_taken_out(mutation: Mutation) -> None:
    text = mutated(mutation)
    if mutation.file.endswith(".py"):
        ast.parse(text)
    for test in mutation.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test


def test_names_are_names() -> None:
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS) >= 20
