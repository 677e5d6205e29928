"""What happens to whole processes: ends in the middle, Ctrl-C, fork, and what is left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[[str], "subprocess.CompletedProcess[str]"]

ENDS = {
    "tasks outstanding": "t = [baton.connect(scheduler).model('slow').submit(bytes(64)) for _ in range(3)]",
    "a view": "client = baton.connect(scheduler); a = client.model('slow').input().array()",
    "sys.exit": "import sys\nt = baton.connect(scheduler).model('slow').submit(bytes(64))\nsys.exit()",
    "awaiting": """
import asyncio
async def main():
    model = baton.connect(scheduler).model('slow')
    asyncio.ensure_future(model.infer(bytes(64)))
    asyncio.ensure_future(model.input_ready())
    await asyncio.sleep(0.01)
asyncio.run(main())
""",
    "a thread that waits": """
import threading
t = baton.connect(scheduler).model('slow').submit(bytes(64))
threading.Thread(target=t.wait, daemon=True).start()
""",
    "a loop that was never closed": """
import asyncio
loop = asyncio.new_event_loop()
ticket = baton.connect(scheduler).model('slow').submit(bytes(64))
async def wait(): await ticket
task = loop.create_task(wait())
loop.call_later(0.02, loop.stop)
loop.run_forever()
task._log_destroy_pending = False
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_ends_cleanly(run: Run, end: str) -> None:
    for _ in range(3):
        ended = run(ENDS[end])
        assert (ended.returncode, ended.stderr) == (0, "")


def test_ctrl_c_ends_a_wait(run: Run) -> None:
    ended = run(
        """
import os, signal, threading, time
model = baton.connect(scheduler).model('slow')
tickets = [model.submit(bytes(64)) for _ in range(20)]
for wait in [tickets[-1].wait, lambda: next(baton.as_completed([tickets[-2]]))]:
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted")
tickets[-1].cancel()
print(tickets[-1].wait())
"""
    )
    assert ended.stdout == "interrupted\ninterrupted\n<Dropped: cancelled>\n", ended.stderr
    assert ended.returncode == 0


def test_ctrl_c_ends_connecting(run: Run) -> None:
    ended = run(
        """
import os, signal, socket, threading
silent = socket.create_server(("127.0.0.1", 0))
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    baton.connect("127.0.0.1:%d" % silent.getsockname()[1], connect_timeout=100)
except KeyboardInterrupt:
    print("interrupted")
"""
    )
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr


def test_a_forked_child_is_refused_and_does_no_harm(run: Run) -> None:
    ended = run(
        """
import gc, os
client = baton.connect(scheduler)
model = client.model('quick')
input, ticket = model.input(), model.submit(bytes(4096))
child = os.fork()
if child == 0:
    refused = 0
    for act in [ticket.wait, ticket.cancel, lambda: model.submit(bytes(4096)), input.submit, client.leave, input.array]:
        try:
            act()
        except (baton.ForkedError, BufferError) as error:
            assert "parent process" in str(error), error
            refused += 1
    del client, model, input, ticket
    gc.collect()
    with baton.connect(scheduler) as own:
        assert isinstance(own.model('quick').submit(bytes(4096)).wait(), baton.Completed)
    os._exit(0 if refused == 6 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert isinstance(ticket.wait(), baton.Completed)
input.close()
client.leave()
print("well")
"""
    )
    assert (ended.returncode, ended.stdout) == (0, "well\n"), ended.stderr


def test_what_a_forked_child_drops_stays_the_parents(run: Run) -> None:
    """Also what the child frees while the I/O thread sleeps: a thread that submits or cancels then sends by itself."""
    ended = run(
        """
import os, time
client = baton.connect(scheduler, slots_per_model=4)
model = client.model('slow')
first, second, third = (model.submit(bytes(64)) for _ in range(3))
input = model.input()
time.sleep(0.05)  # the I/O thread goes to sleep
child = os.fork()
if child == 0:
    del third, second, first, input, model, client
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print([type(ticket.wait()).__name__ for ticket in [first, second, third]])
input.close()
client.leave()
"""
    )
    assert (ended.returncode, ended.stdout) == (0, "['Completed', 'Completed', 'Completed']\n"), ended.stderr


def test_nothing_is_left_behind(run: Run) -> None:
    """Ten thousand tasks: no slot stays in use, and memory does not grow."""
    ended = run(
        """
import asyncio, resource
client = baton.connect(scheduler)
model = client.model('quick')
async def flood(count):
    row = bytes(4096)
    await asyncio.gather(*(model.infer(row, within=60) for _ in range(count)))
asyncio.run(flood(2000))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(4):
    asyncio.run(flood(2000))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(client.slots_in_use, client.counters()['submitted'], grown < 4096 or grown)
"""
    )
    assert (ended.returncode, ended.stdout) == (0, "0 10000 True\n"), ended.stderr
