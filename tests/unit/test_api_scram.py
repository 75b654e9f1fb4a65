"""The handlers of api/scram.py."""

from types import SimpleNamespace

from kafkad.api.scram import describe_user_scram_credentials
from kafkad.protocol import codec, errors, messages
from tests.unit.steps import finish

Request = messages.DescribeUserScramCredentialsRequest


def test_an_answer_about_users_with_the_longest_names_encodes() -> None:
    services = SimpleNamespace(metadata=SimpleNamespace(image=SimpleNamespace(scram_credentials={})))
    names = ["a" * 32_767, "ä" * 16_383, "ä" * 16_383]
    request = Request(users=[Request.Users(name=name) for name in names])
    response = finish(describe_user_scram_credentials(services, None, request))  # type: ignore[arg-type]
    codes = [result.error_code for result in response.results]
    assert codes == [errors.RESOURCE_NOT_FOUND, errors.DUPLICATE_RESOURCE]
    assert codec.encode_response(response, 0, 1)
