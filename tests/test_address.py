"""The client's address: nothing that is forged makes a key, and one client has one."""

import logging
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiolimit.http import address
from aiolimit.http.address import NO_PEER, ClientAddress, peer

PROXY = "10.0.0.9"
CLOUD = "173.245.48.7"


def scope(client: str | None, *headers: tuple[str, str]) -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return {
        "type": "http",
        "client": None if client is None else (client, 50_000),
        "headers": raw,
    }


def forwarded(*values: str) -> list[tuple[str, str]]:
    return [("x-forwarded-for", value) for value in values]


behind = ClientAddress(trusted_proxies=["10.0.0.0/8"])


@pytest.mark.parametrize(
    ("client", "key"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:0DB8:0001:0002::9", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("::FFFF:cb00:7107", "203.0.113.7"),
        ("fe80::1%eth0", "fe80::1"),
        ("::1", "::1"),
        ("testclient", "testclient"),
    ],
)
def test_the_peer(client: str, key: str) -> None:
    assert peer(scope(client)) == key
    assert ClientAddress()(scope(client)) == key
    assert behind(scope(client)) == key


@pytest.mark.parametrize(
    ("prefix", "key"), [(128, "2001:db8:1:2:3:4:5:6"), (48, "2001:db8:1::/48"), (1, "::/1")]
)
def test_how_ipv6_is_grouped(prefix: int, key: str) -> None:
    by_prefix = ClientAddress(ipv6_prefix=prefix)
    assert by_prefix(scope("2001:db8:1:2:3:4:5:6")) == key
    assert by_prefix(scope("203.0.113.7")) == "203.0.113.7"


FORGED = [
    ("X-Forwarded-For", "198.51.100.1"),
    ("x-forwarded-for", "10.0.0.1"),
    ("X_Forwarded_For", "198.51.100.1"),
    ("X-Real-IP", "198.51.100.1"),
    ("Forwarded", "for=198.51.100.1"),
    ("Client-IP", "198.51.100.1"),
    ("True-Client-IP", "198.51.100.1"),
    ("CF-Connecting-IP", "198.51.100.1"),
    ("X-Client-IP", "198.51.100.1"),
    ("X-Cluster-Client-IP", "198.51.100.1"),
    ("X-Originating-IP", "198.51.100.1"),
    ("Via", "198.51.100.1"),
]


