from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any, cast

import pytest

import embedllm
from embedllm.errors import DeviceUnavailable, PackageError
from embedllm.loading.options import LoadOptions
from embedllm.model.model import Model
from embedllm.server.memory_need import MemoryNeed, memory_need
from embedllm.server.model_pool import ModelPool, PoolBusy, ServedModel, UnknownModel
from tests.server.serving import WAIT_S
from tests.server.simulated_loop import simulate


class FakeModel:
    """Knows who uses it, and complains when it is closed meanwhile."""

    def __init__(self, path: str, log: list[str]) -> None:
        self.path, self.log = path, log
        self.users = self.served = 0
        self.is_closed = False
        log.append(f"load {path}")

    def close(self) -> None:
        assert not self.users, f"{self.path} was unloaded while {self.users} used it"
        assert not self.is_closed
        self.is_closed = True
        self.log.append(f"close {self.path}")


class Models:
    """Fake models of one unit of memory each, or of as many as `units` says."""

    def __init__(self, **units: int) -> None:
        self.units = units
        self.log: list[str] = []
        self.opened: list[FakeModel] = []
        self.failing: dict[str, BaseException] = {}

    def load(self, path: str, options: LoadOptions) -> Model:
        if path in self.failing:
            raise self.failing[path]
        self.opened.append(FakeModel(path, self.log))
        return cast("Model", self.opened[-1])

    def pool(self, memory: int | None, *pinned: str, **options: Any) -> ModelPool:  # noqa: ANN401
        served = [ServedModel(name=name, path=name, pinned=name in pinned) for name in self.units]
        return ModelPool(served, load=self.load, memory=memory, need=lambda one: MemoryNeed(self.units[one.name]),
                         **options)  # fmt: skip


async def request(pool: ModelPool, name: str, seconds: float = 1.0) -> str:
    async with pool.use(name) as lease:
        model = cast("FakeModel", lease.model)
        assert not model.is_closed
        model.users, model.served = model.users + 1, model.served + 1
        try:
            await asyncio.sleep(seconds)
        finally:
            assert not model.is_closed
            model.users -= 1
    return lease.name


def states(pool: ModelPool) -> dict[str, str]:
    return {one.name: one.state for one in pool.listed()}


def test_a_model_is_loaded_by_the_first_request_and_stays() -> None:
    models = Models(a=1)

    async def main() -> None:
        pool = models.pool(None)
        assert states(pool) == {"a": "asleep"}
        assert await asyncio.gather(request(pool, "a"), request(pool, ""), request(pool, "a")) == ["a"] * 3
        assert states(pool) == {"a": "loaded"}
        assert list(pool.loaded) == ["a"]
        await pool.aclose()
        assert states(pool) == {"a": "asleep"}

    simulate(main)
    assert models.log == ["load a", "close a"]


def test_a_load_waits_for_the_requests_of_the_model_that_has_to_go_and_serves_all_who_wait() -> None:
    models = Models(a=1, b=1)

    async def main() -> list[str]:
        pool, ended = models.pool(1), []

        async def run(name: str, start: float, seconds: float) -> None:
            await asyncio.sleep(start)
            await request(pool, name, seconds)
            ended.append(f"{name}{start:g}")

        # b asks while a is in use: a2 came after b1, so it waits for b
        await asyncio.gather(run("a", 0, 10), run("b", 1, 1), run("a", 2, 1), run("b", 3, 1))
        return ended

    assert simulate(main, lambda: 0.1) == ["a0", "b1", "b3", "a2"]
    assert models.log == ["load a", "close a", "load b", "close b", "load a"]


def test_both_stay_loaded_where_there_is_room_and_the_one_least_recently_used_goes() -> None:
    models = Models(a=2, b=2, c=2)

    async def main() -> None:
        pool = models.pool(4)
        for name in ("a", "b", "a", "c", "a"):
            await request(pool, name)
        assert states(pool) == {"a": "loaded", "b": "asleep", "c": "loaded"}  # b is listed

    simulate(main)
    assert models.log == ["load a", "load b", "close b", "load c"]


def test_a_small_model_does_not_go_where_that_does_not_help() -> None:
    models = Models(small=1, large=3, other=3)

    async def main() -> None:
        pool = models.pool(4)
        for name in ("small", "large", "other"):
            await request(pool, name)

    simulate(main)
    assert models.log == ["load small", "load large", "close large", "load other"]


def test_a_small_model_does_not_overtake_a_large_one_that_waits_for_room() -> None:
    models = Models(a=1, large=2, small=1)

    async def main() -> None:
        pool = models.pool(2)
        for name in models.units:  # now it is known what they need
            await request(pool, name)
        models.log.clear()
        using = asyncio.create_task(request(pool, "a", 10))
        await asyncio.sleep(5)
        await asyncio.gather(using, request(pool, "large"), request(pool, "small"))

    simulate(main)
    assert [line for line in models.log if line.startswith("load")] == ["load a", "load large", "load small"]


