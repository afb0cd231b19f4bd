"""The table of ``tests/mutants.py`` matches the source: each mutation has its line, and tests that exist.

The mutations themselves take minutes, and run by ``make mutants``.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mutants

TESTS = Path(__file__).parent
each_mutation = pytest.mark.parametrize("mutation", mutants.MUTATIONS, ids=lambda m: f"{m.file}-{m.breaks}")


@each_mutation
def test_the_line_is_there_once_and_can_be_broken(mutation):
    """What is left is Python still: a file that does not compile fails every test and shows nothing."""
    assert "\n" not in mutation.old + mutation.new
    text = mutants.mutated(mutation)
    original = (mutants.ROOT / mutants.PACKAGE / mutation.file).read_text()
    changed = [a != b for a, b in zip(text.splitlines(), original.splitlines(), strict=True)]
    assert sum(changed) == 1
    assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(original))


@each_mutation
def test_the_tests_that_should_notice_exist(mutation):
    assert mutation.tests
    for name in mutation.tests:
        assert (TESTS / name).is_file(), name


def test_no_mutation_comes_twice():
    assert len({(m.file, m.old, m.new) for m in mutants.MUTATIONS}) == len(mutants.MUTATIONS)
    assert len({m.breaks for m in mutants.MUTATIONS}) == len(mutants.MUTATIONS) >= 25


def test_a_text_that_is_not_there_once_is_an_error():
    first = mutants.MUTATIONS[0]
    for old, times in (("no such text", 0), ("tl.", "[0-9]+")):
        with pytest.raises(ValueError, match=rf"{first.file} has .* {times} times; it must be there once"):
            mutants.mutated(first._replace(old=old))


def test_a_bad_command_line_is_refused(capsys):
    for argv, why in ((["--only", "no such mutation"], "no mutation has it"), (["--jobs", "0"], "must be 1 or more")):
        with pytest.raises(SystemExit) as end:
            mutants.main(argv)
        assert end.value.code == 2
        assert why in capsys.readouterr().err
