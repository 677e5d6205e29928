"""What the deployment did with a request, over Baton's gateway: classify the image on stdin, a JSON list of 64 numbers."""

import argparse
import json
import sys
import urllib.error
import urllib.request


def classify(gateway: str, pixels: list[float], deadline_ms: float) -> int:
    tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": pixels}
    request = urllib.request.Request(
        f"{gateway}/v2/models/digits/infer",
        data=json.dumps({"inputs": [tensor]}).encode(),
        headers={"baton-timeout-us": str(int(deadline_ms * 1000))},
    )
    # It raises at 429, which says in the header retry-after-ms when to ask again, and at 504: there was no time.
    with urllib.request.urlopen(request) as answer:
        logits = json.load(answer)["outputs"][0]["data"]
    return max(range(len(logits)), key=logits.__getitem__)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", default="http://127.0.0.1:8000")
    parser.add_argument("--deadline-ms", type=float, default=50)
    args = parser.parse_args()
    try:
        print(classify(args.gateway, json.load(sys.stdin), args.deadline_ms))
    except urllib.error.HTTPError as refused:
        sys.exit(f"{args.gateway} refuses: {refused.code} {refused.read().decode()}")
    except OSError as error:
        sys.exit(f"{args.gateway} does not answer ({error}); start the gateway, or name another with --gateway")
    except json.JSONDecodeError:
        sys.exit("stdin has no JSON list of 64 numbers; write one, as in: python client.py < image.json")
