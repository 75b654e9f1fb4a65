"""`kafkad groups` while the broker still loads its groups."""

from types import SimpleNamespace

from kafkad.cli import groups
from kafkad.client.cluster import Cluster
from kafkad.protocol import errors, messages


class Loading:
    """A cluster of one broker whose first answer to each request is COORDINATOR_LOAD_IN_PROGRESS."""

    retry_seconds = 10
    retry = Cluster.retry

    def __init__(self):
        self.asked = []

    def forget(self):
        pass

    def brokers(self):
        return [1]

    def broker(self, node):
        return SimpleNamespace(ask=self.ask)

    coordinator = broker

    def ask(self, request):
        self.asked.append(type(request).__name__)
        loading = self.asked.count(type(request).__name__) == 1
        code = errors.COORDINATOR_LOAD_IN_PROGRESS if loading else errors.NONE
        if isinstance(request, messages.OffsetDeleteRequest):
            return messages.OffsetDeleteResponse(error_code=code)
        listed = [] if loading else [messages.ListGroupsResponse.Groups(group_id="g")]
        return messages.ListGroupsResponse(error_code=code, groups=listed)


def test_groups_that_are_loading_are_listed_when_they_are_there():
    """HUNTS S3: a broker serves before its groups are loaded, so the command asks again."""
    cluster = Loading()
    assert [group.group_id for group in groups.all_of(cluster)] == ["g"]
    assert cluster.asked == ["ListGroupsRequest"] * 2


def test_offsets_of_a_group_that_is_loading_are_forgotten_when_it_is_there(monkeypatch):
    cluster = Loading()
    monkeypatch.setattr(groups, "committed_offsets", lambda cluster, group: {("t", 0): 5})
    groups.forget(cluster, "g", (), as_json=True)
    assert cluster.asked == ["OffsetDeleteRequest"] * 2
