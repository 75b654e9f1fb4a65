"""Names of certificates and PEM stores beside Java's: the same bytes have the same name, and the same text is
a store or is refused."""

from random import Random

import pytest

from kafkad._native.serving.tls import TlsContext
from kafkad._native.serving.tls_keys import TlsError
from kafkad.security.certificates import KEYWORDS, name_of, subject_of
from kafkad.security.client_tls import tls_context
from kafkad.security.stores import WrongStore, chain_of, key_of, key_store_of
from tests.certificates import PASSWORD, keytool, openssl
from tests.jvm import NEWEST
from tests.reference.kafka_messages import JvmMessages

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def gateway():
    with JvmMessages(NEWEST) as jvm:
        yield jvm.gateway


# -- names -------------------------------------------------------------------------------------------------

IDENTIFIERS = (*KEYWORDS, "1.2.840.113549.1.9.1", "2.5.4.5", "2.5.4.12", "2.999.3")
STRINGS = {12: "utf-8", 19: "ascii", 20: "latin-1", 22: "ascii", 26: "ascii", 27: "ascii", 28: "utf-32-be",
           30: "utf-16-be"}  # fmt: skip
OTHERS = {1: b"\x01", 2: b"\x01", 4: b"x", 5: b"", 23: b"260101000000Z"}
LETTERS = "aB1 ,=+<>#;\"\\\r\n\t\0é\u00a0\u3000😀\x7f*@_'()./:?-  "


def der(tag: int, body: bytes) -> bytes:
    size = len(body)
    return bytes([tag, size] if size < 128 else [tag, 0x82, *size.to_bytes(2, "big")]) + body


def identifier(text: str) -> bytes:
    first, second, *more = map(int, text.split("."))
    found = b""
    for number in (first * 40 + second, *more):
        part = [number & 0x7F]
        while number := number >> 7:
            part.insert(0, 0x80 | number & 0x7F)
        found += bytes(part)
    return der(6, found)


def value(random: Random) -> bytes:
    tag = random.choice((*STRINGS, 12, 12, 19, 19, 30, *OTHERS))
    if tag in OTHERS:
        return der(tag, OTHERS[tag])
    text = "".join(random.choice(LETTERS) for _ in range(random.randrange(7)))
    data = text.encode(STRINGS[tag], "ignore")
    return der(tag, data + random.randbytes(3) if random.random() < 0.1 else data)


def name(random: Random) -> bytes:
    """Of up to three parts, each with one attribute or several."""
    parts = []
    for _ in range(random.randrange(4)):
        attributes = [
            der(0x30, identifier(random.choice(IDENTIFIERS)) + value(random))
            for _ in range(random.choice((1, 1, 2, 3)))
        ]
        if random.random() < 0.5:
            attributes.sort()
        parts.append(der(0x31, b"".join(attributes)))
    return b"".join(parts)


def test_names_are_printed_as_in_java(gateway):
    """The principal of a client, which ACLs and super.users name."""
    random = Random(19)
    java_name = gateway.jvm.javax.security.auth.x500.X500Principal
    for _ in range(1500):
        names = name(random)
        assert name_of(names) == java_name(der(0x30, names)).getName(), names.hex()


# -- PEM ---------------------------------------------------------------------------------------------------

CURVE = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """root.pem and stranger.pem, inter.pem, which root signed, and leaf.pem, which inter signed, each with a
    .key; protected.key: that of leaf, with a password, in a way that Java knows."""
    here = tmp_path_factory.mktemp("pem")
    for own in ("root", "stranger"):
        openssl(
            here, "req", "-newkey", "rsa:2048", "-nodes", "-x509", "-subj", f"/CN={own}", "-keyout",
            f"{own}.key", "-out", f"{own}.pem",
        )  # fmt: skip
    for own, authority, kind in (("inter", "root", CURVE), ("leaf", "inter", ("rsa:2048",))):
        openssl(
            here, "req", "-newkey", *kind, "-nodes", "-subj", f"/O=A  b/CN={own}", "-keyout", f"{own}.key",
            "-out", f"{own}.csr",
        )  # fmt: skip
        (here / "extensions").write_text(f"basicConstraints=CA:{'TRUE' if own == 'inter' else 'FALSE'}")
        openssl(
            here, "x509", "-req", "-in", f"{own}.csr", "-CA", f"{authority}.pem", "-CAkey",
            f"{authority}.key", "-CAcreateserial", "-extfile", "extensions", "-out", f"{own}.pem",
        )  # fmt: skip
    openssl(
        here, "pkcs8", "-topk8", "-in", "leaf.key", "-v1", "PBE-SHA1-3DES", "-passout", "pass:secret", "-out",
        "protected.key",
    )  # fmt: skip
    openssl(here, "rsa", "-in", "leaf.key", "-traditional", "-out", "pkcs1.key")
    return here


