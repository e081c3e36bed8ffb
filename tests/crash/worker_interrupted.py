"""A program that is interrupted in the middle of a commit and goes on, as one at a prompt does.

worker_interrupted.py STORE
"""

import json
import sys

from tenuto import Tenuto, TenutoError
from tenuto.kernel import keys
from tenuto.kernel.contract import Append

stream = keys.pack("s", "lines")
agent = Tenuto("interrupted", f"sqlite:///{sys.argv[1]}?timeout=120").open()  # however slow the machine is
print("ready", flush=True)
acknowledged, errors = [], []
for line in sys.stdin:
    print("writing", flush=True)
    value = line.strip()
    try:
        done = agent.kernel.commit([], [Append(stream, value.encode())])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except TenutoError as error:
        errors.append(f"{type(error).__name__}: {error}")
        print("failed:", errors[-1], flush=True)
    else:
        acknowledged.append([value, done.versions[0]])
        print("written", flush=True)
agent.close()
print(json.dumps([acknowledged, errors]), flush=True)