@pytest.mark.parametrize(("name", "value"), FORGED)
def test_a_forged_header_makes_no_key(name: str, value: str) -> None:
    for key in (peer, ClientAddress(), behind, ClientAddress(trusted_proxies=["unix"])):
        assert key(scope("203.0.113.7", (name, value))) == "203.0.113.7"
    if name.lower() != "x-forwarded-for":
        # Nor through a proxy that we trust, and that hands it on as it came.
        chain = scope(PROXY, (name, value), ("X-Forwarded-For", "203.0.113.7"))
        assert behind(chain) == "203.0.113.7"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (["203.0.113.7"], "203.0.113.7"),
        (["198.51.100.1, 203.0.113.7"], "203.0.113.7"),
        (["198.51.100.1,203.0.113.7,10.1.1.1"], "203.0.113.7"),
        (["198.51.100.1", "203.0.113.7"], "203.0.113.7"),
        (["198.51.100.1", "203.0.113.7", "10.1.1.1, 10.2.2.2"], "203.0.113.7"),
        (["203.0.113.7:4711"], "203.0.113.7"),
        (["203.0.113.7:65000, 10.1.1.1:80"], "203.0.113.7"),
        (["[2001:db8:1:2::9]:443"], "2001:db8:1:2::/64"),
        (["[2001:db8:1:2::9]"], "2001:db8:1:2::/64"),
        (["2001:db8:1:2::9"], "2001:db8:1:2::/64"),
        (["::ffff:203.0.113.7"], "203.0.113.7"),
        (["[::ffff:203.0.113.7]:80"], "203.0.113.7"),
        (["::ffff:10.1.1.1"], "10.1.1.1"),
        (["fe80::1%25eth0"], "fe80::1"),
        (["  203.0.113.7\t"], "203.0.113.7"),
        (["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        # Malformed: it counts for the proxy that handed it on.
        ([""], PROXY),
        ([","], PROXY),
        (["unknown"], PROXY),
        (["garbage, 10.1.1.1"], "10.1.1.1"),
        (["203.0.113.7, garbage"], PROXY),
        (["203.0.113.7:80:90"], PROXY),
        (["203.0.113.7:http"], PROXY),
        (["[203.0.113.7"], PROXY),
        (["203.0.113.07"], PROXY),
        (["0x7f.1"], PROXY),
        (["3405803783"], PROXY),
        (["203.0.113.7;"], PROXY),
        (["203.0.113.7 10.0.0.1"], PROXY),
        (["203.0.113.7\x00"], PROXY),
        (["\xb2.\xb9.1.1"], PROXY),
        (["1" * 5000], PROXY),
    ],
)
def test_read_from_the_right(values: list[str], key: str) -> None:
    assert behind(scope(PROXY, *forwarded(*values))) == key


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (["for=203.0.113.7"], "203.0.113.7"),
        (["For=203.0.113.7;proto=https;by=10.0.0.9"], "203.0.113.7"),
        (["for=198.51.100.1, for=203.0.113.7"], "203.0.113.7"),
        (["for=198.51.100.1", "for=203.0.113.7"], "203.0.113.7"),
        (['for="203.0.113.7:4711"'], "203.0.113.7"),
        (['for="[2001:db8:1:2::17]:4711"'], "2001:db8:1:2::/64"),
        (['proto=http;for="[2001:db8:1:2::17]"'], "2001:db8:1:2::/64"),
        (["for=203.0.113.7, for=10.3.3.3;by=_x"], "203.0.113.7"),
        (["for=_gazonk"], "_gazonk"),
        (['for="_SEVKISEK"'], "_SEVKISEK"),
        (["for=unknown"], PROXY),
        (["for=unknown, for=10.3.3.3"], "10.3.3.3"),
        (["proto=https"], PROXY),
        (["for"], PROXY),
        (['for="203.0.113.7'], PROXY),
        (['for=", for=203.0.113.7'], "203.0.113.7"),
        (['for="x, for=203.0.113.7;by="y"'], PROXY),
        (['for="198.51.100.1, for=203.0.113.7'], "203.0.113.7"),
        (['for="a,b", for=203.0.113.7'], "203.0.113.7"),
        (["for=198.51.100.1;for=203.0.113.7"], "203.0.113.7"),
    ],
)
def test_rfc_7239(values: list[str], key: str) -> None:
    by_standard = ClientAddress(trusted_proxies=["10.0.0.0/8"], header="forwarded")
    assert by_standard(scope(PROXY, *(("Forwarded", value) for value in values))) == key
    assert by_standard(scope(PROXY, *forwarded("198.51.100.1"))) == PROXY


@pytest.mark.parametrize(
    ("hops", "values", "key"),
    [
        (1, ["198.51.100.1, 203.0.113.7"], "203.0.113.7"),
        (2, ["198.51.100.1, 203.0.113.7, 192.0.2.1"], "203.0.113.7"),
        (2, ["203.0.113.7, 192.0.2.1"], "203.0.113.7"),
        (2, ["203.0.113.7"], PROXY),  # it did not come through two of them
        (1, [], PROXY),
        (2, ["garbage, 192.0.2.1"], "192.0.2.1"),
    ],
)
def test_hops(hops: int, values: list[str], key: str) -> None:
    assert ClientAddress(trusted_hops=hops)(scope(PROXY, *forwarded(*values))) == key


