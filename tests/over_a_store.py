"""The tests of limiters that count in this process, as tests of limiters that share a store.

They are the same tests, read with `await` where an answer has to be waited for: `limiter.peek()` is
`await limiter.peek_async()`, and `clock.jump(1)` is `await clock.advance(1)`, in which answers
come. Each limiter they make has a store of its own, with keys of its own.
"""

import ast
import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _pytest.assertion.rewrite import rewrite_asserts

from aiolimit import Limiter, Statistics
from aiolimit.queue import Queue
from aiolimit.redis import RedisStore
from aiolimit.shared.admission import SharedAdmission

__all__ = ["Stores", "shared_tests"]

_LATER = {"try_acquire", "peek", "reset"}
_LOOPS = {"run", "run_until_complete"}


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


def _makes_a_limiter(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "Limiter" for one in ast.walk(node))


def _cannot_await(node: ast.AST) -> bool:
    """Whether it runs loops of its own, or calls from a plain function what has to be awaited."""
    plain = [one for one in ast.walk(node) if isinstance(one, (ast.FunctionDef, ast.Lambda))]
    calls = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    inside = {
        one.attr
        for inner in plain
        if inner is not node
        for one in ast.walk(inner)
        if isinstance(one, ast.Attribute)
    }
    return bool(calls & _LOOPS or inside & (_LATER | {"jump"}))


def _has_new(queue: Queue) -> bool:
    return any(not waiter.is_counted for waiter in queue)


async def _settled(limiter: Limiter) -> Statistics:
    """What a limiter counts, when it has heard of all it has asked."""
    admission = limiter._admission
    while isinstance(admission, SharedAdmission) and (
        admission.sharing.is_busy() or any(map(_has_new, admission.queues.by_key.values()))
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
    helpers |= {
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
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
) -> tuple[set[str], dict[str, Any]]:
    """The names of a module's tests that make a limiter; its fixtures, and those not left out."""
    path = Path(__file__).parent / f"{module}.py"
    tree = ast.parse(path.read_text())
    names: set[str] = set()
    body: list[ast.stmt] = []
    for node in tree.body:
        name = getattr(node, "name", "")
        if name.startswith("test_"):
            if not _makes_a_limiter(node):
                continue
            names.add(name)
            if name in left_out:
                continue
            if _cannot_await(node):
                raise ValueError(f"{name} cannot be read with await: leave it out, and say why")
        body.append(node)
    tree.body = _awaiting(body)
    ast.fix_missing_locations(tree)
    rewrite_asserts(tree, path.read_bytes(), str(path))
    found: dict[str, Any] = {"__name__": f"tests.{module}", "__file__": str(path)}
    exec(compile(tree, str(path), "exec"), found)  # noqa: S102
    found |= {"Limiter": limiter, "_settled": _settled}
    return names, {
        name: one
        for name, one in found.items()
        if name.startswith("test_") or type(one).__name__ == "FixtureFunctionDefinition"
    }
