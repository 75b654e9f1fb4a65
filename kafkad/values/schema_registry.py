"""A client of Confluent's schema registry: get the schema of an id, and the newest schema of a subject.

Schemas never change, so each is requested once per process. If the registry does not know an id, the values
with it are bad, and the id is requested again after UNKNOWN_S, because its schema may have been registered
meanwhile. If the registry does not answer, or the address is not a registry, the job fails, because the same
values become good as soon as it answers. Schemas that a schema refers to (by subject and version) are
fetched, too.

Its REST interface: https://docs.confluent.io/platform/current/schema-registry/develop/api.html

Passwords and tokens are sent to the registry's own address only, and not to redirect targets."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

TIMEOUT_S = 10.0
ATTEMPTS = 3
PAUSE_S = 0.5  # before the second attempt; then twice as long
RESPONSE_BYTES_MAX = 16 << 20
UNKNOWN_S = 60.0  # after which an id that was not there is asked for again
UNKNOWN_COUNT_MAX = 10_000  # which strangers can make up
REFERENCES_MAX = 200  # of one schema, with those of its references
AGAIN = (408, 425, 429)  # answers besides 5xx that another attempt may better


class RegistryError(RuntimeError):
    """The registry cannot be asked; the message names it, without the password."""


class UnknownSchema(LookupError):
    """The registry has no such id or subject."""


class Registered(NamedTuple):
    type: str  # AVRO | PROTOBUF | JSON
    text: str
    references: tuple[str, ...] = ()  # texts of the schemas it needs, each behind those that it needs itself


class SchemaRegistry:
    """`urls`: one or more, by commas, tried in order. `user_info`: user:password, or `token`: a bearer's, if
    it asks for them. `ca_file`, `certificate_file` and `key_file`: PEM, for https.

    ValueError: an address or a file that cannot be."""

    def __init__(
        self,
        urls: str,
        user_info: str = "",
        token: str = "",
        ca_file: str = "",
        certificate_file: str = "",
        key_file: str = "",
    ):
        self.urls = [url.strip().rstrip("/") for url in urls.split(",") if url.strip()]
        if not self.urls or any(not url.startswith(("http://", "https://")) for url in self.urls):
            raise ValueError(f"schema.registry.url is an http or https address, not {self.shown(urls)!r}")
        if user_info and token:
            raise ValueError("schema registry: set a user or a bearer token, not both")
        self.user_info = user_info
        self.token = token
        try:
            self.context = ssl.create_default_context(cafile=ca_file or None)
            if certificate_file:
                self.context.load_cert_chain(certificate_file, key_file or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (ca_file, certificate_file, key_file) if name)
            raise ValueError(
                f"the schema registry's certificates cannot be read ({files}): {error}"
            ) from None
        self.known: dict[int, Registered] = {}
        self.unknown: dict[int, float] = {}  # id: when it was not there
        self.lock = threading.Lock()

    @staticmethod
    def shown(url: str) -> str:
        """Without what stands before an @."""
        scheme, _, rest = url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}" if rest else url

    def schema(self, id: int) -> Registered:
        """UnknownSchema, RegistryError."""
        with self.lock:
            found = self.known.get(id)
            if found is None and time.monotonic() - self.unknown.get(id, -UNKNOWN_S) >= UNKNOWN_S:
                try:
                    found = self.known[id] = self.registered(self.get(f"/schemas/ids/{id}"))
                    self.unknown.pop(id, None)
                except UnknownSchema:
                    if len(self.unknown) >= UNKNOWN_COUNT_MAX:
                        self.unknown.clear()
                    self.unknown[id] = time.monotonic()
        if found is None:
            raise UnknownSchema(f"schema id {id} is not in the registry {self.shown(self.urls[0])}")
        return found

    def latest(self, subject: str) -> Registered:
        """UnknownSchema, RegistryError. Not remembered: there may be a newer one the next time."""
        try:
            return self.registered(
                self.get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
            )
        except UnknownSchema:
            raise UnknownSchema(f"the registry {self.shown(self.urls[0])} has no subject {subject}") from None

    def registered(self, answer: Any) -> Registered:
        texts: dict[tuple[str, int], str] = {}
        text = self.text_of(answer, texts)
        return Registered(answer.get("schemaType", "AVRO"), text, tuple(texts.values()))

    def text_of(self, answer: Any, texts: dict[tuple[str, int], str]) -> str:
        """The schema's text; those that it refers to come into `texts` first, by subject and version."""
        if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
            raise RegistryError(f"the schema registry {self.shown(self.urls[0])} answered without a schema")
        for one in answer.get("references") or ():
            try:
                subject, version = str(one["subject"]), int(one["version"])
            except (TypeError, KeyError, ValueError):
                where = self.shown(self.urls[0])
                raise RegistryError(
                    f"the schema registry {where} answered with a strange reference"
                ) from None
            self.refer(subject, version, texts)
        return str(answer["schema"])

    def refer(self, subject: str, version: int, texts: dict[tuple[str, int], str]) -> None:
        if (subject, version) in texts:
            return
        if len(texts) >= REFERENCES_MAX:
            raise RegistryError(f"a schema refers to more than {REFERENCES_MAX} others, or to itself")
        texts[subject, version] = ""  # so that a ring ends
        try:
            answer = self.get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}")
        except UnknownSchema:
            where = self.shown(self.urls[0])
            raise RegistryError(
                f"the schema registry {where} has no version {version} of {subject}, which a schema refers to"
            ) from None
        text = self.text_of(answer, texts)
        del texts[subject, version]
        texts[subject, version] = text  # behind its own

    def get(self, path: str) -> Any:
        """The answer's JSON; UnknownSchema for a 404."""
        why: Exception | str = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
            for url in self.urls:
                try:
                    return self.get_once(url + path)
                except urllib.error.HTTPError as error:
                    with error:
                        if error.code == 404 and self.says_not_found(error):
                            raise UnknownSchema(path) from None
                        why = f"HTTP {error.code} {error.reason}"
                    if error.code == 404:
                        raise RegistryError(f"{self.shown(url)} is no schema registry: {why}") from None
                    if error.code < 500 and error.code not in AGAIN:
                        raise RegistryError(f"the schema registry {self.shown(url)} refuses: {why}") from None
                except (OSError, ValueError, http.client.HTTPException, RecursionError) as error:
                    why = str(getattr(error, "reason", error)) or type(error).__name__
        urls = ", ".join(map(self.shown, self.urls))
        raise RegistryError(f"the schema registry {urls} cannot be asked: {why}")

    @staticmethod
    def says_not_found(error: urllib.error.HTTPError) -> bool:
        """Whether a registry says so: whatever else is at a wrong address knows no error_code."""
        try:
            answer = json.loads(error.read(RESPONSE_BYTES_MAX))
        except (OSError, ValueError, http.client.HTTPException, RecursionError):
            return False
        return isinstance(answer, dict) and "error_code" in answer

    def get_once(self, url: str) -> Any:
        parts = urllib.parse.urlsplit(url)
        user_info = self.user_info
        if "@" in parts.netloc:
            given, _, host = parts.netloc.rpartition("@")
            user_info = user_info or urllib.parse.unquote(given)
            url = urllib.parse.urlunsplit(parts._replace(netloc=host))
        request = urllib.request.Request(url, headers={"Accept": "application/vnd.schemaregistry.v1+json"})
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        elif user_info:
            encoded = base64.b64encode(user_info.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {encoded}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self.context) as response:
            return json.loads(response.read(RESPONSE_BYTES_MAX))


registries: dict[tuple[str, ...], SchemaRegistry] = {}
registries_lock = threading.Lock()


def registry(urls: str, *how: str) -> SchemaRegistry:
    """The process's client of that registry (`how` as SchemaRegistry takes it), with what it has learnt."""
    with registries_lock:
        key = (urls, *how)
        if key not in registries:
            registries[key] = SchemaRegistry(*key)
        return registries[key]