def test_a_single_address_header_is_believed_only_from_the_networks_given_for_it() -> None:
    key = ClientAddress(
        trusted_proxies=["10.0.0.0/8"], single={"CF-Connecting-IP": ["173.245.48.0/20"]}
    )
    client = ("CF-Connecting-IP", "203.0.113.7")
    assert key(scope(CLOUD, client)) == "203.0.113.7"
    assert key(scope(PROXY, client, *forwarded(CLOUD))) == "203.0.113.7"
    # Through our own proxy, but not through theirs: it hands the header on as it came.
    assert key(scope(PROXY, client, *forwarded("198.51.100.1"))) == "198.51.100.1"
    assert key(scope("198.51.100.1", client)) == "198.51.100.1"
    assert key(scope(PROXY, client)) == PROXY
    assert key(scope(CLOUD, client, client)) == CLOUD
    assert key(scope(CLOUD, ("CF-Connecting-IP", "203.0.113.7, 1.1.1.1"))) == CLOUD


def test_without_a_peer(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "_told", set())
    with caplog.at_level(logging.WARNING, "aiolimit"):
        for key in (peer, behind, ClientAddress(trusted_hops=1)):
            assert key(scope(None)) == NO_PEER
        assert behind(scope(None, *forwarded("203.0.113.7"))) == NO_PEER
    assert len(caplog.records) == 1
    behind_nginx = ClientAddress(trusted_proxies=["unix", "10.0.0.0/8"])
    assert behind_nginx(scope(None, *forwarded("198.51.100.1, 203.0.113.7"))) == "203.0.113.7"
    assert behind_nginx(scope(None, *forwarded("203.0.113.7, 10.1.1.1"))) == "203.0.113.7"


def test_one_client_has_one_key_whatever_ports_a_proxy_appends() -> None:
    keys = {behind(scope(PROXY, *forwarded(f"203.0.113.7:{port}"))) for port in range(1024, 5000)}
    assert keys == {"203.0.113.7"}


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(list('for="[]:,;10. _')), max_size=30).map("".join),
    st.sampled_from(["x-forwarded-for", "forwarded"]),
)
@example('for="\\', "forwarded")
def test_nothing_that_is_written_left_of_our_proxys_word_counts(forged: str, header: str) -> None:
    """Whatever a client sends, what our proxy appends to it names the client, or the proxy does."""
    key = ClientAddress(trusted_proxies=["10.0.0.0/8"], header=header)
    value = forged.encode("latin-1", "replace").decode("latin-1")
    ours = "203.0.113.7" if header == "x-forwarded-for" else "for=203.0.113.7"
    found = key(scope(PROXY, (header, f"{value}, {ours}")))
    assert found in {"203.0.113.7", PROXY}
    assert key(scope("203.0.113.7", (header, value))) == "203.0.113.7"


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"trusted_proxies": "10.0.0.0/8"}, TypeError, "collection of networks"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, ValueError, "'10.0.0.1/8' is no network"),
        ({"trusted_proxies": ["proxy"]}, ValueError, "'proxy' is no network"),
        ({"trusted_hops": -1}, ValueError, "trusted_hops"),
        ({"trusted_hops": True}, ValueError, "trusted_hops"),
        ({"trusted_hops": 1, "trusted_proxies": ["10.0.0.0/8"]}, ValueError, "not both"),
        ({"header": "cf-connecting-ip"}, ValueError, "single"),
        ({"single": {"bad name": []}}, ValueError, "names of headers"),
        ({"single": {"x-real-ip": "10.0.0.0/8"}}, TypeError, "x-real-ip"),
        ({"ipv6_prefix": 0}, ValueError, "1 to 128"),
        ({"ipv6_prefix": 64.0}, TypeError, "whole number"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ClientAddress(**options)


def test_a_line_that_is_left_open_does_not_swallow_the_next() -> None:
    key = ClientAddress(trusted_proxies=["10.0.0.0/8"], header="forwarded")
    lines = [("Forwarded", 'for="'), ("Forwarded", 'for="[2001:db8:1:2::1]:443"')]
    assert key(scope(PROXY, *lines)) == "2001:db8:1:2::/64"
