"""What attackers do to TLS and SASL listeners, as functions of a peer (tests/fuzz/hostile_peer.py).

An attack may end by `Ended`, when the broker closes. Those that do all as they should are among them: they
show that an attacker who is let in sees what the others must not see."""

import base64
import random
import struct
import time
from collections.abc import Callable
from typing import Any

from kafkad.client.security import plain_conversation, scram_conversation
from kafkad.protocol import messages
from kafkad.security.jwt import unsecured
from tests.fuzz.hostile_peer import Ended, Peer, World
from tests.tls_wire import KeyUpdates

TLS = ("SSL", "OLD", "MUTUAL", "SASL_SSL")
OPEN = ("SSL", "OLD")  # TLS without a login
SASL = ("SASL_PLAINTEXT", "SASL_SSL")
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ("PLAIN", *HASHES)
FORGED = "FORGED"  # begins a line of the log, if an attacker can write one
HUGE = 600_000  # above sasl.server.max.receive.size
SHORT_SESSION_S = 0.5  # of SCRAM-SHA-512 on SASL_PLAINTEXT
Attack = Callable[[Peer, random.Random], None]


def context_of(peer: Peer, chance: random.Random) -> Any:
    if peer.listener == "MUTUAL":
        peer.trusted = True
        return peer.world.contexts["client"]
    return peer.world.old if peer.listener == "OLD" or chance.random() < 0.3 else None


def record(kind: int, body: bytes, version: int = 0x0303, size: int | None = None) -> bytes:
    return struct.pack(">BHH", kind, version, len(body) if size is None else size) + body


def wrong_record(chance: random.Random) -> bytes:
    """Of a wrong type, version, length or content; or an alert."""
    body = chance.randbytes(chance.choice((0, 1, 2, 40, 3000, 16384)))
    return chance.choice(
        (
            record(chance.randrange(256), body, chance.randrange(1 << 16)),
            record(chance.choice((20, 21, 22, 23)), body),
            record(chance.choice((22, 23)), body, size=chance.choice((0, 1, len(body) + 1, 16641, 65535))),
            record(22, bytes([chance.randrange(30)]) + chance.choice((b"\xff\xff\xff", b"\0\0\0")) + body),
            record(21, bytes([chance.choice((1, 2)), chance.randrange(121)])),
            record(21, b"\1\x64") * 40,
            record(20, b"\1") * 40,
            b"\x80\x2e\1\0\2" + body,  # SSL 2
            b"\x15",
        )
    )


# -- TLS ---------------------------------------------------------------------------------------------------


def whole(peer: Peer, chance: random.Random) -> None:
    """All as it should be, in whatever fragments."""
    peer.trusted = True
    peer.shake(context_of(peer, chance), divided(chance))
    if "SASL" in peer.listener:
        log_in(peer, "PLAIN", "alice")
    assert peer.world.told in peer.topics()
    peer.world.count("served")
    peer.leave()


def divided(chance: random.Random) -> Callable[[bytes], bytes]:
    """Handshake messages in more records than they need."""

    def spoil(flight: bytes) -> bytes:
        made = bytearray()
        while flight:
            size = int.from_bytes(flight[3:5], "big")
            kind, body, flight = flight[0], flight[5 : 5 + size], flight[5 + size :]
            if kind != 22 or chance.random() < 0.5:
                made += record(kind, body)
                continue
            while body:
                step = chance.randrange(1, len(body) + 1)
                made += record(kind, body[:step])
                body = body[step:]
        return bytes(made)

    return spoil if chance.random() < 0.7 else lambda flight: flight


def cut_off(peer: Peer, chance: random.Random) -> None:
    """The handshake ends at any byte."""
    left = chance.choice((chance.randrange(1, 12), chance.randrange(1, 700), chance.randrange(1, 5000)))

    def spoil(flight: bytes) -> bytes:
        nonlocal left
        flight, left = flight[:left], left - len(flight)
        if left <= 0:
            peer.put(flight)
            peer.leave()
            raise Ended
        return flight

    peer.shake(context_of(peer, chance), spoil)
    peer.leave()


