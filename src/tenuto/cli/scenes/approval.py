"""An agent that asks before it pays, and exits. When the question is answered, the next call resumes the run."""

from tenuto import Tenuto, Waiting


def pay(amount):
    print(f"  paying {amount} €", flush=True)
    return f"paid {amount} €"


try:
    with Tenuto("payer") as agent, agent.run("invoice-881") as run:
        print(run, flush=True)
        amount = run.step("read the invoice", lambda: 4_200)
        answer = run.ask(f"Pay {amount} €?", to="finance", choices=["yes", "no"])
        print(run.step("pay", pay, amount, effect="once") if answer == "yes" else "not paid")
except Waiting as pause:
    print(f"  {pause}")
