"""Listeners: bound once, shared only when asked, and one sentence when it cannot be."""

import socket

import pytest

from kafkad.config.listeners import Endpoint
from kafkad.net.listener import ListenError, bind


def endpoint(host="127.0.0.1", port=0):
    return Endpoint("PLAINTEXT", "PLAINTEXT", host, port)


def test_port_zero_takes_a_free_port_and_accepts():
    (listener,) = bind(endpoint())
    with listener, socket.create_connection(listener.getsockname()) as client:
        listener.setblocking(True)
        served, address = listener.accept()
        with served:
            assert address == client.getsockname()


def test_several_listeners_share_one_port():
    listeners = bind(endpoint(), count=3)
    assert len({listener.getsockname() for listener in listeners}) == 1
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize("count", [1, 2])
def test_a_second_broker_is_told_that_the_port_is_in_use(count):
    first = bind(endpoint(), count=count)
    port = first[0].getsockname()[1]
    with pytest.raises(
        ListenError, match=rf"^listener PLAINTEXT://127\.0\.0\.1:{port}: port {port} is in use"
    ):
        bind(endpoint(port=port), count=2)
    for listener in first:
        listener.close()


def test_a_port_whose_connections_linger_can_be_bound_again():
    (listener,) = bind(endpoint())
    address = listener.getsockname()
    client = socket.create_connection(address)
    listener.setblocking(True)
    served, _ = listener.accept()
    served.close()  # this side closes first, so this side lingers
    client.close()
    listener.close()
    (again,) = bind(endpoint(port=address[1]))
    assert again.getsockname() == address
    again.close()


@pytest.mark.parametrize("count", [1, 2])
def test_connections_are_not_paced(count):
    with socket.socket() as fresh:
        default = fresh.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    for listener in bind(endpoint(), count=count):
        with listener:
            told = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert told.rstrip(b"\0") == (b"reno" if default.startswith(b"bbr") else default.rstrip(b"\0"))


def test_an_empty_host_is_every_interface():
    (listener,) = bind(endpoint(host=""))
    port = listener.getsockname()[1]
    with listener, socket.create_connection(("127.0.0.1", port)) as client:
        assert client.getpeername()[1] == port


def test_a_name_is_bound_to_its_ipv4_address():
    (listener,) = bind(endpoint(host="localhost"))
    assert listener.getsockname()[0] == "127.0.0.1"
    listener.close()


def test_ipv6_in_brackets():
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    (listener,) = bind(endpoint(host="[::1]"))
    assert listener.getsockname()[0] == "::1"
    listener.close()


def test_an_address_of_another_machine_is_refused_in_one_sentence():
    with pytest.raises(ListenError, match=r"192\.0\.2\.1 is not an address of this machine$"):
        bind(endpoint(host="192.0.2.1"))


def test_a_name_that_does_not_resolve_is_refused_in_one_sentence():
    with pytest.raises(ListenError, match=r"the host name no-such-host\.invalid does not resolve$"):
        bind(endpoint(host="no-such-host.invalid"))
