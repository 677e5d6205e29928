"""Many tasks outstanding at once, awaited in an event loop.

python pipelined.py 127.0.0.1:7700 [model] [tasks]
"""

import asyncio
import sys
from collections import Counter

import baton


async def main(scheduler: str = "127.0.0.1:7700", name: str | None = None, tasks: str = "1000") -> None:
    async with await baton.connect_async(scheduler) as client:
        names = [name] if name else [model.name for model in client.models()]
        if not names:
            sys.exit("the scheduler serves no model")
        model = client.model(names[0])
        row = bytes(model.input_bytes)
        # Those for which no slot is free wait for one, in order.
        outcomes = await asyncio.gather(*(model.infer(row) for _ in range(int(tasks))))
    print(Counter("completed" if isinstance(done, baton.Completed) else done.reason for done in outcomes))


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:4]))
    except (baton.BatonError, ValueError) as error:  # no scheduler there, no such model, a word that is no number
        sys.exit(f"{error}")
