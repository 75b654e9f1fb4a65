"""An OAuth provider for the tests: its keys at /keys and tokens at /token, on a server of its own.

    with Provider(certificate) as provider:
        provider.token(sub="anna")              signed by its first key
        provider.keys_url, provider.token_url

`certificate` is a PEM file of key and chain; without one it speaks plain http."""

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

ISSUER = "https://issuer.test"
AUDIENCE = "kafka"


def encoded(data: bytes | dict) -> str:
    if isinstance(data, dict):
        data = json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int, size: int = 0) -> str:
    return encoded(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


class RsaKey:
    def __init__(self, kid: str | None = None, algorithm: str = "RS256", bits: int = 2048) -> None:
        self.kid, self.algorithm = kid, algorithm
        self.private = rsa.generate_private_key(65537, bits)

    def public(self) -> dict[str, Any]:
        numbers = self.private.public_key().public_numbers()
        own = {} if self.kid is None else {"kid": self.kid}
        return {"kty": "RSA", "use": "sig", "n": number(numbers.n), "e": number(numbers.e), **own}

    def sign(self, data: bytes) -> bytes:
        digest = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}[self.algorithm[2:]]
        padded = padding.PKCS1v15()
        if self.algorithm.startswith("PS"):
            padded = padding.PSS(padding.MGF1(digest), digest.digest_size)
        return self.private.sign(data, padded, digest)


class EllipticKey:
    CURVES: ClassVar = {
        "ES256": (ec.SECP256R1(), "P-256", 32, hashes.SHA256()),
        "ES384": (ec.SECP384R1(), "P-384", 48, hashes.SHA384()),
        "ES512": (ec.SECP521R1(), "P-521", 66, hashes.SHA512()),
    }

    def __init__(self, kid: str | None = None, algorithm: str = "ES256") -> None:
        self.kid, self.algorithm = kid, algorithm
        self.curve, self.name, self.size, self.digest = self.CURVES[algorithm]
        self.private = ec.generate_private_key(self.curve)

    def public(self) -> dict[str, Any]:
        numbers = self.private.public_key().public_numbers()
        x, y = number(numbers.x, self.size), number(numbers.y, self.size)
        own = {} if self.kid is None else {"kid": self.kid}
        return {"kty": "EC", "crv": self.name, "x": x, "y": y, **own}

    def sign(self, data: bytes) -> bytes:
        r, s = utils.decode_dss_signature(self.private.sign(data, ec.ECDSA(self.digest)))
        return r.to_bytes(self.size, "big") + s.to_bytes(self.size, "big")


class EdwardsKey:
    def __init__(self, kid: str | None = None) -> None:
        self.kid, self.algorithm = kid, "EdDSA"
        self.private = ed25519.Ed25519PrivateKey.generate()

    def public(self) -> dict[str, Any]:
        x = encoded(self.private.public_key().public_bytes_raw())
        return {"kty": "OKP", "crv": "Ed25519", "x": x, **({} if self.kid is None else {"kid": self.kid})}

    def sign(self, data: bytes) -> bytes:
        return self.private.sign(data)


def signed(key: Any, claims: dict[str, Any], **header: Any) -> str:
    """A token. A header of None is left out."""
    head = {"alg": key.algorithm, "typ": "JWT", "kid": key.kid} | header
    text = f"{encoded({k: v for k, v in head.items() if v is not None})}.{encoded(claims)}"
    return f"{text}.{encoded(key.sign(text.encode()))}"


def claims(**more: Any) -> dict[str, Any]:
    """Those that a broker of the tests wants. One of None is left out."""
    now = int(time.time())
    found = {"sub": "anna", "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 3600} | more
    return {name: value for name, value in found.items() if value is not None}


class Provider:
    CLIENTS: ClassVar = {"anna": "anna-secret", "bert": "bert-secret"}

    def __init__(self, certificate: Path | None = None) -> None:
        self.keys: list[Any] = [RsaKey("first"), EllipticKey("second")]
        self.asked: list[str] = []  # paths
        self.answers: list[tuple[int, bytes]] = []  # instead of its own, in turn
        self.lifetime_s = 3600
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(*provider.answer(self.path, None, None))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                self.answer(*provider.answer(self.path, self.headers.get("Authorization"), body))

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", body.decode())
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *told: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
            self.scheme = "https"
        self.url = f"{self.scheme}://127.0.0.1:{self.server.server_address[1]}"
        self.keys_url, self.token_url = f"{self.url}/keys", f"{self.url}/token"

    def __enter__(self) -> "Provider":
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *trouble: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path: str, authorization: str | None, body: str | None) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.answers:
            return self.answers.pop(0)
        if path == "/keys":
            return 200, self.key_set()
        if path != "/token" or body is None or authorization is None:
            return 404, b'{"error":"not_found"}'
        client, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if self.CLIENTS.get(client) != secret:
            return 401, b'{"error":"invalid_client","error_description":"who is that?"}'
        asked = parse_qs(body)
        if asked.get("grant_type") != ["client_credentials"]:
            return 400, b'{"error":"unsupported_grant_type"}'
        scope = {"scope": asked["scope"][0]} if "scope" in asked else {}
        token = self.token(sub=client, exp=int(time.time()) + self.lifetime_s, **scope)
        return 200, json.dumps({"access_token": token, "token_type": "Bearer"}).encode()

    def key_set(self) -> bytes:
        return json.dumps({"keys": [key.public() for key in self.keys]}).encode()

    def token(self, **more: Any) -> str:
        return signed(self.keys[0], claims(**more))