def flipped(peer: Peer, chance: random.Random) -> None:
    """Some bytes of the handshake are others, are there twice, or are not there."""

    def spoil(flight: bytes) -> bytes:
        changed = bytearray(flight)
        for _ in range(chance.choice((0, 1, 1, 2, 8))):
            place = chance.randrange(len(changed))
            end = place + chance.choice((1, 1, 2, 32, 200))
            doing = chance.randrange(5)
            if doing == 0:
                changed[place:end] = chance.randbytes(len(changed[place:end]))
            elif doing == 1:
                del changed[place:end]
            elif doing == 2:
                changed[place:place] = changed[place:end]
            elif doing == 3:
                changed[place] ^= 1 << chance.randrange(8)
            else:
                changed[place:place] = wrong_record(chance)
            if not changed:
                break
        return bytes(changed)

    peer.put(spoil(peer.begin_tls(context_of(peer, chance))))
    for _ in range(4):
        if not peer.get(0.05):
            break
        try:
            assert peer.tls is not None
            peer.tls.do_handshake()
        except OSError:  # also when it wants more
            pass
        peer.flush(spoil)
    peer.leave()


def wrong_records(peer: Peer, chance: random.Random) -> None:
    """Before the handshake, in it, or after it."""
    stage = chance.randrange(4)
    if stage == 1:
        peer.put(peer.begin_tls())
    elif stage == 2:
        peer.put(wrong_record(chance) + peer.begin_tls(context_of(peer, chance)))
    elif stage == 3:
        peer.shake(context_of(peer, chance))
    for _ in range(chance.choice((1, 1, 5))):
        peer.put(wrong_record(chance))
    peer.leave("half")


def plain_on_tls(peer: Peer, chance: random.Random) -> None:
    """A request, HTTP, or noise; at once or after a hello or a handshake."""
    stage = chance.randrange(3)
    if stage == 1:
        peer.put(peer.begin_tls())
    elif stage == 2:
        peer.shake(context_of(peer, chance))
    request = peer.frame(messages.MetadataRequest(topics=None), 9)
    plain = chance.choice(
        (len(request).to_bytes(4, "big") + request, b"GET / HTTP/1.1\r\n\r\n", chance.randbytes(500))
    )
    peer.put(plain)
    peer.leave("half")


def wrong_certificate(peer: Peer, chance: random.Random) -> None:
    """TLS 1.3 tells the client that it is done before the server has seen the certificate."""
    peer.trusted = False
    peer.shake(peer.world.contexts[chance.choice(("", "stranger", "expired"))])
    assert peer.world.told not in peer.topics()


def never_reads(peer: Peer, chance: random.Random) -> None:
    """Asks again and again for all there is, and hears none of it."""
    peer.trusted = True
    peer.cut = "whole"
    peer.shake(context_of(peer, chance))
    if "SASL" in peer.listener:
        log_in(peer, "PLAIN", "alice")
    part = messages.FetchRequest.Topics.Partitions(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [messages.FetchRequest.Topics(topic=peer.world.told, partitions=[part])]
    asked = messages.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)
    peer.socket.settimeout(0.05)
    try:
        for _ in range(chance.choice((5, 50))):
            frame = peer.frame(asked, 4)
            assert peer.tls is not None
            peer.tls.write(len(frame).to_bytes(4, "big") + frame)
            peer.socket.sendall(peer.outgoing.read())
    except TimeoutError:
        pass
    except ConnectionError as error:
        raise Ended from error
    peer.leave(chance.choice(("close", "reset")))


