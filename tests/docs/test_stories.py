"""The three stories of `examples/`: each is killed with -9 in the middle, resumed, and its effects counted outside."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.story import EXAMPLES, Story


def test_the_research_continues_at_page_31(tmp_path: Path) -> None:
    story = Story("research", tmp_path)
    first = story.killed("--kill-at", "31")
    assert first[0] == "starting survey-2026"
    assert first[-1] == "  read page 30"

    second = story.run()

    assert second[0].startswith("resuming survey-2026 at read number 31 (30 steps reused, ")
    assert second[0].endswith(" and $0.12 saved)")
    assert second[1] == "  read page 31"
    assert story.lines("pages.log") == [str(page) for page in range(1, 51)], "each page was read once"
    third = story.run()
    assert third[0].startswith("replaying survey-2026 (51 steps reused, ")
    assert third[1:] == second[-1:], "what it came to is what it was"


@pytest.mark.parametrize("at", [1, 31, 50])
def test_the_reviewer_posts_no_comment_twice(tmp_path: Path, at: int) -> None:
    story = Story("review", tmp_path)
    story.killed("--kill-at", str(at))
    assert len(story.lines("comments.jsonl")) == at, "the last one was posted, and its record was not written"

    second = story.run()

    assert second[0].startswith(
        f"resuming review-pr-9 at post [src/module_{at:02}.py] ({2 * at - 1} step{'s' if at > 1 else ''} reused"
    )
    assert second[1] == f"  found comment {at} on src/module_{at:02}.py: not posted again"
    files = [f"src/module_{number:02}.py" for number in range(1, 51)]
    assert [json.loads(line)["path"] for line in story.lines("comments.jsonl")] == files, "one comment for each file"
    assert story.lines("model.log") == files, "the model read each file once"
    assert second[-1] == story.run()[-1] == "done: 50 files, 50 comments"


def test_the_deployment_repeats_neither_tests_nor_build_nor_release(tmp_path: Path) -> None:
    story = Story("deploy", tmp_path)
    assert story.run()[0] == "starting deploy-1.2.3"
    story.killed("--answer", "yes", "--kill")

    third = story.run()

    assert third[0].startswith("resuming deploy-1.2.3 at release (2 steps reused, ")
    assert third[1:] == ["  the server has image-1.2.3", "image-1.2.3 is live"]
    assert story.lines("work.log") == ["tested 1.2.3", "built 1.2.3"]
    assert story.lines("server.log") == ["released image-1.2.3"]
    assert story.run() == ["image-1.2.3 is live"]


def test_a_research_killed_from_outside_wherever_it_is_reads_at_the_most_the_page_in_hand_again(tmp_path: Path) -> None:
    for kill in (1, 2, 3):
        with subprocess.Popen(
            [sys.executable, str(EXAMPLES / "research.py")],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={key: value for key, value in os.environ.items() if key != "TENUTO_URL"},
        ) as child:  # fmt: skip
            assert child.stdout is not None
            told = [child.stdout.readline() for _ in range(8)]
            child.kill()
        assert told[0].startswith("starting" if kill == 1 else "resuming"), told

    last = Story("research", tmp_path).run()

    assert last[-1].startswith("50 pages, 408 citations")
    pages = [int(line) for line in (tmp_path / "pages.log").read_text().split()]
    assert set(pages) == set(range(1, 51))
    assert len(pages) <= 50 + kill, "at the most one page for each kill"


LOOPS = {
    "openai_loop": ("bookings.jsonl", 5, "Done: booked TP123."),
    "anthropic_loop": ("sent.jsonl", 6, "Ann knows."),
}
"""What an example's effect is noted in, how many calls it makes undisturbed, and what it comes to."""


@pytest.mark.parametrize(
    ("name", "at"), [(name, at) for name, (_, calls, _) in LOOPS.items() for at in range(1, calls)]
)
def test_a_tool_loop_goes_on_wherever_it_is_killed(tmp_path: Path, name: str, at: int) -> None:
    effect, calls, result = LOOPS[name]
    story = Story(name, tmp_path)
    first = story.killed("--kill-at", str(at))
    assert first[0].startswith("starting ")
    assert len(story.lines("work.log")) == at

    second = story.run()

    assert second[0].startswith("resuming ")
    assert second[-1] == result
    worked = story.lines("work.log")
    assert len(story.lines(effect)) == 1, "never twice"
    assert len(set(worked)) == calls, "everything was called"
    assert len(worked) <= calls + 1, "only the call in hand may have been repeated"
    assert story.run()[-1] == result
    assert story.lines("work.log") == worked, "a third time calls nothing"
