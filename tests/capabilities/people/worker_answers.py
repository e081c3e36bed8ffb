"""Answer every open question of a store, and print the ids of those that this process answered: `worker_answers.py URL NAME`."""

import sys

from tenuto import Conflict, Tenuto

url, name = sys.argv[1:]
with Tenuto(name, url) as agent:
    asked = agent.inbox.list()
    print("ready", flush=True)
    sys.stdin.readline()
    for question in asked:
        try:
            agent.inbox.answer(question.id, name, by=name)
        except Conflict:
            continue
        print(question.id, flush=True)
