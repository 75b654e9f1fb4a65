"""DescribeCluster (key 60), v0-2.   v1 endpoint types, brokers or controllers (KIP-919). v2 fenced brokers
(KIP-1073).

The answer has the brokers' addresses on the listener of the request. Controllers can be listed on a
controller's listener only: here the answer is MISMATCHED_ENDPOINT_TYPE. Not yet: authorization.
"""

from typing import Any

from kafkad.api.context import RequestContext, Services
from kafkad.api.metadata import CLUSTER_OPERATIONS
from kafkad.protocol import errors, messages

BROKERS, CONTROLLERS = 1, 2


def describe_cluster(services: Services, context: RequestContext, request: Any) -> Any:
    image, us = services.metadata.image, services.config.node_id
    response = messages.DescribeClusterResponse(cluster_id=image.cluster_id)
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        code = errors.MISMATCHED_ENDPOINT_TYPE if known else errors.UNSUPPORTED_ENDPOINT_TYPE
        response.cluster_id = ""
        response.error_code = code if context.version >= 1 else errors.INVALID_REQUEST
        response.error_message = (
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
            if known
            else f"Unsupported endpoint type {request.endpoint_type}"
        )
        return response
    for broker in image.brokers.values():
        endpoint = broker.listeners.get(context.listener)
        if endpoint is not None and (not broker.fenced or request.include_fenced_brokers):
            response.brokers.append(
                messages.DescribeClusterResponse.Brokers(
                    broker_id=broker.broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced and context.version >= 2,
                )
            )
            if not broker.fenced and (response.controller_id < 0 or broker.broker_id == us):
                response.controller_id = broker.broker_id  # preferably this one: it is alive
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response