def test_a_pinned_model_is_loaded_at_the_start_and_never_unloaded() -> None:
    models = Models(a=1, b=1, c=1)

    async def main() -> None:
        async with models.pool(2, "b", idle_seconds=5) as pool:
            assert states(pool)["b"] == "loaded"
            for name in ("a", "c", "b", "a"):
                await request(pool, name)
            await asyncio.sleep(100)
            assert states(pool) == {"a": "asleep", "b": "loaded", "c": "asleep"}

    simulate(main)
    assert models.log == ["load b", "load a", "close a", "load c", "close c", "load a", "close a", "close b"]


def test_idle_models_are_unloaded_in_time_and_not_before() -> None:
    models = Models(a=1, b=1)

    async def main() -> None:
        pool = models.pool(2, idle_seconds=10)
        await asyncio.gather(request(pool, "a"), request(pool, "b", 30))
        await asyncio.sleep(0)
        assert states(pool) == {"a": "asleep", "b": "loaded"}
        await asyncio.sleep(9)
        assert states(pool)["b"] == "loaded"
        await asyncio.sleep(5)
        assert states(pool) == {"a": "asleep", "b": "asleep"}
        await request(pool, "a")

    simulate(main)


def test_who_waits_too_long_is_told_when_to_come_again() -> None:
    models = Models(a=1, b=1)

    async def main() -> None:
        pool = models.pool(1, max_wait=5, max_waiting=2)
        using = asyncio.create_task(request(pool, "a", 100))
        await asyncio.sleep(3)
        with pytest.raises(PoolBusy, match=r"'b' was not ready within 5 s") as caught:
            await request(pool, "b")
        assert 1 <= caught.value.retry_after <= 60
        waiting = [asyncio.create_task(request(pool, "b")) for _ in range(2)]
        await asyncio.sleep(1)
        with pytest.raises(PoolBusy, match="2 requests wait"):
            await request(pool, "b")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert await request(pool, "a") == "a"  # a is no longer asked to go
        await using

    simulate(main)
    assert models.log == ["load a"]


def test_whoever_was_told_busy_during_a_load_finds_the_model_afterwards() -> None:
    models = Models(slow=1, other=1)

    async def main() -> None:
        pool = models.pool(1, max_wait=10)
        with pytest.raises(PoolBusy) as caught:
            await request(pool, "slow")
        others = asyncio.create_task(request(pool, "other"))  # must not take the place of a load that served nobody
        await asyncio.sleep(caught.value.retry_after)
        await request(pool, "slow")
        with suppress(PoolBusy):
            await others

    simulate(main, iter([0.1, 12.0, *[0.1] * 9]).__next__)
    assert models.log[:2] == ["load slow", "close slow"]
    assert [model.served for model in models.opened][:1] == [1]


def test_a_failed_load_is_said_to_all_who_waited_and_tried_again() -> None:
    models = Models(a=1, b=1)

    async def main() -> None:
        pool = models.pool(1)
        models.failing["a"] = PackageError("damaged")
        found = await asyncio.gather(*(request(pool, name) for name in "aab"), return_exceptions=True)
        assert [str(one) for one in found] == ["damaged", "damaged", "b"]
        assert states(pool) == {"a": "failed", "b": "loaded"}
        assert "damaged" in pool.listed()[0].error
        del models.failing["a"]
        assert await request(pool, "a") == "a"

    simulate(main)


def test_a_model_beyond_a_budget_that_was_set_is_refused_and_beyond_what_is_free_loaded_alone() -> None:
    models = Models(a=1, huge=9)

    async def main() -> None:
        pool = models.pool(4)
        with pytest.raises(DeviceUnavailable, match="'huge' needs about"):
            await request(pool, "huge")
        assert await request(pool, "a") == "a"

        free = ModelPool([ServedModel(name=name, path=name) for name in ("a", "huge")], load=models.load,
                         need=lambda one: MemoryNeed(models.units[one.name], "gpu", 4))  # fmt: skip
        for name in ("a", "huge", "a"):
            assert await request(free, name) == name

    simulate(main)
    assert models.log[1:] == ["load a", "close a", "load huge", "close huge", "load a"]


def test_a_closed_pool_ends_waiting_requests_and_takes_no_more() -> None:
    models = Models(a=1, b=1)

    async def main() -> None:
        pool = models.pool(1)
        using = asyncio.create_task(request(pool, "a", 1))
        waiting = asyncio.create_task(request(pool, "b"))
        await asyncio.sleep(2.5)
        await using if using.done() else None
        closing = asyncio.create_task(pool.aclose())
        with pytest.raises(PoolBusy, match="closing"):
            await waiting
        await closing
        with pytest.raises(PoolBusy, match="closing"):
            await request(pool, "a")

    simulate(main)