def on_one_line(text: str) -> str:
    """As a value of the properties whose lines end with a blank and a backslash."""
    return " ".join(text.split("\n")).strip()


def with_headers(text: str) -> str:
    return text.replace("-----\n", "-----\nComment: one\nAnother-One: two\n\n", 1)


FORMS = {
    "as openssl writes it": str,
    "on one line": on_one_line,
    "without breaks": lambda text: "".join(text.split("\n")),
    "without the last newline": str.strip,
    "with CR": lambda text: text.replace("\n", "\r\n"),
    "indented": lambda text: "\n".join(f"  {line}" for line in text.split("\n")),
    "with blanks at the ends": lambda text: text.replace("\n", " \t\n"),
    "with an empty line": lambda text: text.replace("-----\n", "-----\n\n", 1),
    "with headers": with_headers,
    "with attributes before": lambda text: f"Bag Attributes\n    localKeyID: 01\nsubject=CN = x\n{text}",
    "with three dashes": lambda text: text.replace("-----", "---"),
    "with a byte order mark": lambda text: f"\ufeff{text}",
    "with a letter that is none": lambda text: text.replace("MII", "M!I", 1),
    "empty": lambda text: "",
}
# certificates, key, password
STORES = {
    "its issuers": (("leaf", "inter", "root"), "leaf", None),
    "not all of its issuers": (("leaf", "inter"), "leaf", None),
    "a gap": (("leaf", "root"), "leaf", None),
    "out of order": (("leaf", "root", "inter"), "leaf", None),
    "the issuer first": (("inter", "leaf"), "leaf", None),
    "twice": (("leaf", "leaf"), "leaf", None),
    "the root twice": (("leaf", "inter", "root", "root"), "leaf", None),
    "a password": (("leaf",), "protected", "secret"),
    "no password": (("leaf",), "protected", None),
    "an empty password": (("leaf",), "protected", ""),
    "another password": (("leaf",), "protected", "other"),
    "a key of PKCS#1": (("leaf",), "pkcs1", None),
    "a key of curves": (("inter",), "inter", None),
}


class Stores:
    """Whether each of them takes a key and its certificates: how many certificates, or "refused"."""

    def __init__(self, gateway) -> None:
        self.jvm = gateway.jvm

    def kafka(self, chain: str, key: str, password: str | None) -> object:
        kafka = self.jvm.org.apache.kafka.common
        secret = kafka.config.types.Password
        given = self.jvm.java.util.HashMap()
        for option, found in (
            ("ssl.protocol", "TLSv1.3"),
            ("ssl.cipher.suites", self.jvm.java.util.ArrayList()),
            ("ssl.enabled.protocols", self.jvm.java.util.ArrayList()),
            ("ssl.client.auth", "none"),
            ("ssl.keystore.type", "PEM"),
            ("ssl.keystore.key", secret(key)),
            ("ssl.keystore.certificate.chain", secret(chain)),
            ("ssl.key.password", None if password is None else secret(password)),
        ):
            given.put(option, found)
        factory = kafka.security.ssl.DefaultSslEngineFactory()
        try:
            factory.configure(given)
        except Exception as refused:
            assert "InvalidConfigurationException" in str(refused), refused
            return "refused"
        return len(factory.keystore().getCertificateChain("kafka"))

    def kafkad(self, chain: str, key: str, password: str | None) -> object:
        try:
            certificates = chain_of(chain)
            TlsContext(key=key_of(key, password), chain=certificates)
        except (WrongStore, TlsError):
            return "refused"
        return len(certificates)


