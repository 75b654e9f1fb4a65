"""DescribeUserScramCredentials (key 50) and AlterUserScramCredentials (key 51), v0 (KIP-554). Answers never
have salts or keys."""

from typing import Any

from kafkad.api.context import RequestContext, Services
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.strings import shown

TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "
UNKNOWN = "Attempt to describe a user credential that does not exist: "


def describe_user_scram_credentials(services: Services, context: RequestContext, request: Any) -> Any:
    """Describe the named users, or all: mechanisms and iterations. A generator: there may be many."""
    answer = messages.DescribeUserScramCredentialsResponse
    credentials = services.metadata.image.scram_credentials
    found: dict[str, list[Any]] = {}
    for (mechanism, user), record in sorted(credentials.items()):
        yield
        info = answer.Results.CredentialInfos(mechanism=mechanism, iterations=record.iterations)
        found.setdefault(user, []).append(info)
    asked = (yield from wide.count(it.name for it in request.users or ())) or dict.fromkeys(found, 1)
    results = []
    for user, times in asked.items():
        yield
        result = answer.Results(user=user, error_code=0, error_message="", credential_infos=[])
        if times > 1:
            result.error_code, result.error_message = errors.DUPLICATE_RESOURCE, TWICE + shown(user)
        elif user in found:
            result.credential_infos = found[user]
        else:
            result.error_code, result.error_message = errors.RESOURCE_NOT_FOUND, UNKNOWN + shown(user)
        results.append(result)
    yield from wide.empty(asked)
    return answer(error_code=0, error_message=None, results=results)


def alter_user_scram_credentials(services: Services, context: RequestContext, request: Any) -> Any:
    return services.controller.alter_user_scram_credentials(request, context)
