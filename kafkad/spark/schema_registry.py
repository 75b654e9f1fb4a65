"""A client of Confluent's schema registry: the schema of an id, and the newest of a subject.

Schemas never change, so each is asked for once a process. An id that the registry does not know makes the
values with it bad; a registry that does not answer is a failure of the job, because the same values are
good again as soon as it does. Its REST interface:
https://docs.confluent.io/platform/current/schema-registry/develop/api.html"""

from __future__ import annotations

import base64
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


class RegistryError(RuntimeError):
    """The registry cannot be asked; the message names it, without the password."""


class UnknownSchema(LookupError):
    """The registry has no such id or subject."""


class Registered(NamedTuple):
    type: str  # AVRO | PROTOBUF | JSON
    text: str
    has_references: bool


class SchemaRegistry:
    """`urls`: one or more, by commas, tried in order. `user_info`: user:password, if it asks for them."""

    def __init__(self, urls: str, user_info: str = "", ca_file: str = ""):
        self.urls = [url.strip().rstrip("/") for url in urls.split(",") if url.strip()]
        if not self.urls or any(not url.startswith(("http://", "https://")) for url in self.urls):
            raise ValueError(f"schema.registry.url is an http or https address, not {self.shown(urls)!r}")
        self.user_info = user_info
        self.context = ssl.create_default_context(cafile=ca_file or None)
        self.known: dict[int, Registered | UnknownSchema] = {}
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
            if found is None:
                try:
                    found = self.registered(self.get(f"/schemas/ids/{id}"))
                except UnknownSchema:
                    found = UnknownSchema(f"schema id {id} is not in the registry {self.shown(self.urls[0])}")
                self.known[id] = found
        if isinstance(found, UnknownSchema):
            raise found
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
        if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
            raise RegistryError(f"the schema registry {self.shown(self.urls[0])} answered without a schema")
        return Registered(answer.get("schemaType", "AVRO"), answer["schema"], bool(answer.get("references")))

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
                        if error.code == 404:
                            raise UnknownSchema(path) from None
                        why = f"HTTP {error.code} {error.reason}"
                    if error.code < 500:
                        raise RegistryError(f"the schema registry {self.shown(url)} refuses: {why}") from None
                except (OSError, ValueError) as error:
                    why = getattr(error, "reason", error)
        urls = ", ".join(map(self.shown, self.urls))
        raise RegistryError(f"the schema registry {urls} cannot be asked: {why}")

    def get_once(self, url: str) -> Any:
        parts = urllib.parse.urlsplit(url)
        user_info = self.user_info
        if "@" in parts.netloc:
            given, _, host = parts.netloc.rpartition("@")
            user_info = user_info or urllib.parse.unquote(given)
            url = urllib.parse.urlunsplit(parts._replace(netloc=host))
        request = urllib.request.Request(url, headers={"Accept": "application/vnd.schemaregistry.v1+json"})
        if user_info:
            request.add_header("Authorization", "Basic " + base64.b64encode(user_info.encode()).decode())
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self.context) as response:
            return json.loads(response.read(RESPONSE_BYTES_MAX))


registries: dict[tuple[str, str, str], SchemaRegistry] = {}
registries_lock = threading.Lock()


def registry(urls: str, user_info: str = "", ca_file: str = "") -> SchemaRegistry:
    """The process's client of that registry, with what it has learnt."""
    with registries_lock:
        key = (urls, user_info, ca_file)
        if key not in registries:
            registries[key] = SchemaRegistry(*key)
        return registries[key]
