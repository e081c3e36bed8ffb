"""Encryption: sealed bytes open in their place alone, a wrong key or none is an error, rotation completes after a kill."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.long import LONG
from support.sealed import KEY, encryption_of
from support.stores import kinds, new_url

from tenuto import (
    Damaged,
    Encrypted,
    Encryption,
    InvalidInput,
    NotEncrypted,
    Tenuto,
    TooLarge,
    WrongKey,
)
from tenuto.backends import connect
from tenuto.backends.volatile import VolatileBackend
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Backend, Entry, Put, Record
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock
from tenuto.testing.contract import BackendContract
from tenuto.testing.history import random_calls, verify
from tenuto.wrappers.encrypt import encrypted, new_key, seal, users
from tenuto.wrappers.encrypt.sources import resolve
from tenuto.wrappers.encrypt.wrapper import Encrypt

OTHER = b"another key of 32 random bytes.."
SECRET = b"the secret of the user"


def key(*parts: Any, tenant: str = "acme", scope: str = "s") -> bytes:
    return keys.pack(tenant, scope, *parts)


@pytest.fixture
def store(backend: Backend) -> Encrypt:
    return Encrypt(backend, KEY)


# -- what is stored ----------------------------------------------------------------------------------


def test_no_value_is_stored_in_the_clear(backend: Backend, store: Encrypt) -> None:
    store.commit([], [Put(key("a"), SECRET), Append(key("log"), SECRET)])
    stored = [one.value for one in backend.scan(keys.pack("acme"))] + [one.value for one in backend.entries(key("log"))]
    assert len(stored) == 3, "the value, the entry and the tenant's keys"
    assert not any(SECRET in value or KEY in value for value in stored)
    assert [one.value for one in store.scan(keys.pack("acme"))] == [SECRET]


def test_equal_values_have_different_bytes(backend: Backend, store: Encrypt) -> None:
    store.commit([], [Put(key("a"), SECRET), Put(key("b"), SECRET)])
    first = backend.read([key("a")])[0]
    store.commit([], [Put(key("a"), SECRET)])
    second, other = backend.read([key("a"), key("b")])
    assert len({one.value for one in (first, second, other) if one is not None}) == 3


def test_a_flipped_bit_anywhere_is_damage() -> None:
    inner = Altered(VolatileBackend())
    store = Encrypt(inner, KEY)
    store.commit([], [Put(key("a"), SECRET), Append(key("log"), SECRET)])
    flips = 0
    for bit in range((len(SECRET) + seal.OVERHEAD) * 8):
        inner.alter = lambda _, value, bit=bit: flipped(value, bit)
        for read in (lambda: store.read([key("a")]), lambda: store.scan(key()), lambda: store.entries(key("log"))):
            with pytest.raises(Damaged):
                read()
            flips += 1
    print(f"{flips} reads of flipped bits: {flips} damaged, 0 returned")


def test_a_flipped_bit_in_the_marker_is_damage() -> None:
    inner = Altered(VolatileBackend())
    Encrypt(inner, KEY).commit([], [Put(key("a"), SECRET)])
    marker = inner.read([keys.pack("acme") + keys.ENCRYPTION])[0]
    assert marker is not None
    for bit in range(len(marker.value) * 8):
        inner.alter = lambda place, value, bit=bit: flipped(value, bit) if place.endswith(keys.ENCRYPTION) else value
        with pytest.raises(Damaged):
            Encrypt(inner, KEY).read([key("a")])


@pytest.mark.parametrize("users", [False, True], ids=["tenant keys", "user keys"])
def test_values_swapped_between_places_are_damage(*, users: bool) -> None:
    """Records and entries of two keys, two streams and two tenants, each put in the place of every other."""
    inner = Altered(VolatileBackend())
    store = Encrypt(inner, Encryption(KEY, user_keys=users))
    places = [key(name, tenant=t, scope=s) for t in ("acme", "zeta") for s in ("s", "u") for name in ("a", "log")]
    places += [keys.pack(t, user, "user", "a") for t in ("acme", "zeta") for user in ("ann", "bob")] if users else []
    for place in places:
        store.commit([], [(Append if place.endswith(keys.pack("log")) else Put)(place, SECRET)])
    bytes_of = {place: (inner.read([place])[0] or inner.entries(place)[0]).value for place in places}
    swaps = 0
    for place, other in itertools.permutations(places, 2):
        inner.alter = lambda at, value, place=place, other=other: bytes_of[other] if at == place else value
        with pytest.raises(Damaged):
            store.entries(place) if place.endswith(keys.pack("log")) else store.read([place])
        swaps += 1
    inner.alter = None
    print(f"{swaps} swaps: {swaps} damaged, 0 returned")


def test_the_data_keys_of_another_tenant_are_damage() -> None:
    inner = Altered(VolatileBackend())
    store = Encrypt(inner, KEY)
    for tenant in ("acme", "zeta"):
        store.commit([], [Put(key("a", tenant=tenant), SECRET)])
    other = inner.read([keys.pack("zeta") + keys.ENCRYPTION])[0]
    assert other is not None
    inner.alter = lambda place, value: other.value if place == keys.pack("acme") + keys.ENCRYPTION else value
    with pytest.raises(Damaged):
        Encrypt(inner, KEY).read([key("a")])


def test_a_plain_value_in_an_encrypted_tenant_is_damage(backend: Backend, store: Encrypt) -> None:
    store.commit([], [Put(key("a"), SECRET)])
    backend.commit([], [Put(key("b"), b"\x01plain"), Append(key("log"), b"\x01plain")])
    for read in (lambda: store.read([key("b")]), lambda: store.scan(key()), lambda: store.entries(key("log"))):
        with pytest.raises(Damaged, match="not encrypted"):
            read()


def test_check_covers_sealed_bytes_and_opens_records(backend: Backend, store: Encrypt) -> None:
    store.commit([], [Put(key("a"), SECRET), Append(key("log"), SECRET), Append(key("log"), SECRET)])
    assert store.check() == []
    assert backend.check() == [], "and works without the key"
    first, second = store.entries(key("log"))
    assert second.previous == first.digest
    stored = backend.read([key("a")])[0]
    assert stored is not None
    backend.commit([], [Put(key("b"), stored.value)])  # the store's own checksum of the copy is right
    assert [one.kind for one in store.check()] == ["undecryptable"]


# -- the right key, a wrong one, none ----------------------------------------------------------------


def test_a_wrong_key_is_refused(backend: Backend, store: Encrypt) -> None:
    store.commit([], [Put(key("a"), SECRET)])
    wrong = Encrypt(backend, OTHER)
    for call in (
        lambda: wrong.read([key("a")]),
        lambda: wrong.scan(key()),
        lambda: wrong.entries(key("log")),
        lambda: wrong.commit([], [Put(key("b"), b"x")]),
    ):
        with pytest.raises(WrongKey, match="Nothing was read or written"):
            call()
    assert store.read([key("b")]) == [None]


def test_a_client_without_a_key_is_refused(backend: Backend) -> None:
    sealed = Tenuto("a", backend, encryption_key=KEY)
    sealed.state.set("s", "k", 1)
    plain = Tenuto("b", backend)
    for call in (
        plain.open,
        lambda: plain.state.get("s", "k"),
        lambda: plain.state.set("s", "other", 1),
        lambda: plain.thread("t").append({"role": "user", "content": "x"}),
        lambda: plain.state.keys("s"),
    ):
        with pytest.raises(Encrypted, match="no key was given"):
            call()
    assert sealed.state.keys("s") == ["k"]
    assert Tenuto("c", backend, tenant="other").state.set("s", "k", 1) == 1, "each tenant is one or the other"


def test_a_client_with_a_key_is_refused_by_plain_data(backend: Backend) -> None:
    Tenuto("a", backend).state.set("s", "k", 1)
    sealed = Tenuto("b", backend, encryption_key=KEY)
    for call in (sealed.open, lambda: sealed.state.get("s", "k"), lambda: sealed.state.set("s", "other", 1)):
        with pytest.raises(NotEncrypted, match="in the clear"):
            call()
    assert Tenuto("a", backend).state.keys("s") == ["k"]


def test_a_client_that_looked_before_the_first_write_reads_nothing_sealed(backend: Backend) -> None:
    plain = Tenuto("a", backend).open()
    Tenuto("b", backend, encryption_key=KEY).state.set("s", "k", 1)
    with pytest.raises(Encrypted):
        plain.state.get("s", "k")


def test_a_plain_write_between_the_look_and_the_marker_is_found(backend: Backend) -> None:
    class Overtaken:
        def __getattr__(self, name: str) -> Any:
            return getattr(backend, name)

        def commit(self, checks: Any, writes: Any, **options: Any) -> Any:
            backend.commit([], [Put(key("plain"), b"x")])
            return backend.commit(checks, writes, **options)

    with pytest.raises(NotEncrypted):
        Encrypt(Overtaken(), KEY).commit([], [Put(key("a"), SECRET)])  # type: ignore[arg-type]
    assert [one.key for one in backend.scan(keys.pack("acme"))] == [key("plain")], "the marker is gone again"


def test_its_own_keys_are_hidden_and_cannot_be_written(store: Encrypt) -> None:
    own = keys.pack("acme") + keys.ENCRYPTION
    store.commit([], [Put(key("a"), SECRET)])
    assert store.read([own]) == [None]
    assert store.scan(own) == []
    with pytest.raises(InvalidInput, match="belong to the encryption"):
        store.commit([], [Put(own, b"x")])
    with pytest.raises(InvalidInput):
        Encrypt(store, OTHER).commit([], [Put(key("b", tenant="new"), b"x")])  # twice around one store


def test_a_value_with_no_room_for_the_seal_is_refused(store: Encrypt) -> None:
    with pytest.raises(TooLarge, match="encrypted value"):
        store.commit([], [Put(key("a"), bytes(8 * 1024 * 1024 - 10))])


# -- where keys come from ------------------------------------------------------------------------------


def test_a_key_comes_from_text_a_file_a_variable_or_a_callable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = new_key()
    raw = resolve(text)[0]
    file = tmp_path / "key"
    file.write_text(f"{text}\n{OTHER.hex()}\n")
    (tmp_path / "raw").write_bytes(raw)
    monkeypatch.setenv("MY_KEY", f"{text},file:{tmp_path / 'raw'}")
    for source in (raw, raw.hex(), text, "env:MY_KEY", tmp_path / "raw", lambda: text, [lambda: raw]):
        assert resolve(source) == [raw]
    assert resolve(f"file:{file}") == resolve([file]) == [raw, OTHER]
    for wrong in (b"short", "password", "", [], 7, "env:NOT_SET", f"file:{tmp_path / 'none'}", "x" * 44):
        with pytest.raises(InvalidInput) as error:
            resolve(wrong)
        assert "password" not in str(error.value).replace("A password is none", "")


def test_the_variable_is_the_default(tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_ENCRYPTION_KEY", new_key())
    with Tenuto("a", tmp_path / "store.db") as agent:
        agent.state.set("s", "k", "secret text")
        assert agent.store.stats()["encrypted"]
        agent.store.backup(tmp_path / "copy.db")
    for file in ("store.db", "copy.db"):
        assert b"secret text" not in (tmp_path / file).read_bytes()
    with Tenuto("a", tmp_path / "copy.db") as again:
        assert again.state.get("s", "k") == "secret text"
    assert "encrypted" not in Tenuto("a", backend).store.stats(), "a backend that is passed is taken as it is"


def test_keys_are_in_no_representation() -> None:
    assert "0123" not in repr(Encryption(KEY))


# -- rotation ------------------------------------------------------------------------------------------


def test_rotation_takes_the_old_key_its_power(backend: Backend) -> None:
    Encrypt(backend, KEY).commit([], [Put(key("a"), SECRET), Append(key("log"), SECRET)])
    both = Encrypt(backend, [OTHER, KEY])
    reading = Encrypt(backend, [OTHER, KEY])  # has the keys of before in memory
    assert reading.read([key("a")])[0].value == SECRET  # type: ignore[union-attr]
    assert both.rotate("acme").data_keys == 2
    both.commit([], [Put(key("b"), SECRET)])
    assert [one.value for one in reading.scan(key())] == [SECRET, SECRET], "it learns of the new data key"
    reading.commit([], [Put(key("c"), SECRET)])
    with pytest.raises(WrongKey):
        Encrypt(backend, KEY).read([key("a")])
    new = Encrypt(backend, OTHER)
    assert [one.value for one in new.scan(key())] == [SECRET] * 3
    assert new.entries(key("log"))[0].value == SECRET
    assert new.check() == []


def test_a_commit_is_known_again_after_a_rotation(backend: Backend) -> None:
    store = Encrypt(backend, [OTHER, KEY])
    writes = [Put(key("a"), SECRET)]
    store.commit([], writes)
    request = new_request(store.now())
    store.commit([], writes, request=request)
    store.rotate("acme")
    assert store.commit([], writes, request=request).repeated
    assert store.read([key("a")])[0].version == 2  # type: ignore[union-attr]


WORKER = """
import os, signal, sys
from tenuto.wrappers.encrypt.wrapper import Encrypt
from tenuto.wrappers.encrypt import Encryption
from tenuto.backends import connect

