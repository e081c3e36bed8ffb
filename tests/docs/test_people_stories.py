"""The stories of people in `examples/`: the invoice, killed with -9 at each boundary, the deal, and the supplier."""

import base64
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from standardwebhooks import Webhook
from support.receivers import Receiver, http_receiver

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLED_AT = Path(__file__).parents[1] / "support" / "killed_at_commit.py"
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()


class Invoice:
    """The story, command by command; each is killed at every boundary that it has, and repeated until it ends."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        self._folder = folder
        kept = {key: value for key, value in os.environ.items() if key != "TENUTO_URL"}
        self._environment = {**kept, "HOOK": receiver.url, "HOOK_SECRET": SECRET}
        self.kills = 0

    def run(self, *words: str) -> str:
        done = self._run(str(EXAMPLES / "invoice.py"), *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def killed_everywhere(self, *words: str) -> str:
        """Kill it right before and right after its first commit, then its second, and so on, until it ends unharmed."""
        for n in range(1, 20):
            for when in ("before", "after"):
                done = self._run(str(KILLED_AT), str(n), when, str(EXAMPLES / "invoice.py"), *words)
                if done.returncode == 0:
                    return done.stdout
                assert done.returncode == -signal.SIGKILL, done.stderr
                self.kills += 1
                self._pass_a_minute()
        raise AssertionError("it does not end")

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", *words],
            cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def _pass_a_minute(self) -> None:
        """Let the leases of the dead end."""
        clock = self._folder / "clock.txt"
        clock.write_text(str(float(clock.read_text() if clock.exists() else "1800000000") + 61))


@pytest.mark.slow
def test_the_invoice_is_paid_once_whatever_is_killed(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        story = Invoice(tmp_path, receiver)
        story.run("setup")
        story.killed_everywhere("worker")
        before = len(set(receiver.ids))

        def trail() -> list[str]:
            return [line.split()[2] for line in story.run("trail").splitlines()]

        shown = story.killed_everywhere("agent")
        assert "asked of finance; policy: Over 1,000 a receipt is required." in shown
        assert "last time: approve" in shown
        story.killed_everywhere("worker")
        story.run("worker", "--hours", "1")
        assert trail()[:2] == ["asked", "notified"]
        (tmp_path / "clock.txt").write_text(str(float((tmp_path / "clock.txt").read_text()) + 24 * 3_600))
        story.killed_everywhere("worker")
        story.killed_everywhere("answer", "lead", "approve")
        story.killed_everywhere("worker")
        story.killed_everywhere("agent")
        assert story.run("agent") == "paid\n"
        told = [line for line in story.run("trail").splitlines() if " notified " not in line]
        assert [line.split()[2] for line in told] == ["asked", "escalated", "answered"]
        assert "answered lead" in told[-1]
        assert (tmp_path / "bank.log").read_text() == "paid 4200 for invoice 881\n"
        sent = [Webhook(SECRET).verify(body, headers) for headers, body in receiver.got]
        assert all(sent)
        # asked: finance; escalated: lead; answered: finance and lead. A repeat after a kill has the same id.
        assert len(set(receiver.ids)) - before == 4
        assert trail().count("notified") == 4, "each was recorded as delivered once"
        assert story.kills >= 10


def run(name: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_deal_older_than_24_hours_escalates_with_its_context() -> None:
    shown = run("deal")
    assert ["warned" in shown[0], "warned" in shown[1], "escalated" in shown[2]] == [True] * 3
    assert shown[2].startswith("1 day, 0:00:00")
    assert shown[3].startswith("asked now: desk, head of sales; context: {'deal': 'globex-7'")
    assert shown[4] == "answered by head of sales: {'discount': 0.25}"
    assert shown[5] == "8 business hours after Sat 09:00 UTC is Mon 16:00 UTC"


def test_a_missed_milestone_starts_the_contingency_once() -> None:
    shown = run("supplier")
    assert shown[0] == "missed: 1 and then: 0"
    assert shown[1] == "  1: ordering samples from supplier 9"
    assert shown[-1] == "supplier-7/samples: met late, {'parcel': 12}"