def alerts(peer: Peer, chance: random.Random) -> None:
    """A goodbye in the middle of requests, and then more of them."""
    peer.shake(context_of(peer, chance))
    assert peer.tls is not None
    request = peer.frame(messages.ApiVersionsRequest(), 0)
    for _ in range(chance.choice((0, 1, 30))):
        peer.send_frame(request)
    try:
        peer.tls.unwrap()
    except OSError:
        pass
    peer.flush()
    if chance.random() < 0.5:
        peer.put(wrong_record(chance))
    peer.leave("half")


def again(peer: Peer, chance: random.Random) -> None:
    """Another handshake, or other keys, by libssl itself."""
    peer.leave("close")
    port = peer.world.ports[peer.listener]
    old = peer.listener == "OLD"
    client = KeyUpdates(port, old=old)
    try:
        for _ in range(chance.randrange(1, 5)):
            if old:
                client.renegotiate()
            else:
                client.update(chance.choice((1, 5, 20, 200)), chance.random() < 0.5)
            client.send()
            if not old:
                assert client.ask()[:4] == b"\0\0\0\1"
        if old:
            client.hear()
    except ConnectionError as error:
        raise Ended from error
    finally:
        client.close()


def other_protocol(peer: Peer, chance: random.Random) -> None:
    """TLS comes to a port without TLS."""
    peer.put(peer.begin_tls())
    peer.until_closed()


# -- SASL --------------------------------------------------------------------------------------------------


def conversation(mechanism: str, user: str, password: str, **more: Any) -> Any:
    if mechanism == "PLAIN":
        return plain_conversation(user, password)
    return scram_conversation(HASHES[mechanism], user, password, **more)


def log_in(peer: Peer, mechanism: str, user: str, password: str | None = None, version: int = 1) -> int:
    """As it should be, but for the password perhaps: the error code."""
    answer = peer.ask(messages.SaslHandshakeRequest(mechanism=mechanism), version)
    if answer.error_code:
        return answer.error_code
    client = conversation(mechanism, user, peer.world.users[user] if password is None else password)
    said = next(client)
    while True:
        if version == 0:
            peer.send_frame(said)
            heard = peer.read_frame()
        else:
            answer = peer.ask(messages.SaslAuthenticateRequest(auth_bytes=said), 2)
            if answer.error_code:
                return answer.error_code
            heard = bytes(answer.auth_bytes)
        try:
            said = client.send(heard)
        except StopIteration:
            return 0


def opened(peer: Peer, chance: random.Random) -> None:
    """TLS first, where there is TLS."""
    if peer.encrypted:
        peer.shake(context_of(peer, chance))


def logged_in(peer: Peer, chance: random.Random) -> None:
    """All as it should be."""
    opened(peer, chance)
    if chance.random() < 0.5:
        peer.ask(messages.ApiVersionsRequest(), 0)
    peer.trusted = True
    mechanism = chance.choice(MECHANISMS)
    assert log_in(peer, mechanism, "alice", version=chance.randrange(2)) == 0
    assert peer.world.told in peer.topics()
    peer.world.count("logged in")
    peer.leave()


def guessed(peer: Peer, chance: random.Random) -> None:
    """The right way, with a wrong password or user."""
    opened(peer, chance)
    user = chance.choice(("alice", "bob", "nobody", f"x\n{FORGED} by a name", "é\u2028\x1b[2J"))
    wrong = peer.world.wrong_password(chance)
    assert log_in(peer, chance.choice(MECHANISMS), user, wrong, chance.randrange(2)) != 0
    peer.world.count("refused")
    peer.topics()
    raise AssertionError("who was refused is served")


