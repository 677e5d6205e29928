"""Many tasks outstanding at once, awaited in an event loop.

python pipelined.py 127.0.0.1:7700 MODEL TASKS
"""

import asyncio
import sys
from collections import Counter

import baton


async def main(scheduler: str, name: str, tasks: str) -> None:
    async with await baton.connect_async(scheduler) as client:
        model = client.model(name)
        row = bytes(model.input_bytes)
        # Those for which no slot is free wait for one, in order.
        outcomes = await asyncio.gather(*(model.infer(row) for _ in range(int(tasks))))
    print(Counter("completed" if isinstance(done, baton.Completed) else done.reason for done in outcomes))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
