"""Lines of one event loop iteration are written together, and no line is lost."""

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor

from sluice.serving.log import json_log
from sluice.serving.log_writer import LogWriter


class Stream(io.StringIO):
    """Counts calls of write."""

    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)


def test_lines_of_one_loop_iteration_are_one_write() -> None:
    stream = Stream()
    log = json_log(LogWriter(stream))

    async def requests() -> None:
        for number in range(3):
            log.info("request", number=number)
        assert stream.writes == 0
        await asyncio.sleep(0)
        log.info("next turn")

    asyncio.run(requests())

    assert stream.writes == 2
    assert stream.getvalue().count("\n") == 4


def test_a_line_outside_an_event_loop_is_written_immediately() -> None:
    stream = Stream()
    LogWriter(stream).write("line\n")

    assert stream.getvalue() == "line\n"


def test_lines_of_concurrent_threads_are_not_mixed_or_lost() -> None:
    stream = Stream()
    writer = LogWriter(stream)
    sent = [f"{thread} {number}\n" for thread in range(4) for number in range(500)]

    async def write_all() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(4) as pool:
            parts = [sent[start : start + 500] for start in range(0, 2000, 500)]
            tasks = [
                loop.run_in_executor(pool, lambda p=part: [*map(writer.write, p)]) for part in parts
            ]
            for number in range(500):
                writer.write(f"loop {number}\n")
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)

    asyncio.run(write_all())
    lines = stream.getvalue().splitlines(keepends=True)

    assert sorted(lines) == sorted([*sent, *(f"loop {number}\n" for number in range(500))])
    assert [line for line in lines if line.startswith("loop")] == [
        f"loop {number}\n" for number in range(500)
    ]