def spoiled(peer: Peer, chance: random.Random) -> None:
    """SCRAM with one of its messages spoiled, or PLAIN that does not parse. The password is the right one."""
    opened(peer, chance)
    mechanism = chance.choice(MECHANISMS)
    peer.ask(messages.SaslHandshakeRequest(mechanism=mechanism), 1)
    if mechanism == "PLAIN":
        secret = peer.world.users["alice"].encode()
        token = chance.choice(
            (b"", b"\0", b"\0alice", b"\0\0" + secret, b"\0alice\0", b"bob\0alice\0" + secret,
             b"\0alice\0" + secret + b"\0", b"\0alice\0" + secret + b"\0x", b"alice" + secret,
             b"\xff\xfe\0alice\0" + secret, b"\0alic\xc3\0" + secret, b"\0alice\0" + secret[:-1],
             b"\0" + b"a" * chance.choice((10, 100_000)) + b"\0" + secret, chance.randbytes(60))
        )  # fmt: skip
        peer.ask(messages.SaslAuthenticateRequest(auth_bytes=token), 2)
    else:
        client = conversation(mechanism, "alice", peer.world.users["alice"])
        which = chance.randrange(2)
        first = next(client)
        said = spoil_scram(chance, first) if which == 0 else first
        answer = peer.ask(messages.SaslAuthenticateRequest(auth_bytes=said), 2)
        if answer.error_code == 0 and which == 1:
            final = client.send(bytes(answer.auth_bytes))
            peer.ask(messages.SaslAuthenticateRequest(auth_bytes=spoil_scram(chance, final)), 2)
    if chance.random() < 0.5:
        peer.ask(messages.SaslAuthenticateRequest(auth_bytes=b"x"), 2)
    peer.topics()
    raise AssertionError("a login that was spoiled is taken")


def spoil_scram(chance: random.Random, token: bytes) -> bytes:
    """A message that must not be taken. A first one must not lead to a proof either: nobody proves it."""
    fields = token.split(b",")
    doing = chance.randrange(9)
    if doing == 0:
        return chance.randbytes(chance.choice((1, 30, 5000)))
    if doing == 1:
        return token[: chance.randrange(len(token))]
    if doing == 2:
        return b",".join(fields[:-1])
    if doing == 3:
        return b",".join([*fields[:-1], fields[-1][:2] + base64.b64encode(chance.randbytes(32))])
    if doing == 4:  # another nonce, or another first message
        place = next(i for i, field in enumerate(fields) if field.startswith(b"r="))
        fields[place] = b"r=" + base64.b64encode(chance.randbytes(24))
        return b",".join(fields)
    if doing == 5:
        return token.replace(b"c=biws", b"c=eSws").replace(b"n,,", b"p=tls-unique,,")
    if doing == 6:
        return token + b",x=" + b"y" * chance.choice((1, 100_000)) + b",p=AAAA"
    if doing == 7:
        return b"\xff" + token
    return token.replace(b"alice", b"alice,m=1,i=1").replace(b"p=", b"P=")


def replayed(peer: Peer, chance: random.Random) -> None:
    """What another has said to log in, said once more."""
    opened(peer, chance)
    mechanism = chance.choice(tuple(HASHES))
    world = peer.world
    said: list[bytes] = []
    with Peer(chance, world, peer.listener) as other:
        opened(other, chance)
        other.trusted = True
        other.ask(messages.SaslHandshakeRequest(mechanism=mechanism), 1)
        client = conversation(mechanism, "alice", world.users["alice"])
        said.append(next(client))
        for _ in range(2):
            answer = other.ask(messages.SaslAuthenticateRequest(auth_bytes=said[-1]), 2)
            assert answer.error_code == 0
            try:
                said.append(client.send(bytes(answer.auth_bytes)))
            except StopIteration:
                break
    peer.ask(messages.SaslHandshakeRequest(mechanism=mechanism), 1)
    for token in said:
        answer = peer.ask(messages.SaslAuthenticateRequest(auth_bytes=token), 2)
    assert answer.error_code, "a login that was overheard is taken"
    peer.topics()
    raise AssertionError("who was refused is served")


def disordered(peer: Peer, chance: random.Random) -> None:
    """Frames in any order, doubled, huge, of any version, without waiting for answers. None has a password
    that is right."""
    opened(peer, chance)
    for _ in range(chance.randrange(1, 8)):
        piece = any_frame(peer, chance)
        for _ in range(chance.choice((1, 1, 1, 2, 30))):
            peer.write(piece)
        if chance.random() < 0.3:
            peer.get(0.02)
            peer.decrypt()
    metadata = peer.frame(messages.MetadataRequest(topics=None), 9)
    peer.send_frame(metadata)
    peer.leave()


