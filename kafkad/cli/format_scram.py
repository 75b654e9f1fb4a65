"""`kafkad format --add-scram`: users that log in with SCRAM from the first start on (KIP-900).

    SCRAM-SHA-256=[name=alice,password=alice-secret]
    SCRAM-SHA-512=[name=alice,iterations=8192,salt=BASE64,saltedpassword=BASE64]

So brokers can log in to each other before anybody could make a user. The records stand in
bootstrap.checkpoint, and the first leader writes them to the metadata log. (Kafka: ScramParser.)"""

import base64
import hashlib
import os
import re
from typing import Final

from kafkad.protocol import messages
from kafkad.security.mechanisms import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SCRAM_HASHES,
    SCRAM_TYPES,
    credential_from,
)

ARGUMENT: Final = re.compile(r"(?P<mechanism>[^=]+)=\[(?P<options>.*)\]", re.DOTALL)
OPTIONS: Final = ("name", "salt", "iterations", "password", "saltedpassword")
SINCE: Final = 11  # metadata.version 3.5-IV2
SALT_BYTES: Final = 24


def scram_record(text: str) -> messages.UserScramCredentialRecord:
    """Raises ValueError."""
    found = ARGUMENT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"--add-scram takes MECHANISM=[name=...,password=...], not {_named(text)}")
    mechanism = found["mechanism"].strip()
    if mechanism not in SCRAM_TYPES:
        raise ValueError(
            f"The add-scram mechanism {mechanism} is not supported; {' and '.join(SCRAM_TYPES)} are"
        )
    options: dict[str, str] = {}
    for part in found["options"].split(","):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or key not in OPTIONS or key in options:
            raise ValueError(f"--add-scram {mechanism} has each of {', '.join(OPTIONS)} once at most")
        options[key] = value.strip().strip('"')
    name = options.get("name", "")
    if not name:
        raise ValueError("You must supply 'name' to add-scram")
    if ("password" in options) == ("saltedpassword" in options):
        raise ValueError(
            f"You must supply one of 'password' or 'saltedpassword' to add-scram for user {name}"
        )
    iterations = _iterations(options.get("iterations", str(ITERATIONS_MIN)))
    salt = _base64("salt", options["salt"]) if "salt" in options else os.urandom(SALT_BYTES)
    if "saltedpassword" in options:
        if "salt" not in options:
            raise ValueError(f"You must supply 'salt' with 'saltedpassword' to add-scram for user {name}")
        salted = _base64("saltedpassword", options["saltedpassword"])
    else:
        if not options["password"]:
            raise ValueError(f"The password of user {name} is empty")
        salted = hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], options["password"].encode(), salt, iterations)
    number = SCRAM_TYPES[mechanism]
    made = credential_from(number, salt, salted, iterations)
    return messages.UserScramCredentialRecord(
        name=name,
        mechanism=number,
        salt=made.salt,
        stored_key=made.stored_key,
        server_key=made.server_key,
        iterations=made.iterations,
    )


def _named(text: str) -> str:
    """Without what may be a password."""
    return text.partition("=")[0] + "=..."


def _iterations(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not ITERATIONS_MIN <= int(text) <= ITERATIONS_MAX:
        raise ValueError(f"iterations of add-scram are {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {text}")
    return int(text)


def _base64(key: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"{key} of add-scram is not base64") from None
