"""`kafkad certs`: create a certificate authority and certificates for development."""

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any, Final

import click

from kafkad.cli.output import CONTEXT, Refused, say

DAYS: Final = 825  # the most that Apple's clients accept from a private authority
PASSWORD: Final = "changeit"  # Java's own default
PASSWORD_MIN: Final = 6
HOSTS: Final = ("localhost", "127.0.0.1", "::1")


@click.command(context_settings=CONTEXT)
@click.argument("directory", default="certs", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name or address that clients use for the broker; may be repeated. localhost is always included.",
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="NAME",
    help="Create a certificate for this client; may be repeated.",
)
@click.option("--password", default=PASSWORD, show_default=True, help="Password of the PKCS12 stores.")
@click.option(
    "--days",
    type=click.IntRange(1, 9000),
    default=DAYS,
    show_default=True,
    help="How long new certificates are valid.",
)
@click.option("--renew", is_flag=True, help="Replace existing certificates. The authority is kept.")
def command(
    directory: Path, hosts: tuple[str, ...], clients: tuple[str, ...], password: str, days: int, renew: bool
) -> None:
    """Create TLS certificates for a broker and its clients, for development.

    \b
      kafkad certs                                        ./certs, for a broker on localhost
      kafkad certs --host kafka.example.com --client anna
      kafkad certs --client bert                          one more client, by the same authority
      kafkad certs --renew                                a new certificate for the broker

    The directory then has these files. Only you can read the keys and key stores.

    \b
      ca.pem, ca.key, ca.p12      the authority: clients trust ca.pem, ca.key signs, ca.p12 is for Java
      broker.pem, broker.p12      the broker's key and certificate: ssl.keystore.location
      client-NAME.pem, .p12       a client's key and certificate
      broker.properties           lines for a server.properties
      client.properties           lines for clients: kafkad's --command-config, Java
      client-NAME.properties      the same, with the client's certificate

    Existing certificates are kept unless you use --renew. The authority is always kept.

    With security.protocol=SSL, a client that trusts ca.pem knows that it talks to your broker, and the
    traffic is encrypted. The broker identifies a client by a password (SASL_SSL) or by the client's
    certificate (ssl.client.auth=required). docs/security.md explains both.

    Anyone who has ca.key can impersonate your broker. In production, use your organisation's authority.
    """
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise Refused("kafkad certs needs the package cryptography: pip install 'kafkad[certs]'")
    for name in clients:
        if not name or set(name) & set('/\\\0,=+"<>;') or name != name.strip():
            raise click.BadParameter(f"{name!r} cannot be a client's name", param_hint="--client")
    if len(password) < PASSWORD_MIN:
        raise click.BadParameter(f"Java requires at least {PASSWORD_MIN} characters", param_hint="--password")
    made = Certificates(directory, password, days, renew)
    made.authority()
    made.broker(hosts)
    for name in clients:
        made.client(name)
    for path, text in made.properties(clients):
        click.echo(f"# {path}\n{text}")
    say(
        f"Created {', '.join(made.written)} in {directory}."
        if made.written
        else f"Nothing to do: {directory} has all files already."
    )


