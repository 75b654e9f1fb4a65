"""Delegation tokens without a socket: what is planned, found and derived."""

import base64
import random

import pytest

from kafkad.client.security import scram_conversation
from kafkad.controller.tokens import REMOVED_AT_ONCE, Tokens
from kafkad.metadata.image import MetadataImage
from kafkad.protocol import errors, messages
from kafkad.security.delegation import Hmacs, Principal, TokenLogins, has_expired, hmac_of
from kafkad.security.mechanisms import SCRAM_HASHES, Later, Refused, Scram
from tests.unit.test_metadata_image import applied

NOW_MS = 1_700_000_000_000
SECRET = "hush"
ANNA, BOB = Principal.of("User:anna"), Principal.of("User:bob")


def record(token_id="t", expires_ms=NOW_MS + 1000, owner="User:anna", renewers=()):
    return messages.DelegationTokenRecord(
        owner=owner,
        requester=owner,
        renewers=list(renewers),
        issue_timestamp=NOW_MS,
        max_timestamp=NOW_MS + 5000,
        expiration_timestamp=expires_ms,
        token_id=token_id,
    )


def image_with(*records, level=25):
    level = messages.FeatureLevelRecord(name="metadata.version", feature_level=level)
    return applied(MetadataImage("cluster", 1), [level, *records])[0]


def run(steps):
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


TOKENS = Tokens(SECRET, 5000, 1000)
Create, Renew, Expire = (
    messages.CreateDelegationTokenRequest,
    messages.RenewDelegationTokenRequest,
    messages.ExpireDelegationTokenRequest,
)


def test_a_token_holds_no_secret():
    [made], answer = run(TOKENS.plan_create(image_with(), random.Random(1), NOW_MS, ANNA, Create(), 3))
    assert answer.hmac == hmac_of(SECRET, answer.token_id) and len(answer.hmac) == 64
    assert answer.hmac.hex() not in repr(made) and SECRET not in repr(made)
    assert (made.owner, made.max_timestamp, made.expiration_timestamp) == (
        "User:anna", NOW_MS + 5000, NOW_MS + 1000,
    )  # fmt: skip


def test_an_old_metadata_version_and_no_secret():
    old = image_with(level=13)
    for tokens, image, code in (
        (TOKENS, old, errors.UNSUPPORTED_VERSION),
        (Tokens(None, 1, 1), image_with(), errors.DELEGATION_TOKEN_AUTH_DISABLED),
    ):
        for plan in (
            tokens.plan_create(image, random.Random(1), NOW_MS, ANNA, Create(), 3),
            tokens.plan_renew(image, NOW_MS, ANNA, Renew()),
            tokens.plan_expire(image, NOW_MS, ANNA, Expire()),
        ):
            records, answer = run(plan)
            assert (records, answer.error_code) == ([], code)


@pytest.mark.parametrize("lifetime_ms", [-1, 0, 1, 3000, 10**15, 2**63 - 1])
def test_times_stay_within_their_limits(lifetime_ms):
    request = Create(max_lifetime_ms=lifetime_ms)
    _, answer = run(TOKENS.plan_create(image_with(), random.Random(1), NOW_MS, ANNA, request, 3))
    most = min(lifetime_ms, 5000) if lifetime_ms > 0 else 5000
    assert answer.max_timestamp_ms - NOW_MS == most
    assert answer.expiry_timestamp_ms - NOW_MS == min(most, 1000)
    image, hmac = image_with(record()), hmac_of(SECRET, "t")
    for period in (-1, 1, 2**63 - 1):
        [changed], answer = run(
            TOKENS.plan_renew(image, NOW_MS, ANNA, Renew(hmac=hmac, renew_period_ms=period))
        )
        assert NOW_MS < changed.expiration_timestamp == answer.expiry_timestamp_ms <= NOW_MS + 1000
    request = Expire(hmac=hmac, expiry_time_period_ms=2**63 - 1)
    [changed], _ = run(TOKENS.plan_expire(image, NOW_MS, ANNA, request))
    assert changed.expiration_timestamp == NOW_MS + 5000


