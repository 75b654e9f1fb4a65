"""Names that clients choose for themselves in a group."""

import pytest

from kafkad.protocol import codec, errors, messages
from tests.unit.coordinator_world import GROUP, World


@pytest.mark.parametrize(("version", "instance"), [(3, None), (5, None), (5, "i" * 32_767)])
def test_a_member_id_that_no_record_can_have_is_refused(version, instance):
    """The assignment of the whole group could not be stored with it."""
    world, answers = World(), []
    request = messages.JoinGroupRequest(
        group_id=GROUP,
        protocol_type="consumer",
        protocols=[messages.JoinGroupRequest.Protocols(name="range", metadata=b"")],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        group_instance_id=instance,
    )
    world.coordinator.join(request, version, "c" * 32_767, "/h", answers.append)
    assert [answer.error_code for answer in answers] == [errors.INVALID_REQUEST]
    assert world.shard.groups[GROUP].is_empty and not world.shard.groups[GROUP].pending_join


def test_an_unknown_group_with_the_longest_name_is_described() -> None:
    response = messages.DescribeGroupsResponse(groups=[World().coordinator.describe("g" * 32_767, 6)])
    assert response.groups[0].error_code == errors.GROUP_ID_NOT_FOUND
    assert codec.encode_response(response, 6, 1)
