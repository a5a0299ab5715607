"""What holds for a limiter holds for one that shares its counts: the same tests, over a store."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.engines import Engine, engine
from tests.over_a_store import Stores, shared_tests

MODULES = [
    "test_limiter",
    "test_cancellation",
    "test_edges",
    "test_field_notes",
    "test_joint",
    "test_warmup",
    "test_shadow",
    "test_restriction",
]

#: Tests that are about something else, and why.
LEFT_OUT: dict[str, str] = {}

_stores = Stores()


@pytest.fixture(scope="module")
def valkey() -> Iterator[Engine]:
    with engine() as one:
        yield one


@pytest.fixture(autouse=True)
async def _stores_are_closed(valkey: Engine) -> AsyncIterator[None]:
    _stores.url = valkey.url
    yield
    await _stores.close()


for _module in MODULES:
    for _name, _found in shared_tests(_module, _stores.limiter, LEFT_OUT):
        globals()[_name] = _found
