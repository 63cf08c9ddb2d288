"""The header of a response is written together with its body, or alone without a body."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.serving.response_writer import ResponseWriter


@dataclass
class Transport:
    """Records written data and whether it was closed."""

    written: list[bytes] = field(default_factory=list)
    closed: bool = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True


@dataclass
class Cycle:
    """The attribute of uvicorn's request cycle that a writer reads."""

    response_started: bool = False


@pytest.fixture
def parts() -> tuple[Any, Any, ResponseWriter]:
    transport: Any = Transport()
    cycle: Any = Cycle()
    return transport, cycle, ResponseWriter(transport, cycle)


def test_header_and_body_are_one_write(parts: tuple[Any, Any, ResponseWriter]) -> None:
    transport, cycle, writer = parts
    cycle.response_started = True
    writer.write(b"head ")
    assert transport.written == []
    writer.write(b"body")
    writer.write(b" more")

    assert transport.written == [b"head body", b" more"]


def test_100_continue_is_sent_immediately(
    parts: tuple[Any, Any, ResponseWriter],
) -> None:
    transport, cycle, writer = parts
    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert transport.written == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    cycle.response_started = True
    writer.write(b"head ")
    writer.write(b"body")

    assert transport.written[1:] == [b"head body"]


@pytest.mark.parametrize("body", [[], [b""]])
def test_a_header_without_a_body_is_written_on_close(
    parts: tuple[Any, Any, ResponseWriter], body: list[bytes]
) -> None:
    transport, cycle, writer = parts
    cycle.response_started = True
    writer.write(b"head")
    for data in body:
        writer.write(data)
    writer.close()

    assert transport.written == [b"head"]
    assert transport.closed
