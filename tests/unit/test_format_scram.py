"""`kafkad format --add-scram`: what is stored, and what is refused."""

import base64
import hashlib

import pytest

from kafkad.cli.format_scram import scram_record
from kafkad.protocol import messages
from kafkad.raft.bootstrap import build_bootstrap, read_bootstrap

SALT = base64.b64encode(b"0123456789abcdef").decode()


def test_a_password_and_what_is_made_of_it_are_stored_alike():
    salted = hashlib.pbkdf2_hmac("sha256", b"secret=1", b"0123456789abcdef", 8192)
    by_password = scram_record(f"SCRAM-SHA-256=[name=anna,salt={SALT},iterations=8192,password=secret=1]")
    text = base64.b64encode(salted).decode()
    by_salted = scram_record(f'SCRAM-SHA-256=[name="anna",iterations=8192,salt={SALT},saltedpassword={text}]')
    assert by_password == by_salted
    assert (by_password.name, by_password.mechanism, by_password.iterations) == ("anna", 1, 8192)
    assert by_password.salt == b"0123456789abcdef" and len(by_password.stored_key) == 32


def test_salts_are_random_and_records_stand_behind_the_levels():
    users = [scram_record("SCRAM-SHA-512=[name=node,password=x]") for _ in range(2)]
    assert users[0].salt != users[1].salt and users[0].iterations == 4096
    records = read_bootstrap(build_bootstrap(0, None, users[:1]))
    assert type(records[0]) is messages.FeatureLevelRecord
    assert bytes(records[-1].stored_key) == users[0].stored_key


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SCRAM-SHA-256", "takes MECHANISM="),
        ("SCRAM-SHA-1=[name=a,password=hush]", "mechanism SCRAM-SHA-1 is not supported"),
        ("SCRAM-SHA-256=[password=hush]", "You must supply 'name'"),
        ("SCRAM-SHA-256=[name=a]", "one of 'password' or 'saltedpassword'"),
        ("SCRAM-SHA-256=[name=a,password=hush,saltedpassword=eA==]", "one of 'password' or"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=eA==]", "You must supply 'salt'"),
        ("SCRAM-SHA-256=[name=a,password=]", "password of user a is empty"),
        ("SCRAM-SHA-256=[name=a,iterations=4095,password=hush]", "4096 to 16384, not 4095"),
        ("SCRAM-SHA-256=[name=a,salt=?,password=hush]", "salt of add-scram is not base64"),
        ("SCRAM-SHA-256=[name=a,name=b,password=hush]", "once at most"),
        ("SCRAM-SHA-256=[name=a,colour=red,password=hush]", "once at most"),
        ("hush", "takes MECHANISM="),
    ],
)
def test_what_is_refused(text, told):
    with pytest.raises(ValueError) as refused:
        scram_record(text)
    assert told in str(refused.value)
    assert "hush" not in str(refused.value) or text == "hush"
