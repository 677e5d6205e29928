"""One request: connect, write an input in place, submit it with a deadline, look at the outcome.

python classify.py 127.0.0.1:7700 [model]
"""

import sys

import baton


def main(scheduler: str = "127.0.0.1:7700", name: str | None = None) -> None:
    with baton.connect(scheduler) as client:
        names = [name] if name else [model.name for model in client.models()]
        if not names:
            sys.exit("the scheduler serves no model")
        model = client.model(names[0])
        input = model.input()  # a free slot, yours alone
        input[:] = 0  # written where backends will read it
        outcome = input.submit(within=model.slo_s).wait()
        match outcome:
            case baton.Completed(output, late=late):
                print(f"{model.name}: {output} in {outcome.latency_s * 1e3:.1f} ms{', late' if late else ''}")
            case baton.Dropped(reason, retry_after_s=wait):
                print(f"{model.name}: dropped ({reason}), try again in {wait} s")
            case baton.Failed():
                print(f"{model.name}: {outcome.explain()}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except (baton.BatonError, ValueError) as error:  # no scheduler there, no such model, no address
        sys.exit(f"{error}")