def any_frame(peer: Peer, chance: random.Random) -> bytes:
    """With its size, which may be wrong."""
    wrong = peer.world.wrong_password(chance)
    mechanism = chance.choice(
        (*MECHANISMS, "PLAIN", "", "plain", "GSSAPI", "X" * chance.choice((30, 30_000)), f"\n{FORGED}", "é")
    )
    first = next(scram_conversation("sha256", "alice", wrong))
    token = chance.choice(
        (b"", f"\0alice\0{wrong}".encode(), first, first, chance.randbytes(100), b"\0" * HUGE, b"c=biws,r=x")
    )
    requests: tuple[tuple[Any, int], ...] = (
        (messages.SaslHandshakeRequest(mechanism=mechanism), chance.randrange(2)),
        (messages.SaslHandshakeRequest(mechanism=mechanism), chance.randrange(2)),
        (messages.SaslAuthenticateRequest(auth_bytes=token), chance.randrange(3)),
        (messages.SaslAuthenticateRequest(auth_bytes=token), chance.randrange(3)),
        (messages.ApiVersionsRequest(client_software_name="x", client_software_version="1"),
         chance.randrange(5)),
        (messages.MetadataRequest(topics=None), 9),
        (messages.FetchRequest(max_wait_ms=0), 12),
        (messages.ProduceRequest(acks=chance.choice((0, 1)), timeout_ms=1), 9),
    )  # fmt: skip
    frame = bytearray(token)
    if chance.random() < 0.8:
        frame = bytearray(peer.frame(*chance.choice(requests)))
        if chance.random() < 0.15:
            struct.pack_into(">hh", frame, 0, chance.randrange(-1, 93), chance.randrange(-1, 20))
        for _ in range(chance.choice((0, 0, 0, 1, 3))):
            frame[chance.randrange(4, len(frame))] = chance.randrange(256)
    size = len(frame)
    if chance.random() < 0.1:
        size = chance.choice((0, 1, 3, size - 1, size + 1, HUGE, 2**31 - 1, -1)) & 0xFFFFFFFF
    return size.to_bytes(4, "big") + frame


