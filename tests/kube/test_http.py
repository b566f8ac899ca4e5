"""HTTP as the wire sees it: answers in any pieces, and what is known of a request that got none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlease.kube.api.http import ConnectionPool, HttpResponse, Unreachable, _Chunks

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces) + b"0\r\n\r\n"


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=5), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_chunks_come_out_whole_whatever_the_pieces_they_arrive_in(pieces: list[bytes], sizes: list[int]) -> None:
    sent, chunks, got, turn = chunked(pieces), _Chunks(), b"", 0
    while sent:
        size = sizes[turn % len(sizes)]
        got += b"".join(chunks.feed(sent[:size]))
        sent, turn = sent[size:], turn + 1
    assert got == b"".join(pieces)
    assert chunks.done


async def asked(answer: Answer, times: int = 1, timeout_s: float = 5.0) -> list[HttpResponse]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = ConnectionPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", lambda: None, None, 4)
    try:
        return [await pool.ask(pool.encode("GET", "/", "", None, ""), timeout_s) for _ in range(times)]
    finally:
        await pool.close()
        server.close()


def saying(*pieces: bytes) -> Answer:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)

    return answer


def test_an_answer_with_a_length_is_read_and_the_connection_used_again() -> None:
    head = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 5\r\n\r"
    for response in asyncio.run(asked(saying(head, b"\nab", b"cde"), times=3)):
        assert response == HttpResponse(429, 7.0, b"abcde")


def test_no_answer_is_asked_for_in_compressed_form() -> None:
    """Streams of several gzip members are read by half by some libraries; a watch that is not compressed loses nothing."""
    pool = ConnectionPool("http://127.0.0.1:1", lambda: None, None, 1)
    for method, body in (("GET", None), ("PATCH", b"{}")):
        head = pool.encode(method, "/api", "", body, "application/json").lower()
        assert head.count(b"\r\naccept-encoding: ") == head.count(b"\r\naccept-encoding: identity\r\n") == 1


def test_a_chunked_answer_is_read_byte_by_byte() -> None:
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked([b"abc", b"defgh"])
    (response,) = asyncio.run(asked(saying(*(whole[at : at + 1] for at in range(len(whole))))))
    assert response.body == b"abcdefgh"


def test_a_body_without_length_ends_with_its_connection() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        writer.close()

    (response,) = asyncio.run(asked(answer))
    assert response.body == b"all of it"


def test_a_silent_server_is_left_and_may_have_got_the_request() -> None:
    with pytest.raises(Unreachable, match="no answer within") as caught:
        asyncio.run(asked(saying(), timeout_s=0.2))
    assert caught.value.sent


def test_a_server_that_is_not_there_got_nothing() -> None:
    async def ask() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        pool = ConnectionPool(f"http://127.0.0.1:{port}", lambda: None, None, 4)
        await pool.ask(pool.encode("GET", "/", "", None, ""), 5.0)

    with pytest.raises(Unreachable) as caught:
        asyncio.run(ask())
    assert not caught.value.sent


def test_what_is_no_http_is_an_error_and_no_hang() -> None:
    with pytest.raises(Unreachable, match="speaks no HTTP"):
        asyncio.run(asked(saying(b"SSH-2.0-OpenSSH\r\n\r\n")))
