"""What httpx and its successor httpx2 have in common; knows neither, as their classes differ."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiolimit.http.feedback import Headers

__all__ = ["HttpxAdapter"]

_KEPT: Final = 65_536  # bytes of a refusal that are read so that its connection can be used again


class HttpxAdapter:
    """See `client.Adapter`.

    classes: of the library, by the names that both have.
    """

    def __init__(self, classes: Mapping[str, Any]) -> None:
        self._byte_stream = classes["ByteStream"]
        self._never_left = (
            *(classes["ConnectError"], classes["ConnectTimeout"], classes["PoolTimeout"]),
        )
        self._read_error = classes["ReadError"]
        # A stream of a class that their clients accept.
        self._recording = type("Recording", (_Recording, classes["AsyncByteStream"]), {})

    def host(self, request: Any) -> str:
        """The host of the URL."""
        return str(request.url.host)

    def can_repeat(self, request: Any) -> bool:
        """Whether its body is at hand, and not a stream that is used up."""
        if isinstance(request.stream, self._byte_stream):
            return True
        fields: list[Any] = getattr(request.stream, "fields", [])  # of a form
        return bool(fields) and all(_is_at_hand(getattr(one, "file", b"")) for one in fields)

    def never_left(self, error: Exception) -> bool:
        """Whether there was no connection to send it on."""
        return isinstance(error, self._never_left)

    def facts(self, response: Any) -> tuple[int, Headers]:
        """The status and the headers."""
        return response.status_code, response.headers.raw

    def shown(self, request: Any, response: Any) -> tuple[Any, Any]:
        """Two responses on one body: what is read of the first, the second has as well."""
        source = response.stream
        body = _Recorded(source)
        cut = self._read_error("`classify` was stopped while it read the body", request=request)
        view = self._again(response, self._recording(body, None, cut))
        view.request = request
        return view, self._again(response, self._recording(body, source, cut))

    async def put_by(self, response: Any) -> Any:
        """Read a short body to its end; close the response otherwise."""
        length = response.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and int(length) <= _KEPT):
            await response.aclose()
            return None
        body = b"".join([part async for part in response.aiter_raw()])
        return self._again(response, self._byte_stream(body))

    async def discard(self, response: Any) -> None:
        """Close it."""
        await response.aclose()

    def _again(self, response: Any, stream: Any) -> Any:
        """The same response with another body, which its client has yet to see begin and end."""
        return type(response)(
            response.status_code,
            headers=response.headers,
            stream=stream,
            extensions=response.extensions,
        )


def _is_at_hand(file: Any) -> bool:
    if isinstance(file, bytes | str):
        return True
    seekable = getattr(file, "seekable", None)
    return seekable is not None and bool(seekable())


class _Recorded:
    """What was read of a body so far, and what broke it off."""

    __slots__ = ("broken_by", "read", "rest")

    def __init__(self, source: Any) -> None:
        self.rest: AsyncIterator[bytes] = aiter(source)
        self.read: list[bytes] = []
        self.broken_by: Exception | None = None


class _Recording:
    """A body that can be read twice: first what was read already, then the rest.

    source: what to close in the end; None for the first reader, which closes nothing.
    cut: the error for who comes second, if the first was stopped in the middle.
    """

    def __init__(self, body: _Recorded, source: Any, cut: Exception) -> None:
        self._body = body
        self._source = source
        self._cut = cut

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = self._body
        for part in tuple(body.read):
            yield part
        if body.broken_by is not None:
            raise body.broken_by
        while True:
            try:
                part = await anext(body.rest)
            except StopAsyncIteration:
                return
            except Exception as error:
                body.broken_by = error
                raise
            except BaseException:
                body.broken_by = self._cut
                raise
            if self._source is None:
                body.read.append(part)
            yield part

    async def aclose(self) -> None:
        if self._source is not None:
            await self._source.aclose()