def test_names_that_no_record_can_have_are_refused():
    long = "b" * 32_767  # as long as a request's string may be
    for request in (
        Create(renewers=[Create.Renewers(principal_type="User", principal_name=long)]),
        Create(owner_principal_type="User", owner_principal_name=long),
    ):
        records, answer = run(TOKENS.plan_create(image_with(), random.Random(1), NOW_MS, ANNA, request, 3))
        assert (records, answer.error_code) == ([], errors.INVALID_REQUEST)


def test_who_may_renew_and_end_a_token():
    image, hmac = image_with(record(renewers=["User:bob"])), hmac_of(SECRET, "t")
    for requester, code in (
        (ANNA, 0),
        (BOB, 0),
        (Principal.of("User:eve"), errors.DELEGATION_TOKEN_OWNER_MISMATCH),
    ):
        for plan in (
            TOKENS.plan_renew(image, NOW_MS, requester, Renew(hmac=hmac)),
            TOKENS.plan_expire(image, NOW_MS, requester, Expire(hmac=hmac, expiry_time_period_ms=-1)),
        ):
            records, answer = run(plan)
            assert answer.error_code == code and len(records) == (0 if code else 1)
    late = NOW_MS + 1001
    _, answer = run(TOKENS.plan_renew(image, late, ANNA, Renew(hmac=hmac)))
    assert answer.error_code == errors.DELEGATION_TOKEN_EXPIRED
    [gone], answer = run(TOKENS.plan_expire(image, late, ANNA, Expire(hmac=hmac, expiry_time_period_ms=-1)))
    assert gone.token_id == "t" and answer.error_code == 0


def test_expired_tokens_are_removed_a_thousand_at_a_time():
    image = image_with(*(record(f"t{n}", NOW_MS - n % 2) for n in range(2 * REMOVED_AT_ONCE + 10)))
    removed = run(TOKENS.plan_sweep(image, NOW_MS))
    assert len(removed) == REMOVED_AT_ONCE
    assert all(has_expired(image.delegation_tokens[it.token_id], NOW_MS) for it in removed)


def test_a_token_is_found_by_its_hmac_while_others_come_and_go():
    found, tokens = Hmacs(SECRET), {}
    for number in range(2_000):
        tokens[f"t{number}"] = record(f"t{number}")
        if number >= 5:
            del tokens[f"t{number - 5}"]
        assert run(found.find(tokens, hmac_of(SECRET, f"t{number}"))).token_id == f"t{number}"
        assert run(found.find(tokens, hmac_of(SECRET, f"t{number - 5}"))) is None
    assert run(found.find(tokens, b"")) is None
    assert len(found._ids) < 1_000


def test_a_login_with_a_token():
    tokens = {"t": record()}
    now_ms, works = [NOW_MS], []
    logins = TokenLogins(SECRET, lambda: tokens, lambda: now_ms[0], lambda size: b"x" * size)

    def log_in(name: str, hmac: bytes, delegated: bool = True) -> Scram:
        scram = Scram(name, lambda user: None, lambda: "nonce", lambda token_id: logins.find(name, token_id))
        client = scram_conversation(
            SCRAM_HASHES[name], "t", base64.b64encode(hmac).decode(), delegated=delegated
        )
        said = next(client)
        while True:
            try:
                said = client.send(scram.step(said))
            except Later as later:  # and the same step again
                works.append(name)
                later.work()
            except StopIteration:
                return scram

    for name in SCRAM_HASHES:
        in_by = log_in(name, hmac_of(SECRET, "t"))
        assert (in_by.done, in_by.user, in_by.lifetime_ms, in_by.by_token) == (True, "anna", 1000, True)
        with pytest.raises(Refused, match="the HMAC of token t is wrong"):
            log_in(name, hmac_of("other", "t"))
    assert works == list(SCRAM_HASHES)  # the second login with a token needs no thread
    with pytest.raises(Refused, match="has no sha256 credential"):
        log_in("SCRAM-SHA-256", hmac_of(SECRET, "t"), delegated=False)
    now_ms[0] += 1001
    with pytest.raises(Refused, match="unknown or has expired"):
        log_in("SCRAM-SHA-256", hmac_of(SECRET, "t"))
    tokens.clear()
    assert logins.find("SCRAM-SHA-512", "t") is None and logins._credentials.keys() == set()