class Certificates:
    """The certificates in one directory. Existing files are kept unless `renew` is set."""

    def __init__(self, directory: Path, password: str, days: int, renew: bool) -> None:
        from cryptography import x509

        self._x509 = x509
        self._at = directory
        self._password = password.encode()
        self._until = datetime.timedelta(days=days)
        self._renew = renew
        self.written: list[str] = []

    def authority(self) -> None:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, pkcs12

        key, certificate = self._at / "ca.key", self._at / "ca.pem"
        if key.exists() != certificate.exists():
            raise Refused(f"{self._at} has one of ca.key and ca.pem; an authority needs both")
        if key.exists():
            try:
                self._ca_key: Any = load_pem_private_key(key.read_bytes(), None)
                self._ca = self._x509.load_pem_x509_certificate(certificate.read_bytes())
            except (ValueError, TypeError) as wrong:
                raise Refused(f"the authority in {self._at} cannot be read: {wrong}")
            if self._ca_key.public_key() != self._ca.public_key():
                raise Refused(f"{key} is not the key of {certificate}")
        else:
            self._at.mkdir(parents=True, exist_ok=True)
            self._ca_key = self._new_key()
            self._ca = self._signed("kafkad development CA", self._ca_key, [], is_authority=True)
            self._write("ca.key", self._key_text(self._ca_key), secret=True)
            self._write("ca.pem", self._text(self._ca), secret=False)
        if not (self._at / "ca.p12").exists():
            trusted = [pkcs12.PKCS12Certificate(self._ca, b"ca")]
            store = pkcs12.serialize_java_truststore(trusted, self._encryption())
            self._write("ca.p12", store, secret=False)

    def broker(self, hosts: tuple[str, ...]) -> None:
        """Create the broker's certificate. A renewed one also has the old names."""
        path, known = self._at / "broker.pem", []
        if path.exists():
            x509 = self._x509
            try:
                old = x509.load_pem_x509_certificates(path.read_bytes())[0]
                names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            except (ValueError, x509.ExtensionNotFound) as wrong:
                raise Refused(f"{path} cannot be read: {wrong}")
            known = [str(name.value) for name in names]
            missing = [host for host in hosts if str(self._host(host).value) not in known]
            if missing and not self._renew:
                raise Refused(f"{path} is not valid for {', '.join(missing)}; --renew replaces it")
        every = [*dict.fromkeys((*hosts, *known, *HOSTS))]
        self._leaf("broker", every[0], every)

    def client(self, name: str) -> None:
        self._leaf(f"client-{name}", name, [])

    def _leaf(self, file: str, subject: str, hosts: list[str]) -> None:
        from cryptography.hazmat.primitives.serialization import pkcs12

        if (self._at / f"{file}.pem").exists() and not self._renew:
            return
        key = self._new_key()
        certificate = self._signed(subject, key, hosts)
        self._write(
            f"{file}.pem", self._key_text(key) + self._text(certificate) + self._text(self._ca), secret=True
        )
        store = pkcs12.serialize_key_and_certificates(
            subject.encode(), key, certificate, [self._ca], self._encryption()
        )
        self._write(f"{file}.p12", store, secret=True)

    def properties(self, clients: tuple[str, ...]) -> list[tuple[Path, str]]:
        """Write the properties files, and return (file, text) of each."""
        at = self._at.resolve()
        trust = f"ssl.truststore.type=PEM\nssl.truststore.location={at / 'ca.pem'}\n"
        broker = (
            "# in server.properties, beside listeners=SSL://localhost:9093 or SASL_SSL://localhost:9093\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={at / 'broker.pem'}\n{trust}"
            "# to accept only clients with a certificate:\n#ssl.client.auth=required\n"
        )
        client = (
            f"# for clients: --command-config of kafkad and of Kafka's tools\nsecurity.protocol=SSL\n{trust}"
        )
        found = [("broker.properties", broker), ("client.properties", client)]
        for name in clients:
            own = f"ssl.keystore.type=PEM\nssl.keystore.location={at / f'client-{name}.pem'}\n"
            found.append((f"client-{name}.properties", client + own))
        for file, text in found:
            if not (at / file).exists() or (at / file).read_text() != text:
                self._write(file, text.encode(), secret=False)
        return [(self._at / file, text) for file, text in found]

    def _signed(self, subject: str, key: Any, hosts: list[str], is_authority: bool = False) -> Any:
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        x509 = self._x509
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        now = datetime.datetime.now(datetime.UTC)
        signer = self._ca_key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name if is_authority else self._ca.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
            .not_valid_after(now + self._until)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority,
                    content_commitment=False, key_encipherment=False, data_encipherment=False,
                    key_agreement=False, encipher_only=False, decipher_only=False,
                ), critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
        )  # fmt: skip
        if not is_authority:
            usages = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            names = [self._host(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._ca_key, hashes.SHA256())

    def _host(self, host: str) -> Any:
        try:
            return self._x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            pass
        try:
            return self._x509.DNSName(host)
        except ValueError as wrong:
            raise click.BadParameter(f"{host!r}: {wrong}", param_hint="--host")

    @staticmethod
    def _new_key() -> Any:
        from cryptography.hazmat.primitives.asymmetric import ec

        return ec.generate_private_key(ec.SECP256R1())

    @staticmethod
    def _key_text(key: Any) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    @staticmethod
    def _text(certificate: Any) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding

        return bytes(certificate.public_bytes(Encoding.PEM))

    def _encryption(self) -> Any:
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption

        return BestAvailableEncryption(self._password)

    def _write(self, name: str, data: bytes, *, secret: bool) -> None:
        """Write a file atomically: a broker that reads it meanwhile gets the old or the new one."""
        path = self._at / name
        partial = path.with_name(f".{name}.{os.getpid()}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(partial, path)
        self.written.append(name)