def bearer(peer: Peer, chance: random.Random) -> None:
    """Tokens of OAUTHBEARER that lie, or are none. Whoever makes a good one is let in: nobody signs them."""
    peer.trusted = True
    now = int(time.time())
    claims: dict[str, Any] = {"sub": "eve", "iat": now - 1, "exp": now + 60}
    doing = chance.randrange(7)
    if doing == 1:
        claims["exp"] = chance.choice((now - 100, "soon", None, -1, 1e300, [], True))
    elif doing == 2:
        claims["sub"] = chance.choice(("", 7, None, f"e\n{FORGED}", "x" * 50_000, {}))
    elif doing == 3:
        claims["iat"] = chance.choice((now + 1000, "x", None, float("nan"), 10**400))
    token = unsecured({"alg": "none"}, claims)
    if doing == 4:
        token = chance.choice((token[:-3], token + ".x", "." * 5, "é" * 30, "=" * 40, f"{token}\1{token}"))
    said = b"n,,\1auth=Bearer " + token.encode() + b"\1\1"
    if doing == 5:
        said = chance.choice((said[:-1], said[1:], b"n,a=bob" + said[2:], b"y" + said[1:], said + b"x=y\1"))
    elif doing == 6:
        said = chance.randbytes(200)
    peer.ask(messages.SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
    answer = peer.ask(messages.SaslAuthenticateRequest(auth_bytes=said), 2)
    if doing == 0:
        assert answer.error_code == 0 and peer.world.told in peer.topics()
        peer.world.count("logged in")
    elif answer.error_code:
        peer.world.count("refused")
        peer.ask(messages.SaslAuthenticateRequest(auth_bytes=b"\1"), 2)
    peer.leave()


def once_more(peer: Peer, chance: random.Random) -> None:
    """Logs in, and then again in the middle of requests: as somebody else, by another mechanism, with a wrong
    password, or well. Who fails is served no more."""
    opened(peer, chance)
    peer.trusted = True
    mechanism = chance.choice(("PLAIN", "SCRAM-SHA-256"))
    assert log_in(peer, mechanism, "alice") == 0
    metadata = messages.MetadataRequest(topics=None)
    for _ in range(chance.choice((0, 1, 20))):
        peer.send_frame(peer.frame(metadata, 9))
        assert peer.read_frame()
    doing = chance.choice(("well", "other user", "other mechanism", "wrong", "in the middle"))
    if doing == "well":
        assert log_in(peer, mechanism, "alice") == 0
        assert peer.world.told in peer.topics()
        peer.world.count("logged in again")
        peer.leave()
        return
    if doing == "in the middle":  # requests, the beginning of a login, and more requests, all at once
        parts = [(metadata, 9)] * 3
        parts += [(messages.SaslHandshakeRequest(mechanism=mechanism), chance.randrange(2))]
        parts += [(metadata, 9)] * chance.randrange(3)
        for part in parts:
            peer.send_frame(peer.frame(*part))
        peer.leave("half")
        return
    user, password, other = "alice", None, mechanism
    if doing == "other user":
        user = "bob"
    elif doing == "other mechanism":
        other = "SCRAM-SHA-256" if mechanism == "PLAIN" else "PLAIN"
    else:
        password = peer.world.wrong_password(chance)
    assert log_in(peer, other, user, password) != 0
    peer.world.count("refused")
    peer.answers.clear()
    peer.trusted = False
    peer.topics()
    raise AssertionError("who failed to log in again is served")


def outlived(peer: Peer, chance: random.Random) -> None:
    """The session ends, and the requests go on."""
    peer.trusted = True
    assert log_in(peer, "SCRAM-SHA-512", "alice") == 0
    time.sleep(SHORT_SESSION_S + 0.1)
    peer.answers.clear()
    peer.trusted = False
    peer.topics()
    raise AssertionError("who is served has no session")


# (attack, its listeners, how often beside the others)
ATTACKS: tuple[tuple[Attack, tuple[str, ...], int], ...] = (
    (whole, TLS, 3),
    (cut_off, TLS, 6),
    (flipped, TLS, 6),
    (wrong_records, TLS, 5),
    (plain_on_tls, TLS, 2),
    (wrong_certificate, ("MUTUAL",), 2),
    (never_reads, (*OPEN, "SASL_SSL"), 1),
    (alerts, OPEN, 2),
    (again, OPEN, 2),
    (other_protocol, ("SASL_PLAINTEXT", "BEARER"), 1),
    (logged_in, SASL, 2),
    (guessed, SASL, 3),
    (spoiled, SASL, 5),
    (replayed, SASL, 2),
    (disordered, (*SASL, "SASL_PLAINTEXT"), 8),
    (bearer, ("BEARER",), 3),
    (once_more, SASL, 3),
    (outlived, ("SASL_PLAINTEXT",), 1),
)


def attack(world: World, seed: str, only: str = "") -> str:
    """One attack by one connection; its name. The seed decides all that the attacker decides."""
    chance = random.Random(seed)
    choices = [row for row in ATTACKS if only in row[0].__name__]
    (doing, listeners, _), = chance.choices(choices, [row[2] for row in choices])  # fmt: skip
    listener = chance.choice(listeners)
    try:
        with Peer(chance, world, listener) as peer:
            try:
                doing(peer, chance)
            except Ended:
                pass
    except Exception as error:
        error.add_note(f"{doing.__name__} on {listener}, seed {seed}")
        raise
    world.count(doing.__name__)
    return doing.__name__
