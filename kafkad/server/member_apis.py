"""APIs that a broker of a cluster serves in addition to api/table: requests about the cluster, which it
forwards to the active controller in an Envelope (KIP-590). The answer is returned unchanged.

A single broker answers some of them itself, and serves none that is about other nodes."""

from typing import Any, Final

from kafkad.api import table
from kafkad.api.context import RequestContext
from kafkad.api.table import Api, Route


def forward(services: Any, context: RequestContext, request: Any) -> Any:
    return services.controller.forward(request, context)


# fmt: off
ROWS: Final = (
    Api(43, "ElectLeaders",                0, 2, forward, Route.CONTROLLER),
    Api(45, "AlterPartitionReassignments", 0, 1, forward, Route.CONTROLLER),
    Api(46, "ListPartitionReassignments",  0, 0, forward, Route.CONTROLLER),
    Api(55, "DescribeQuorum",              0, 2, forward, Route.CONTROLLER),
    Api(57, "UpdateFeatures",              0, 2, forward, Route.CONTROLLER),
    Api(64, "UnregisterBroker",            0, 0, forward, Route.CONTROLLER),
    Api(80, "AddRaftVoter",                0, 1, forward, Route.CONTROLLER),
    Api(81, "RemoveRaftVoter",             0, 0, forward, Route.CONTROLLER),
)
# fmt: on

BY_KEY: Final = {row.key: row for row in sorted((*table.ROWS, *ROWS), key=lambda row: row.key)}
TOLD: Final = tuple((row.key, row.low, row.high) for row in BY_KEY.values())
