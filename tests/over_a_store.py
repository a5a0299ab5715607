"""The tests of limiters that count in this process, as tests of limiters that share a store.

They are the same tests, read with `await` where an answer has to be waited for: `limiter.peek()` is
`await limiter.peek_async()`, and `clock.jump(1)` is `await clock.advance(1)`, in which answers
come. Each limiter they make has a store of its own, with keys of its own.
"""

import ast
import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from aiolimit import Limiter, Statistics
from aiolimit.redis import RedisStore
from aiolimit.shared.admission import SharedAdmission
from aiolimit.shared.line import SharedQueues

__all__ = ["Stores", "shared_tests"]

_LATER = {"try_acquire", "peek", "reset"}


class Stores:
    """Makes limiters with stores at one engine, and closes those when the test ends."""

    def __init__(self) -> None:
        self.url = ""
        self.count = 0
        self.open: list[RedisStore] = []

    def limiter(self, *rates: Any, **options: Any) -> Limiter:
        self.count += 1
        # A deadline that a busy machine keeps, too.
        store = RedisStore(self.url, prefix=f"test:{self.count}:", timeout=10.0)
        made = Limiter(*rates, store=store, **options)
        self.open.append(store)
        return made

    async def close(self) -> None:
        for store in self.open:
            await store.aclose()
        self.open.clear()


class _Awaiting(ast.NodeTransformer):
    """Inside of an async function: awaits what a store answers later, and helpers that do so."""

    def __init__(self, helpers: set[str]) -> None:
        self.helpers = helpers

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in _LATER:
                node.func.attr += "_async"
                return ast.Await(node)
            if node.func.attr == "jump":
                node.func.attr = "advance"
                return ast.Await(node)
            if node.func.attr == "statistics":
                called = ast.Call(ast.Name("_settled", ast.Load()), [node.func.value], [])
                return ast.Await(called)
        elif isinstance(node.func, ast.Name) and node.func.id in self.helpers:
            return ast.Await(node)
        return node

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        self.generic_visit(node)
        return ast.ListComp(node.elt, node.generators)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node


def _nests_sync_calls(node: ast.AST) -> bool:
    """Whether a plain function inside calls what has to be awaited."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.Lambda)):
            for call in ast.walk(inner):
                if isinstance(call, ast.Attribute) and call.attr in _LATER | {"jump"}:
                    return True
    return False


async def _settled(limiter: Limiter) -> Statistics:
    """What a limiter counts, when it has heard of all it has asked."""
    admission = limiter._admission
    while isinstance(admission, SharedAdmission) and (
        admission.sharing.is_busy() or cast(SharedQueues, admission.queues)._new
    ):
        await asyncio.sleep(0.0002)
    return limiter.statistics()


def _awaiting(body: list[ast.stmt]) -> list[ast.stmt]:
    """The same functions; helpers that call what has to be awaited are async, too."""
    helpers = {
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef)
        and not node.decorator_list
        and any(isinstance(one, ast.Attribute) and one.attr in _LATER for one in ast.walk(node))
    }
    awaiting = _Awaiting(helpers)
    made: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.AsyncFunctionDef):
            awaiting.generic_visit(node)
        elif isinstance(node, ast.FunctionDef) and node.name in helpers:
            awaiting.generic_visit(node)
            node = ast.copy_location(ast.AsyncFunctionDef(**dict(ast.iter_fields(node))), node)
        made.append(node)
    return made


def shared_tests(
    module: str, limiter: Any, left_out: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    """The fixtures and async tests of a module, over a store; not those left out."""
    path = Path(__file__).parent / f"{module}.py"
    tree = ast.parse(path.read_text())
    body: list[ast.stmt] = []
    for node in tree.body:
        name = getattr(node, "name", "")
        is_test = name.startswith("test_")
        if is_test and not isinstance(node, ast.AsyncFunctionDef):
            continue
        if is_test and (name in left_out or _nests_sync_calls(node)):
            continue
        body.append(node)
    tree.body = _awaiting(body)
    ast.fix_missing_locations(tree)
    names: dict[str, Any] = {"__name__": f"tests.{module}", "__file__": str(path)}
    from _pytest.assertion.rewrite import rewrite_asserts

    rewrite_asserts(tree, path.read_bytes(), str(path))
    exec(compile(tree, str(path), "exec"), names)  # noqa: S102
    names |= {"Limiter": limiter, "_settled": _settled}
    for name, found in names.items():
        if name.startswith("test_") and callable(found):
            yield f"{name}", found
        elif type(found).__name__ == "FixtureFunctionDefinition":
            yield name, found