def test_names_aliases_and_adapters() -> None:
    def served(name: str, *aliases: str, adapters: tuple[str, ...] = ()) -> ServedModel:
        options = LoadOptions(adapters=dict.fromkeys(adapters, "folder") if adapters else None)
        return ServedModel(name=name, path=name, aliases=aliases, options=options)

    models = Models()
    pool = ModelPool([served("org/a:int4", "gpt", adapters=("sql", "both")), served("b", adapters=("both",))],
                     load=models.load, need=lambda _: MemoryNeed(1))  # fmt: skip

    async def found(name: str | None) -> tuple[str, str | None, str]:
        async with pool.use(name) as lease:
            return cast("FakeModel", lease.model).path, lease.adapter, lease.name

    async def main() -> None:
        first = ("org/a:int4", None, "org/a:int4")
        assert [await found(name) for name in (None, "", "gpt", "org/a:int4")] == [first] * 4
        with_sql = ("org/a:int4", "sql", "org/a:int4:sql")
        assert [await found(name) for name in ("sql", "gpt:sql", "org/a:int4:sql")] == [with_sql] * 3
        assert await found("b:both") == ("b", "both", "b:both")
        for name, says in (("both", "'org/a:int4:both' or 'b:both'"), ("gtp", "nearest is 'gpt'"),
                           ("b:sql", "it has: 'both'"), ("../../etc", "no model")):  # fmt: skip
            with pytest.raises(UnknownModel, match=says):
                await found(name)

    simulate(main)
    with pytest.raises(ValueError, match="two models are named 'a'"):
        ModelPool([served("a"), served("b", "a")])
    with pytest.raises(ValueError, match="no model to serve"):
        ModelPool([])


def test_the_demo_is_measured_loaded_and_answers() -> None:
    async def main() -> None:
        options = LoadOptions(device="cpu")
        async with ModelPool([ServedModel(name="demo", path="demo", options=options)], idle_seconds=0.2) as pool:
            async with pool.use("demo") as lease:
                reply = await lease.model.agenerate("list", max_tokens=3)
                assert len(reply.tokens) == 3
            (status,) = pool.listed()
            assert status.memory_bytes == memory_need(ServedModel(name="demo", path="demo", options=options)).bytes
            async with asyncio.timeout(WAIT_S):
                while pool.listed()[0].state != "asleep":
                    await asyncio.sleep(0.05)
            with pytest.raises(embedllm.PackageError):
                async with ModelPool([ServedModel(name="no", path="nowhere")]).use("no"):
                    pass

    asyncio.run(main())


def _schedule(seed: int) -> None:
    """Random requests for three models with room for one: some are cancelled, some loads fail."""
    draw = random.Random(seed)
    models = Models(a=1, b=1, c=1)
    waits = draw.choice((5.0, 30.0, 1000.0))
    served: list[str] = []

    async def main() -> None:
        pool = models.pool(draw.choice((1, 1, 1, 2)), max_wait=waits, idle_seconds=draw.choice((None, 3.0)))

        async def client() -> str:
            await asyncio.sleep(draw.uniform(0, 20))
            working = asyncio.create_task(request(pool, draw.choice("abc"), draw.uniform(0, 4)))
            if draw.random() < 0.15:
                await asyncio.sleep(draw.uniform(0, 8))
                working.cancel()
            try:
                return f"served {await working}"
            except PoolBusy:
                return "busy"
            except PackageError:
                return "failed"
            except asyncio.CancelledError:
                return "cancelled"

        if draw.random() < 0.2:
            name = draw.choice("abc")
            models.failing[name] = PackageError("damaged")
            asyncio.get_running_loop().call_later(draw.uniform(0, 20), models.failing.clear)
        served.extend(await asyncio.gather(*(client() for _ in range(draw.randint(1, 12)))))
        assert not pool.waiting
        assert all(not one.requests for one in pool.listed())
        await pool.aclose()
        assert set(states(pool).values()) <= {"asleep", "failed"}

    simulate(main, lambda: draw.uniform(0.01, 6))
    assert all(model.is_closed for model in models.opened)
    if "cancelled" not in served and waits == 1000.0:
        assert "busy" not in served  # there was time for all
        assert all(model.served for model in models.opened), "a load served nobody"


@pytest.fixture
def _no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedllm.server.model_pool.gc.collect", lambda: 0)  # 20 ms each
    monkeypatch.setattr("embedllm.server.model_pool.trim_heap", lambda: None)


@pytest.mark.usefixtures("_no_collection")
def test_random_schedules_end_nothing_and_starve_nobody() -> None:
    for seed in range(200):
        _schedule(seed)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_collection")
def test_many_random_schedules_end_nothing_and_starve_nobody() -> None:
    for seed in range(3000):
        _schedule(seed)