def test_pem_is_read_as_kafka_reads_it(gateway, here):
    stores = Stores(gateway)
    leaf, key = (here / "leaf.pem").read_text(), (here / "leaf.key").read_text()
    protected = (here / "protected.key").read_text()
    cells = {}
    for form, change in FORMS.items():
        cells[f"certificate {form}"] = (change(leaf), key, None)
        cells[f"key {form}"] = (leaf, change(key), None)
        cells[f"protected key {form}"] = (leaf, change(protected), "secret")
    for label in ("X509", "TRUSTED"):
        cells[label] = (leaf.replace("CERTIFICATE", f"{label} CERTIFICATE"), key, None)
    for number, tail in enumerate(
        (key, protected, "-----BEGIN PRIVATE KEY-----\nxx==\n-----END PRIVATE KEY-----\n")
    ):
        cells[f"two keys {number}"] = (leaf, key + tail, None)
    for store, (certificates, own, password) in STORES.items():
        chain = "".join((here / f"{each}.pem").read_text() for each in certificates)
        cells[store] = (chain, (here / f"{own}.key").read_text(), password)
    told = {cell: (stores.kafka(*given), stores.kafkad(*given)) for cell, given in cells.items()}
    assert {cell: both for cell, both in told.items() if both[0] != both[1]} == {}
    assert {1, 2, 3, "refused"} <= {ours for _, ours in told.values()}


def test_a_client_reads_pem_on_one_line(here):
    options = {
        name: on_one_line((here / file).read_text())
        for name, file in (
            ("ssl.truststore.certificates", "root.pem"),
            ("ssl.keystore.certificate.chain", "leaf.pem"),
            ("ssl.keystore.key", "protected.key"),
        )
    }
    context = tls_context({**options, "ssl.key.password": "secret"})
    assert [dict(it[0] for it in each["subject"])["commonName"] for each in context.get_ca_certs()] == [
        "root"
    ]


# -- several keys in a store -------------------------------------------------------------------------------

SEVERAL = {
    "two": ("b", "a"),
    "five": ("broker1", "localhost", "kafka", "server", "old"),
    "many": tuple(f"key-{number}" for number in range(14)),  # Java's table of them is larger
}


def java_chooses(gateway, path, kind: str) -> str:
    """The alias whose key a listener of JVM Kafka shows. By reflection: Java's classes are not public."""
    jvm, reflected = gateway.jvm, gateway.jvm.java.lang.Class.forName

    def call(of: str, method: str, target: object, *arguments: tuple[str, object]) -> object:
        classes = gateway.new_array(jvm.java.lang.Class, len(arguments))
        objects = gateway.new_array(jvm.java.lang.Object, len(arguments))
        for place, (name, argument) in enumerate(arguments):
            classes[place], objects[place] = reflected(name), argument
        return reflected(of).getMethod(method, classes).invoke(target, objects)

    secret = gateway.new_array(jvm.char, len(PASSWORD))
    for place, letter in enumerate(PASSWORD):
        secret[place] = letter
    file = jvm.java.io.File(str(path))
    store = call("java.security.KeyStore", "getInstance", None, ("java.io.File", file), ("[C", secret))
    assert store.getType().upper() == kind
    factory = jvm.javax.net.ssl.KeyManagerFactory.getInstance("SunX509")  # ssl.keymanager.algorithm
    arguments = ("java.security.KeyStore", store), ("[C", secret)
    call("javax.net.ssl.KeyManagerFactory", "init", factory, *arguments)
    return call(
        "javax.net.ssl.X509KeyManager",
        "chooseServerAlias",
        factory.getKeyManagers()[0],
        ("java.lang.String", "EC"),
        ("[Ljava.security.Principal;", None),
        ("java.net.Socket", None),
    )


@pytest.mark.parametrize("name", SEVERAL)
def test_of_several_keys_in_jks_kafkas_is_shown(gateway, tmp_path, name):
    for alias in SEVERAL[name]:
        keytool(
            tmp_path, "-genkeypair", "-alias", alias, "-keyalg", "EC", "-dname", f"CN={alias}", "-keystore",
            "keys.jks", "-storetype", "JKS", "-storepass", PASSWORD, "-keypass", PASSWORD,
        )  # fmt: skip
    path = tmp_path / "keys.jks"
    (own,) = key_store_of(path.read_bytes(), PASSWORD).chain
    assert subject_of(own) == f"CN={java_chooses(gateway, path, 'JKS')}"


def test_only_the_issuers_of_a_key_in_pkcs12_are_shown(here):
    """Not what else is in the store, and in the order of their signatures."""
    others = here / "others.pem"
    others.write_text("".join((here / f"{name}.pem").read_text() for name in ("root", "stranger", "inter")))
    openssl(
        here, "pkcs12", "-export", "-in", "leaf.pem", "-inkey", "leaf.key", "-certfile", "others.pem", "-out",
        "leaf.p12", "-passout", f"pass:{PASSWORD}",
    )  # fmt: skip
    store = key_store_of((here / "leaf.p12").read_bytes(), PASSWORD)
    assert [subject_of(each) for each in store.chain] == ["CN=leaf,O=A  b", "CN=inter,O=A  b", "CN=root"]
