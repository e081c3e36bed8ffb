"""An invoice without a receipt: found, blocked, routed to its owner, escalated after 24 hours, answered, paid once.

    python invoice.py setup                   # who owns invoices, where they are notified, what happened last time
    python invoice.py agent                   # finds the exception, blocks the payment, asks finance, and exits
    python invoice.py worker                  # notifies; again after --hours 25: escalates to the lead, and notifies
    python invoice.py answer lead approve     # the lead answers
    python invoice.py agent                   # pays, once, and completes
    python invoice.py trail                   # everything that happened

Each command may be killed with -9 anywhere and repeated. `--hours` moves the clock in `clock.txt`, so that no one has to wait.
Set HOOK to the address of a webhook, and HOOK_SECRET to its secret, to be notified.
"""

import argparse
import os
from pathlib import Path

from tenuto import Happened, Intent, NotHappened, Run, Tenuto, Waiting

CLOCK, BANK = Path("clock.txt"), Path("bank.log")
INVOICE = {"id": 881, "vendor": "acme", "amount": 4_200, "receipt": None}


class FileClock:
    """A clock that all these processes share; it moves when someone moves it."""

    def time(self) -> float:
        """Return the time in the file."""
        return float(CLOCK.read_text()) if CLOCK.exists() else 1_800_000_000.0

    def sleep(self, seconds: float) -> None:
        """Move the clock at once."""
        new = CLOCK.with_suffix(".new")
        new.write_text(str(self.time() + seconds))
        new.replace(CLOCK)


clock = FileClock()
agent = Tenuto("accounts", clock=clock)


def setup() -> None:
    agent.routes.add(
        about="invoice:*", to="finance", deadline="24h", escalate=["lead"], policy="Over 1,000 a receipt is required."
    )
    if "HOOK" in os.environ:
        for name in ("finance", "lead"):
            agent.notify.to(name, f"{os.environ['HOOK']}/{name}", secret="env:HOOK_SECRET")
    last = agent.ask("Invoice 640 lacks a receipt", to="finance", about=["vendor:acme"], key="invoice-640")
    if last.open:
        agent.inbox.answer(last.id, "approve", by="finance")


def pay(amount: int) -> str:
    with BANK.open("a") as file:
        file.write(f"paid {amount} for invoice 881\n")
    return "paid"


def find_payment(_: Intent) -> Happened | NotHappened:
    """Ask the bank."""
    return Happened("paid") if BANK.exists() and BANK.read_text() else NotHappened()


@agent.durable
def process(run: Run) -> str:
    invoice = run.step("read", lambda: INVOICE)
    if invoice["receipt"] is None:
        answer = run.ask(
            f"Invoice {invoice['id']} lacks a receipt",
            about=["invoice:881", "vendor:acme"],
            context=invoice,
            choices=["approve", "reject"],
            blocks="invoice:881",
            key="invoice-881",
        )
        if answer != "approve":
            return "rejected"
    return run.step("pay", pay, invoice["amount"], effect="once", verify=find_payment, gate="invoice:881")


def work() -> None:
    try:
        print(process.run("invoice-881"))
    except Waiting:
        question = agent.inbox.get("invoice-881")
        print(f"blocked: {question.text}, asked of {question.to}; policy: {question.policy}")
        print(f"last time: {question.last and question.last['answer']}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["setup", "agent", "worker", "answer", "trail"])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--hours", type=float, default=0, help="move the clock first")
    options = parser.parse_args()
    if options.hours:
        clock.sleep(options.hours * 3_600)
    if options.command == "setup":
        setup()
    elif options.command == "agent":
        work()
    elif options.command == "worker":
        print(f"fired {agent.inbox.fire()}, notified {agent.notify.deliver()}")
    elif options.command == "answer":
        by, answer = options.words
        if agent.inbox.get("invoice-881").open:
            agent.inbox.answer("invoice-881", answer, by=by)
    else:
        for event in agent.inbox.history("invoice-881"):
            print(f"{event.at:%d %H:%M} {event.what} {event.by or ''} {event.details or ''}")


if __name__ == "__main__":
    main()
