"""Stores that change: whether nodes with them accept each other."""

import pytest

from kafkad.security.stores import certificates_of, key_of
from kafkad.security.tls_trust import Stores, refusal, successor_refusal
from tests.certificates import make_stores


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    here = make_stores(tmp_path_factory.mktemp("stores"))

    def of(name, *authorities):
        text = (here / f"{name}.pem").read_text()
        trusted = [it for each in authorities for it in certificates_of((here / f"{each}.pem").read_text())]
        return Stores(key_of(text, None), tuple(certificates_of(text)), tuple(trusted))

    return of


def test_why_a_certificate_is_refused(stores):
    server = stores("server", "ca")
    assert refusal(server, server) is None
    assert "unable to get local issuer" in refusal(server, stores("server", "other"))
    assert refusal(stores("expired", "ca"), server) == "certificate has expired"
    assert refusal(stores("stranger", "other"), stores("server", "stranger")) is None, "trusted by itself"


def test_what_may_follow(stores):
    server = stores("server", "ca")
    both_cas = stores("server", "ca", "other")

    def refused(before, after, both=True):
        return successor_refusal(before, after, both=both)

    assert refused(server, server) is None
    assert refused(server, both_cas) is None
    assert refused(both_cas, stores("stranger", "ca", "other")) is None
    assert refused(stores("stranger", "ca", "other"), stores("stranger", "other")) is None
    assert (
        refused(server, stores("expired", "ca")) == "its own truststore refuses it: certificate has expired"
    )
    assert "its own" in refused(server, stores("stranger", "ca"))
    assert "the truststore there" in refused(server, stores("stranger", "ca", "other"))
    assert "the certificate there" in refused(both_cas, stores("stranger", "other"))
    assert refused(both_cas, stores("stranger", "other"), both=False) is None


def test_stores_that_never_fitted_together_may_change(stores):
    for before in (stores("server", "other"), stores("expired", "ca"), stores("server")):
        assert successor_refusal(before, stores("stranger", "ca"), both=True) is None
