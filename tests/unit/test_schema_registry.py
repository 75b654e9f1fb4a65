"""The schema registry's client against a small registry over HTTP: references, tokens, trouble."""

import http.server
import json
import threading

import pyarrow as pa
import pytest

from kafkad.values import schema_registry
from kafkad.values.avro_schema import SchemaError
from kafkad.values.decoder import portable_schema, value_decoder
from kafkad.values.schema_registry import RegistryError, SchemaRegistry, UnknownSchema

MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "shop",
    "fields": [{"name": "cents", "type": "long"}],
}
LINE = {
    "type": "record",
    "name": "Line",
    "namespace": "shop",
    "fields": [{"name": "price", "type": "Money"}, {"name": "n", "type": "int"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "line", "type": "shop.Line"}, {"name": "total", "type": "shop.Money"}],
}
TO_MONEY = {"name": "shop.Money", "subject": "money", "version": 1}
ANSWERS = {
    "/schemas/ids/1": {
        "schema": json.dumps(ORDER),
        "references": [{"name": "shop.Line", "subject": "line/value", "version": 3}, TO_MONEY],
    },
    "/subjects/t-value/versions/latest": {
        "schema": json.dumps(ORDER),
        "references": [{"name": "shop.Line", "subject": "line/value", "version": 3}],
    },
    "/subjects/line%2Fvalue/versions/3": {"schema": json.dumps(LINE), "references": [TO_MONEY]},
    "/subjects/money/versions/1": {"schema": json.dumps(MONEY)},
    "/schemas/ids/2": {"schema": json.dumps(ORDER), "references": [{"subject": "gone", "version": 1}]},
    "/schemas/ids/3": {"schema": "{}", "references": [{"subject": "ring", "version": 1}]},
    "/subjects/ring/versions/1": {"schema": "{}", "references": [{"subject": "ring", "version": 1}]},
    "/schemas/ids/4": {"schema": "{}", "references": ["what"]},
    "/schemas/ids/5": {"schema": json.dumps(MONEY)},
    "/schemas/ids/6": ["no object"],
}