class Killed:
    def __init__(self, inner, left):
        self.inner, self.left = inner, left
    def __getattr__(self, name):
        return getattr(self.inner, name)
    def commit(self, *given, **options):
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        return self.inner.commit(*given, **options)

url, left = sys.argv[1], int(sys.argv[2])
print(Encrypt(Killed(connect(url), left), [b"new key of 32 bytes ............", b"0123456789abcdef" * 2]).rotate("acme"))
"""


@pytest.mark.parametrize("kind", kinds("sqlite", "postgres", "valkey"))
def test_a_rotation_killed_in_the_middle_completes(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = new_url(kind, request, tmp_path / "store.db")
    store = Encrypt(connect(url), Encryption(KEY, user_keys=True))
    for n in range(250):
        store.commit([], [Put(keys.pack("acme", f"user-{n}", "user", "name"), SECRET)])
    killed = []
    for left in (0, 1, 2, 99):  # before the marker, after it, between two pages, not at all
        done = subprocess.run(
            [sys.executable, "-c", WORKER, url, str(left)], capture_output=True, text=True, check=False
        )
        killed.append(done.returncode == -signal.SIGKILL)
        again = Encrypt(connect(url), [b"new key of 32 bytes ............", KEY])
        assert len(again.scan(keys.pack("acme"), limit=1_000)) == 250, "everything is readable in between"
    assert killed == [True, True, True, False], done.stderr
    assert "data_keys=2" in done.stdout, "the unfinished rotation was completed, not begun anew"
    new = Encrypt(connect(url), b"new key of 32 bytes ............")
    assert {one.value for one in new.scan(keys.pack("acme"), limit=1_000)} == {SECRET}
    assert not new._users[keys.pack("acme")].has_stale()
    with pytest.raises(WrongKey):
        store.rotate("acme")
    print(done.stdout.strip())


def test_trimmed_entries_come_back_after_rotations(backend: Backend) -> None:
    """They link only with the bytes that they had, sealed with the data keys of then."""
    store = Encrypt(backend, Encryption(KEY, hash_names=True))
    for n in range(9):
        store.commit([], [Append(key("log"), b"%d" % n)])
        if n in (2, 4):
            store.rotate("acme")
    before = store.entries(key("log"))
    assert store.trim(key("log"), 8) == 7
    forged = [*before[:6], before[6]._replace(value=b"forged")]
    with pytest.raises(Damaged):
        store.load([], {key("log"): forged})
    assert store.load([], {key("log"): before[:7]}) == 7
    assert store.entries(key("log")) == before, "with the digests that they had"
    assert store.check() == []
    assert store.streams(keys.pack("acme")) == [key("log")]


@pytest.mark.parametrize("options", ["", "names,users"])
def test_an_encrypted_store_is_copied_to_a_plain_one_and_back(tmp_path: Path, options: str) -> None:
    one = Tenuto("a", tmp_path / "one.db", encryption_key=encryption_of(options))
    two = Tenuto("a", tmp_path / "two.db")
    three = Tenuto("a", tmp_path / "three.db", encryption_key=Encryption(OTHER))
    live_a_little(one, "ann")
    two.store.copy_from(one.store)
    three.store.copy_from(two.store)
    assert three.store.compare(two.store) == []
    if not options:
        assert three.store.compare(one.store) == [], "with hashed names the rows have another order"
    assert three.store.copy_from(one.store).new == 0, "what is there is skipped"
    assert three.user("ann").items() == {"city": "ann lives in Lisbon"}


# -- keys of users -------------------------------------------------------------------------------------


@pytest.fixture
def agent(backend: Backend) -> Tenuto:
    return Tenuto("agent", backend, encryption_key=Encryption(KEY, user_keys=True))


def live_a_little(agent: Tenuto, user: str) -> None:
    agent.user(user).set("city", f"{user} lives in Lisbon")
    agent.thread(f"t-{user}", user=user).append({"role": "user", "content": f"{user} says hello"})
    agent.memory.remember(f"{user} prefers aisle seats", user=user)
    with agent.run(f"r-{user}", user=user) as run:
        run.step("book", lambda: f"{user} has ticket 7")
    agent.checkpoint.create("half", {"of": f"{user}'s trip"}, thread=f"t-{user}")
    agent.tasks.enqueue("mail", {"text": f"{user} gets mail"}, user=user, key=f"mail-{user}")


def test_destroying_the_key_of_a_user_forgets_the_user_and_nobody_else(backend: Backend, agent: Tenuto) -> None:
    for user in ("ann", "bob"):
        live_a_little(agent, user)
    other = Tenuto("other", backend, encryption_key=KEY)
    assert other.user("ann")["city"] == "ann lives in Lisbon"
    assert agent.store.destroy_user_key("ann")
    assert not agent.store.destroy_user_key("ann")
    for client in (agent, Tenuto("new", backend, encryption_key=KEY)):
        assert client.user("ann").get("city") is None
        assert client.thread("t-ann").messages() == []
        assert client.memory.recall("seats", user="ann") == []
        assert [one.id for one in client.threads.list()] == ["t-bob"]
        assert [one.id for one in client.runs.list()] == ["r-bob"]
        assert client.user("bob")["city"] == "bob lives in Lisbon"
        assert client.thread("t-bob").messages()[0]["content"] == "bob says hello"
        assert [one.memory.text for one in client.memory.recall("seats", user="bob")] == ["bob prefers aisle seats"]
        assert client.checkpoint.restore("half", thread="t-bob") == {"of": "bob's trip"}
    assert agent.store.check().ok
    left = [one.value for one in backend.scan(keys.pack("default"), limit=1_000)]
    left += [one.value for stream in backend.streams(keys.pack("default")) for one in backend.entries(stream)]
    assert len({value[:9] for value in left if value[:1] == seal.OF_USER}) == 1, "only bob's key seals anything"
    agent.thread("t-ann", user="ann").append({"role": "user", "content": "hello again"})
    assert agent.thread("t-ann").messages()[0]["content"] == "hello again", "a user may come back"


def test_what_is_of_a_user_is_sealed_with_the_users_key(backend: Backend, agent: Tenuto) -> None:
    live_a_little(agent, "ann")
    sealed, others = [], []
    for one in backend.scan(keys.pack("default"), limit=1_000):
        if not one.key.startswith(keys.pack("default") + keys.ENCRYPTION):
            (sealed if one.value[:1] == seal.OF_USER else others).append(keys.unpack(one.key)[1:])
    print("of the user:", sealed)
    print("of the tenant:", others)
    assert {"user", "memory", "checkpoint", "run"} <= {str(parts[1]) for parts in sealed}
    assert any(parts[:2] == ("tasks", "task") for parts in sealed)
    assert not any("ann" in str(parts[0]) for parts in others)


def test_another_process_stops_reading_within_half_a_minute(
    backend: Backend, agent: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.user("ann").set("city", "Lisbon")
    other = Tenuto("other", backend, encryption_key=KEY)
    assert other.user("ann")["city"] == "Lisbon"
    agent.store.destroy_user_key("ann")
    later = users.time.monotonic() + users.MOST_CACHED + 1
    monkeypatch.setattr(users.time, "monotonic", lambda: later)
    assert other.user("ann").get("city") is None


def test_a_missing_key_of_a_user_is_damage_not_absence(backend: Backend, agent: Tenuto) -> None:
    agent.user("ann").set("city", "Lisbon")
    own = keys.pack("default") + keys.ENCRYPTION + keys.pack("key")
    from tenuto.kernel.contract import Delete

    backend.commit([], [Delete(one.key) for one in backend.scan(own)])
    with pytest.raises(Damaged, match="missing"):
        Tenuto("other", backend, encryption_key=KEY).user("ann").get("city")


def test_options_are_fixed_by_the_first_write(backend: Backend, agent: Tenuto) -> None:
    agent.state.set("s", "k", 1)
    with pytest.raises(InvalidInput, match="user_keys=True"):
        Tenuto("other", backend, encryption_key=Encryption(KEY, user_keys=False)).open()
    assert Tenuto("other", backend, encryption_key=KEY).state.get("s", "k") == 1


# -- hashed names --------------------------------------------------------------------------------------


def test_no_name_is_stored_in_the_clear_when_names_are_hashed(backend: Backend) -> None:
    agent = Tenuto("agent", backend, encryption_key=Encryption(KEY, hash_names=True, user_keys=True))
    live_a_little(agent, "ann")
    assert [one.id for one in agent.threads.list()] == ["t-ann"]
    assert agent.user("ann").items() == {"city": "ann lives in Lisbon"}
    stored = b"".join(one.key + one.value for one in backend.scan(keys.pack("default"), limit=1_000))
    for name in (b"ann", b"thread", b"mail", b"city", b"half"):
        assert name not in stored
    assert agent.store.check().ok


class Altered:
    """A store between whose bytes and their reader somebody stands; the store's own checksums are right."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.alter: Callable[[bytes, bytes], bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _seen(self, place: bytes, one: Any) -> Any:
        if one is None or self.alter is None:
            return one
        return one._replace(value=self.alter(place, one.value))

    def read(self, wanted: Any) -> list[Record | None]:
        return [self._seen(place, one) for place, one in zip(wanted, self._inner.read(wanted), strict=True)]

    def scan(self, prefix: bytes, **options: Any) -> list[Record]:
        return [self._seen(one.key, one) for one in self._inner.scan(prefix, **options)]

    def entries(self, stream: bytes, **options: Any) -> list[Entry]:
        return [self._seen(stream, one) for one in self._inner.entries(stream, **options)]


