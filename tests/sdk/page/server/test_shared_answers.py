"""Equal requests of several pages are computed once, until the database changes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.responses import Response

from chiplog_page.server import shared_answers
from chiplog_page.server.shared_answers import SharedAnswers
from tests.support.loops import in_a_loop
from tests.support.page_client import PageClient


class Counting:
    """Answers with the number of calls so far."""

    def __init__(self) -> None:
        self.n_calls = self.n_cancelled = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self) -> Response:
        self.n_calls += 1
        number = self.n_calls
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        return Response(str(number))


async def body(answer: Awaitable[Response]) -> str:
    return bytes((await answer).body).decode()


@in_a_loop
async def test_pages_share_an_answer_even_while_it_is_computed() -> None:
    shared, answer = SharedAnswers(lambda: 7), Counting()
    answer.may_end.clear()
    waiting = [asyncio.create_task(body(shared.get("/curves?a", answer))) for _ in range(3)]
    await asyncio.sleep(0)
    answer.may_end.set()
    assert await asyncio.gather(*waiting) == ["1", "1", "1"]
    assert await body(shared.get("/curves?a", answer)) == "1"
    assert await body(shared.get("/curves?b", answer)) == "2"


@in_a_loop
async def test_a_change_of_the_database_ends_the_sharing() -> None:
    position = 7
    shared, answer = SharedAnswers(lambda: position), Counting()
    assert await body(shared.get("/curves", answer)) == "1"
    position = 8
    assert await body(shared.get("/curves", answer)) == "2"


@in_a_loop
async def test_without_a_known_position_nothing_is_shared() -> None:
    shared, answer = SharedAnswers(lambda: None), Counting()
    assert await body(shared.get("/curves", answer)) == "1"
    assert await body(shared.get("/curves", answer)) == "2"


@in_a_loop
async def test_a_page_that_leaves_does_not_take_the_answer_from_the_others() -> None:
    shared, answer = SharedAnswers(lambda: 7), Counting()
    answer.may_end.clear()
    leaving, staying = (asyncio.create_task(body(shared.get("/curves", answer))) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    answer.may_end.set()
    assert await staying == "1"


@in_a_loop
async def test_an_answer_ends_with_the_last_page_that_waits_for_it() -> None:
    shared, answer = SharedAnswers(lambda: 7), Counting()
    answer.may_end.clear()
    waiting = [asyncio.create_task(body(shared.get("/curves", answer))) for _ in range(2)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await asyncio.sleep(0)
    assert answer.n_cancelled == 1
    answer.may_end.set()
    assert await body(shared.get("/curves", answer)) == "2"


@in_a_loop
async def test_an_answer_that_is_being_computed_is_shared_for_as_long_as_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_answers, "KEPT_S", 0.0)
    shared, answer = SharedAnswers(lambda: 7), Counting()
    answer.may_end.clear()
    first, second = (asyncio.create_task(body(shared.get("/verdict", answer))) for _ in range(2))
    await asyncio.sleep(0)
    answer.may_end.set()
    assert (await first, await second) == ("1", "1")
    assert await body(shared.get("/verdict", answer)) == "2"


@in_a_loop
async def test_a_change_by_this_server_ends_the_sharing() -> None:
    shared, answer = SharedAnswers(lambda: 7), Counting()
    answer.may_end.clear()
    early = asyncio.create_task(body(shared.get("/run", answer)))
    await asyncio.sleep(0)
    shared.forget()
    answer.may_end.set()
    assert await body(shared.get("/run", answer)) == "2"
    assert await early == "1"


@pytest.mark.full
def test_routes_whose_answers_depend_on_the_database_are_shared(
    reader: PageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def get(self: SharedAnswers, request: str, answer: Callable[[], Awaitable[Response]]) -> Response:
        asked.append(request)
        return await answer()

    monkeypatch.setattr(SharedAnswers, "get", get)
    paths = ["", "/ranks", "/system", "/system/curves?name=a", "/curves?key=loss", "/heat", "/verdict", "/timeline"]
    for path in paths:
        assert reader.ask(f"/api/runs/even{path}").status == 200
    assert [path.partition("even")[2].rstrip("?") for path in asked] == paths


@in_a_loop
async def test_an_error_is_not_kept() -> None:
    shared, answer = SharedAnswers(lambda: 7), Counting()

    async def failing() -> Response:
        raise ValueError("no such key")

    with pytest.raises(ValueError, match="no such key"):
        await shared.get("/curves", failing)
    assert await body(shared.get("/curves", answer)) == "1"
