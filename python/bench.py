"""CPU time per task of `infer` at a number of tasks outstanding: that of this process, all threads.

python bench.py SCHEDULER MODEL [TASKS] [OUTSTANDING]

The Rust client's is that of the process `client` of `baton bench path --outstanding N`, on the same machine, in turn
with this. A model whose ℓ(b) is near zero and a backend on cores of its own leave the client's cost.
"""

import asyncio
import resource
import sys
import time

import baton


async def worker(model: baton.Model, row: bytes, tasks: int) -> int:
    completed = 0
    for _ in range(tasks):
        completed += isinstance(await model.infer(row), baton.Completed)
    return completed


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def main(scheduler: str, name: str, tasks: int, outstanding: int) -> None:
    async with await baton.connect_async(scheduler, models=[name], slots_per_model=outstanding) as client:
        model = client.model(name)
        row = bytes(model.input_bytes)
        await asyncio.gather(*(worker(model, row, 2) for _ in range(outstanding)))
        each = max(1, tasks // outstanding)
        cpu, clock = cpu_s(), time.monotonic()
        completed = sum(await asyncio.gather(*(worker(model, row, each) for _ in range(outstanding))))
        cpu, clock = cpu_s() - cpu, time.monotonic() - clock
    count = each * outstanding
    print(f"{count} tasks, {outstanding} outstanding, {completed} completed: {count / clock:.0f}/s,", end=" ")
    print(f"{cpu / count * 1e6:.1f} us of CPU each")


if __name__ == "__main__":
    numbers = [int(number) for number in sys.argv[3:]]
    asyncio.run(main(sys.argv[1], sys.argv[2], *(numbers + [20_000, 1_000][len(numbers) :])))