@pytest.fixture
def registry(monkeypatch):
    """A server whose `answers` are by path, `script` are status codes to be answered first."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.paths.append(self.path)
            server.authorizations.append(self.headers.get("Authorization"))
            status = server.script.pop(0) if server.script else 200
            if status == "cut":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
                return
            if status == "noise":
                self.wfile.write(b"220 mail.example.com ESMTP\r\n")
                return
            answer = server.answers.get(self.path)
            if status == 200 and answer is None:
                status, answer = 404, server.not_found
            self.send_response(status)
            if status == 302:
                self.send_header("Location", server.elsewhere)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        def log_message(self, *arguments):
            pass

    monkeypatch.setattr(schema_registry, "PAUSE_S", 0.01)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.paths, server.authorizations, server.script, server.answers = [], [], [], dict(ANSWERS)
    server.not_found = {"error_code": 40403, "message": "Schema not found"}
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


VALUE = b"\0\0\0\0\1" + bytes([10, 4, 20])  # cents 5, n 2, cents 10
ROW = [{"line": {"price": {"cents": 5}, "n": 2}, "total": {"cents": 10}}]


def rows(decoder, *values: bytes) -> list[dict]:
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert decoded.reasons == []
    return pa.table(decoded.columns, decoder.schema).to_pylist()


def test_what_a_schema_refers_to_is_fetched_with_it(registry):
    options = {"schema.registry.url": registry.url, "topic": "t"}
    text = portable_schema("confluent-avro", "", options)
    assert registry.paths == [
        "/subjects/t-value/versions/latest",
        "/subjects/line%2Fvalue/versions/3",
        "/subjects/money/versions/1",
    ]
    registry.paths.clear()
    decoder = value_decoder("confluent-avro", text, options)
    assert rows(decoder, VALUE, VALUE) == ROW * 2
    assert registry.paths[0] == "/schemas/ids/1"
    assert len(registry.paths) == 3  # money once, though two need it
    assert rows(value_decoder("avro", text), VALUE[5:]) == ROW


def test_references_that_lead_nowhere(registry):
    client = SchemaRegistry(registry.url)
    with pytest.raises(RegistryError, match="has no version 1 of gone, which a schema refers to"):
        client.schema(2)
    with pytest.raises(RegistryError, match="answered with a strange reference"):
        client.schema(4)
    assert client.schema(3).references == ("{}",)  # a ring ends
    with pytest.raises(RegistryError, match="answered without a schema"):
        client.schema(6)


def test_a_token_or_a_user_is_told_and_not_both(registry):
    SchemaRegistry(registry.url, token="t0ken").schema(5)
    SchemaRegistry(registry.url, user_info="me:secret").schema(5)
    SchemaRegistry(registry.url.replace("//", "//you:p%40ss@")).schema(5)
    assert registry.authorizations == ["Bearer t0ken", "Basic bWU6c2VjcmV0", "Basic eW91OnBAc3M="]
    with pytest.raises(ValueError, match="a user or a bearer token, not both"):
        SchemaRegistry(registry.url, "me:secret", "t0ken")
    with pytest.raises(ValueError, match=r"certificates cannot be read \(/nowhere.pem\)"):
        SchemaRegistry("https://127.0.0.1:1", ca_file="/nowhere.pem")


def test_a_redirect_does_not_get_the_password(registry):
    registry.script, registry.elsewhere = [302], f"{registry.url}/schemas/ids/5"
    assert json.loads(SchemaRegistry(registry.url, "me:secret").schema(5).text) == MONEY
    assert registry.authorizations == ["Basic bWU6c2VjcmV0", None]


@pytest.mark.parametrize("trouble", [503, 500, 429, "cut", "noise"])
def test_trouble_that_passes_is_waited_out(registry, trouble):
    registry.script = [trouble, trouble]
    assert json.loads(SchemaRegistry(registry.url).schema(5).text) == MONEY
    assert len(registry.paths) == 3


@pytest.mark.parametrize("trouble", [503, 429, "cut", "noise"])
def test_trouble_that_stays_is_one_sentence(registry, trouble):
    registry.script = [trouble] * 9
    with pytest.raises(RegistryError, match=r"the schema registry http://127.0.0.1:\d+ cannot be asked: \w+"):
        SchemaRegistry(registry.url).schema(5)
    assert len(registry.paths) == schema_registry.ATTEMPTS


def test_a_registry_that_is_down_and_one_that_is_not(registry):
    with pytest.raises(RegistryError, match=r"127.0.0.1:1 cannot be asked: .*refused"):
        SchemaRegistry("http://127.0.0.1:1").schema(5)
    assert json.loads(SchemaRegistry(f"http://127.0.0.1:1,{registry.url}").schema(5).text) == MONEY


@pytest.mark.parametrize("page", [b"<html>404 Not Found</html>", b"{}", b"[" * 100_000, b""])
def test_a_page_that_is_not_there_does_not_make_every_record_bad(registry, page):
    """A wrong address answers 404 as well, but not as a registry does."""
    registry.not_found = page
    with pytest.raises(RegistryError, match="is no schema registry: HTTP 404"):
        SchemaRegistry(f"{registry.url}/wrong").schema(5)


def test_an_unknown_id_is_asked_for_again_later_and_a_known_one_never(registry, monkeypatch):
    client = SchemaRegistry(registry.url)
    for _ in range(3):
        with pytest.raises(UnknownSchema, match="schema id 9 is not in the registry"):
            client.schema(9)
    assert registry.paths == ["/schemas/ids/9"]
    registry.answers["/schemas/ids/9"] = {"schema": json.dumps(MONEY)}
    monkeypatch.setattr(schema_registry, "UNKNOWN_S", 0.0)
    assert [client.schema(9).text for _ in range(2)] == [json.dumps(MONEY)] * 2
    assert len(registry.paths) == 2


def test_ids_that_strangers_make_up_do_not_pile_up(registry, monkeypatch):
    monkeypatch.setattr(schema_registry, "UNKNOWN_COUNT_MAX", 50)
    options = {"schema.registry.url": registry.url}
    decoder = value_decoder("confluent-avro", json.dumps(MONEY), options)
    made_up = [b"\0" + (1000 + i).to_bytes(4, "big") for i in range(1100)]
    decoded = decoder.decode(pa.array([*made_up, b"\0\0\0\0\5\2", *made_up[:3]]))
    assert len(decoded.bad_rows) == 1103
    assert decoded.columns[0].to_pylist()[1100] == 1
    for i, reason in zip([*range(1100), 0, 1, 2], decoded.reasons, strict=True):
        assert reason.startswith(f"schema id {1000 + i} is not in the registry")
    decoded = decoder.decode(pa.array([*made_up[500:510], b"\0\0\0\0\5\2"]))
    assert [reason[:14] for reason in decoded.reasons] == [f"schema id {i}" for i in range(1500, 1510)]
    client = schema_registry.registry(registry.url, "", "", "", "", "")
    assert len(client.unknown) <= 50


def test_a_schema_of_another_kind_is_a_sentence(registry):
    registry.answers["/subjects/p-value/versions/latest"] = {
        "schema": "message P {}",
        "schemaType": "PROTOBUF",
    }
    with pytest.raises(SchemaError, match="one of PROTOBUF, not of Avro"):
        portable_schema("confluent-avro", "", {"schema.registry.url": registry.url, "topic": "p"})
