"""A worker without a model, for what the clients do when something fails: `python fake_worker.py [hang | LINE]`.

hang: it reads nothing, and does not end with its stdin. LINE: written in place of an answer.
"""

import json
import sys
import time


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def send(**message: object) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}))


if sys.argv[1:] == ["hang"]:
    time.sleep(3600)
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    if sys.argv[1:]:
        write(sys.argv[1])
    if request["method"] == "load":
        send(method="progress", params={"id": request["id"], "text": "loading", "elapsed_s": 0.0})
        send(method="log", params={"level": "INFO", "text": "device 'cpu'"})
    if request["method"] == "generate":
        for text in "abc":
            send(method="chunk", params={"id": request["id"], "text": text})
    send(id=request["id"], result={"text": "abc"})
