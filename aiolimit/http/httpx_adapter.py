"""What httpx and its successor httpx2 have in common; knows neither, as their classes differ."""

from typing import Any, Final

from aiolimit.http.feedback import Headers

__all__ = ["HttpxAdapter"]

_KEPT: Final = 65_536  # bytes of a refusal that are read so that its connection can be used again


class HttpxAdapter:
    """See `client.Adapter`.

    byte_stream: the class of bodies that can be sent again.
    """

    def __init__(self, byte_stream: type[Any]) -> None:
        self._byte_stream = byte_stream

    def host(self, request: Any) -> str:
        """The host of the URL."""
        return str(request.url.host)

    def can_repeat(self, request: Any) -> bool:
        """Whether its body is bytes, and not a stream that is used up."""
        return isinstance(request.stream, self._byte_stream)

    def facts(self, response: Any) -> tuple[int, Headers]:
        """The status and the headers."""
        return response.status_code, response.headers.raw

    async def put_by(self, response: Any) -> Any:
        """Read a short body to its end; close the response otherwise."""
        if response.is_closed:
            return response  # `classify` has read it
        length = response.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and int(length) <= _KEPT):
            await response.aclose()
            return None
        body = b"".join([part async for part in response.aiter_raw()])
        # A new one, as the client has yet to see it begin and end.
        return type(response)(
            response.status_code,
            headers=response.headers,
            stream=self._byte_stream(body),
            extensions=response.extensions,
        )

    async def discard(self, response: Any) -> None:
        """Close it."""
        await response.aclose()
