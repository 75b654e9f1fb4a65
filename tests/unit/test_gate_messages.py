"""Questions between workers about a transaction's partitions, to bytes and back."""

import pytest

from kafkad.server.gate_messages import Question, pack_answer, pack_question, unpack_answer, unpack_question


@pytest.mark.parametrize(
    "partitions",
    [
        [],
        [("a", 0)],
        [("b", 2**31 - 1), ("ä" * 100, 1), ("ä" * 100, 0), ("b", 3)],  # their order is that of the answer
    ],
)
@pytest.mark.parametrize("adds", [True, False])
def test_a_question_comes_back_as_it_was(partitions, adds):
    for name, producer_id, epoch in (("x", 0, 0), ("ü" * 10_000, 2**63 - 1, 32767), ("", -1, -1)):
        question = Question(name, producer_id, epoch, partitions, adds)
        assert unpack_question(pack_question(question)) == question


def test_an_answer_has_a_code_for_each_partition():
    assert unpack_answer(pack_answer([0, -1, 120, 0])) == (0, -1, 120, 0)
    assert unpack_answer(pack_answer([])) == ()