def flipped(value: bytes, bit: int) -> bytes:
    at = bit // 8
    return value[:at] + bytes([value[at] ^ 1 << bit % 8]) + value[at + 1 :] if at < len(value) else value


# -- the contract on servers, and with every option --------------------------------------------------------


class OverServer(BackendContract):
    overhead = seal.OVERHEAD
    rings = True
    kind = ""

    @pytest.fixture(autouse=True)
    def _place(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.url = new_url(self.kind, request, tmp_path / "store.db")

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return encrypted(connect(self.url, clock=clock), KEY)


@pytest.mark.slow
class TestEncryptedPostgres(OverServer):
    kind = "postgres"


@pytest.mark.slow
class TestEncryptedValkey(OverServer):
    kind = "valkey"


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="with TENUTO_LONG=1: the scripts are those of Valkey")
class TestEncryptedCluster(OverServer):
    kind = "cluster"
    rings = False


class TestHashedNames(BackendContract):
    """The order of keys is that of their hashes; all else is the contract."""

    durable = False
    rings = True
    _places: dict[Path, VolatileBackend] = {}

    overhead = seal.OVERHEAD + 2 + len(keys.pack("tenant", "scope", "a"))

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        if place not in self._places:
            self._places[place] = VolatileBackend(clock=clock)
        return encrypted(self._places[place], Encryption(KEY, hash_names=True))

    def test_some_order_explains_what_concurrent_calls_were_answered(self, client: Callable[[], Backend]) -> None:
        """Without pages of names: the judge expects these in the order of names, not of hashes."""
        clients = [client() for _ in range(3)]
        for seed in ("first", "second"):
            calls = random_calls([*clients, clients[0]], seed, 40)
            verify([one for one in calls if one.look is None or one.look.verb == "entries"])

    def test_a_scan_stays_below_its_prefix(self, store: Backend) -> None:
        inside = {keys.pack("tenant", "scope", *parts) for parts in (("p",), ("p", ""), ("p", "x"), ("p", 7, "y"))}
        outside = {keys.pack("tenant", "scope", *parts) for parts in (("o",), ("pp",), ("p\x00",), ("q", "p"))}
        store.commit([], [Put(name, b"v") for name in inside | outside])
        assert {r.key for r in store.scan(keys.pack("tenant", "scope", "p"))} == inside
        assert {r.key for r in store.scan(keys.pack("tenant"))} == inside | outside

    def test_a_scan_follows_byte_order(self, store: Backend) -> None:
        """Numbers do; names come in the order of their hashes, each once, also in pages and backwards."""
        numbers = [key(n, tenant="tenant", scope="scope") for n in (-70000, -1, 0, 1, 255, 256, 65536)]
        names = [key(t, tenant="tenant", scope="scope") for t in ("", "a", "a\x00", "ab", "é")]
        store.commit([], [Put(name, b"v") for name in reversed(numbers + names)])
        scope = keys.pack("tenant", "scope")
        found = [r.key for r in store.scan(scope, limit=1000)]
        assert sorted(found) == sorted(numbers + names)
        assert [one for one in found if one in numbers] == sorted(numbers)
        assert [r.key for r in store.scan(scope, limit=1000, reverse=True)] == found[::-1]
        assert [r.key for r in store.scan(scope, after=found[4])] == found[5:]


class TestUserKeys(BackendContract):
    overhead = seal.OVERHEAD
    durable = False
    rings = True
    _places: dict[Path, VolatileBackend] = {}

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        if place not in self._places:
            self._places[place] = VolatileBackend(clock=clock)
        return encrypted(self._places[place], Encryption(KEY, user_keys=True))


SAMPLE = ("test_state.py", "threads/test_reading.py", "runs/test_due.py", "checkpoints", "tasks/test_tasks.py")


@pytest.mark.slow
def test_what_capabilities_promise_they_promise_on_an_encrypted_store() -> None:
    """A sample of their tests; TENUTO_TEST_ENCRYPTED=plain pytest tests/capabilities runs all, on every backend."""
    folder = Path(__file__).parents[1] / "capabilities"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "volatile and not too_large"]
    environment = {**os.environ, "TENUTO_TEST_ENCRYPTED": "users"}
    done = subprocess.run(
        [*command, *(str(folder / name) for name in SAMPLE)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-3_000:]
