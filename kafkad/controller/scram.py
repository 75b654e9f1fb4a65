"""Changes of SCRAM credentials, planned as records. A user with one wrong entry in a request is not changed
at all. The stored values are derived from the salted password that the client sends; the password itself is
never sent. (ScramControlManager, KIP-554, KIP-900.)"""

from collections.abc import Generator
from typing import Any, Final

from kafkad.metadata import features
from kafkad.metadata.image import MetadataImage
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError
from kafkad.security.mechanisms import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_TYPES, credential_from

TWICE: Final = "A user credential cannot be altered twice in the same request"


def plan_alter(image: MetadataImage, request: Any) -> Generator[None, None, tuple[list[Any], Any]]:
    """Return (records, AlterUserScramCredentialsResponse)."""
    records: dict[str, Any] = {}  # by user
    troubles: dict[str, tuple[int, str | None]] = {}
    for changes, plan in ((request.deletions, _deletion), (request.upsertions, _upsertion)):
        for change in changes:
            yield
            user = change.name
            if user in troubles:
                continue
            try:
                if records.pop(user, None) is not None:
                    raise KafkaError(errors.DUPLICATE_RESOURCE, TWICE)
                _check(image, user, change.mechanism)
                records[user] = plan(image, change)
            except KafkaError as trouble:
                troubles[user] = trouble.code, trouble.message
    result = messages.AlterUserScramCredentialsResponse.Results
    results = []
    for user in records:
        results.append(result(user=user, error_code=errors.NONE, error_message=None))
        yield
    for user, (code, message) in troubles.items():
        results.append(result(user=user, error_code=code, error_message=message))
        yield
    planned = list(records.values())
    yield from wide.empty(records, troubles)
    return planned, messages.AlterUserScramCredentialsResponse(results=results)


def _check(image: MetadataImage, user: str, mechanism: int) -> None:
    if image.metadata_version < features.SCRAM:
        raise KafkaError(errors.UNSUPPORTED_VERSION, "The current metadata.version does not support SCRAM")
    if not user:
        raise KafkaError(errors.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism not in SCRAM_TYPES.values():
        raise KafkaError(errors.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def _deletion(image: MetadataImage, change: Any) -> Any:
    if (change.mechanism, change.name) not in image.scram_credentials:
        raise KafkaError(errors.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    return messages.RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)


def _upsertion(image: MetadataImage, change: Any) -> Any:
    if change.iterations < ITERATIONS_MIN:
        raise KafkaError(errors.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        raise KafkaError(errors.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    credential = credential_from(
        change.mechanism, bytes(change.salt), bytes(change.salted_password), change.iterations
    )
    return messages.UserScramCredentialRecord(
        name=change.name,
        mechanism=change.mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )
