"""The rules of the audit: what each code checks, what a finding means, and how to fix it. `tenuto explain` prints them."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from tenuto.errors import NotFound

Severity = Literal["critical", "high", "medium", "low"]
SEVERITIES: Final[tuple[str, ...]] = get_args(Severity)
Area = Literal["data", "performance", "concurrency", "checkpointing", "content"]


class Rule(NamedTuple):
    """One rule of the audit."""

    code: str
    area: Area
    title: str
    """What a passed rule proves, as a sentence."""
    severity: Severity
    tested: str
    """How it is tested."""
    meaning: str
    """What a finding means for an agent in production."""
    fix: str


_LOST: Final = (
    "agent.state.update(scope, key, change) retries on a conflict; state.set(…, expect=version) refuses a stale write."
)
_SHARED: Final = (
    "Keep the state outside the process: Tenuto('agent', 'agent.db'), or a Postgres or Redis URL for several machines."
)
_RUN: Final = (
    "Put the work into steps of a run: with agent.run(id) as run: run.step('pay', pay, effect='once', verify=happened)."
)

_ALL: Final = (
    Rule("T001", "data", "History of earlier sessions is readable", "critical",
         "Two sessions in two processes each add messages; a third process reads them all, in order.",
         "After a deployment or a crash the agent has forgotten the conversation, and the user starts again.", _SHARED),
    Rule("T002", "data", "Preferences persist", "critical",
         "One process writes a user's preferences; a new process reads exactly the same values.",
         "Users state their preferences again in each session, and the agent acts on the wrong ones.", _SHARED),
    Rule("T003", "data", "Multi-step progress is tracked", "critical",
         "A process records two steps of four and is killed with SIGKILL; a new process reads which are completed.",
         "A procedure that was interrupted begins again, and effects such as payments happen twice.", _SHARED),
    Rule("T004", "data", "State is shared between replicas", "critical",
         "Two processes that are both running read what the other one writes, within a second.",
         "With a load balancer the next message reaches a replica that knows nothing of the conversation.", _SHARED),
    Rule("T005", "data", "A backup restores everything", "high",
         "A backup is taken while the store is in use, restored elsewhere, and compared with the original.",
         "After a lost disk there is nothing to restore, or it was never tried.",
         "SQLite: tenuto backup FILE. Postgres: pg_dump. Redis: valkey-cli --rdb. For another manager, give its adapter backup(folder)."),
    Rule("T006", "data", "Values come back unchanged", "low",
         "A date, a tuple and text in several scripts are written; each is read unchanged or was refused.",
         "Types change without an error: a date becomes text, a tuple a list, and code that compares them fails later.",
         "Store through a closed format that keeps types or refuses them, as tenuto's does."),
    Rule("T007", "data", "A value that was read is a copy", "medium",
         "A value is read and changed in place without a write; reading it again returns the stored one.",
         "Half-made changes become visible to others before they are saved, and stay after an error.",
         "Return a copy from get, or serialise on each write."),
    Rule("T010", "performance", "Lookups are fast under load", "high",
         "Ten conversations read and write for a while; p95 of a lookup must be below 100 ms.",
         "Each turn of a conversation waits for its state before the model is called.",
         "Look at the disk (fsync time), the network, and the size of the values. tenuto load shows the percentiles."),
    Rule("T011", "performance", "Lookups stay fast as conversations grow in number", "high",
         "The same with 1, 10 and 100 concurrent conversations, each with a turn every 200 ms.",
         "It works in the pilot and not on the first busy day.",
         "Use one connection pool for each process, and a store that does not lock the whole file for reading."),
    Rule("T012", "performance", "Unavailable storage is an error, not an empty answer", "critical",
         "The storage is made unavailable; a read and a write must raise within ten seconds.",
         "An empty answer looks like a new user: the agent starts from zero, and then overwrites the real state.",
         "Raise a typed error (tenuto raises StorageUnavailable) and let the caller retry. Never return a default for it."),
    Rule("T013", "performance", "Operations can be observed", "medium",
         "The audit counts its own operations through a hook; each must be reported with its duration.",
         "Lost context does not show in CPU or memory: without figures no one notices.",
         "Tenuto('agent', hooks=[tenuto.hooks.Prometheus()]) or tenuto.hooks.OpenTelemetry()."),
    Rule("T014", "performance", "A person is alerted", "low",
         "At least one alert rule is stored with a channel to send it to.",
         "Figures that no one looks at do not wake anyone.",
         "agent.alerts.add(when='lookup.p95 > 100ms for 5m', to='ops'), and agent.notify.to('ops', URL)."),
    Rule("T020", "concurrency", "No update is lost between replicas", "critical",
         "Four processes increment one value; the value must equal the number of increments that returned.",
         "Of two replicas that change one state, one change disappears without an error.", _LOST),
    Rule("T021", "concurrency", "Several agents can work on one user", "high",
         "Four processes set different preferences of one user; all must be there afterwards.",
         "What one agent learned about a user is erased by another one that had read before.",
         "Store each preference under a key of its own (agent.user(id)[key] = value), not one document for each user."),
    Rule("T022", "concurrency", "A stale write is refused", "high",
         "A and B read the same value; B writes, then A writes with what it read. A must get a conflict.",
         "The last writer wins, and no one learns that something was overwritten.", _LOST),
    Rule("T023", "concurrency", "Reads are consistent", "high",
         "A process writes increasing numbers; another reads them. No read may go backwards or be older than a write that had returned.",
         "An agent answers from a state that its user has already changed.",
         "Read from the primary, and do not cache without checking the version."),
    Rule("T024", "concurrency", "A kill during a write leaves the old or the new value", "critical",
         "A process is killed with SIGKILL while it writes, several times; each time the value must be readable and no older than the last write that returned.",
         "A torn file ends the agent at its next start; a lost write repeats work that was done.",
         "Write to a new file, fsync, and rename; or leave it to a database."),
    Rule("T030", "checkpointing", "The storage is fit for production", "high",
         "State must survive its process, be shared, and be durable; connections must not grow with the number of calls.",
         "A store for tests loses everything at each restart; a connection for each call exhausts the server.", _SHARED),
    Rule("T031", "checkpointing", "There is a checkpoint before and after execution", "high",
         "A process is killed inside a step; afterwards the record must show that the step had begun.",
         "After a crash no one knows whether the payment was begun: it is repeated, or never made.", _RUN),
    Rule("T032", "checkpointing", "Resume handles what was in progress", "high",
         "A process is killed inside a step; the resumed run must not repeat completed steps.",
         "Completed work is repeated and paid again, or the run is stuck for ever.", _RUN),
    Rule("T033", "checkpointing", "External effects are checked, not repeated", "critical",
         "A process is killed after an external effect and before its record; the resumed run must not cause it again.",
         "Customers are charged twice.", _RUN),
    Rule("T034", "checkpointing", "Entries expire", "low",
         "A value with a time to live is gone after it.",
         "Sessions of users who never come back are kept for ever.",
         "state.set(…, ttl='30d'), thread(id, ttl='30d'), and tenuto prune for what is old."),
    Rule("T035", "checkpointing", "Storage grows with what is new", "medium",
         "A conversation of 80 turns is stored; the second half must not cost more per turn than the first.",
         "If each turn stores the whole conversation again, storage grows with its square: 1,000 turns of 1 KB take 500 MB.",
         "Append messages (agent.thread(id).append), or use checkpoints that store what changed."),
    Rule("T036", "checkpointing", "Progress documents name the next action", "low",
         "A progress document is written; a new session reads its next action.",
         "A new session has to find out from the conversation what to do next, and often starts over.",
         "agent.progress(name).next('…'), or with agent.session(name) as session."),
    Rule("T037", "checkpointing", "Old context is masked and old state pruned", "low",
         "A long tool output is masked in the built context, and old checkpoints can be deleted.",
         "The context overflows or is expensive, and storage holds what no one reads.",
         "agent.build_context(…) masks old tool outputs; agent.checkpoint.prune(…) deletes old checkpoints."),
    Rule("T038", "checkpointing", "Long-term memory is apart from session state", "medium",
         "A conversation is deleted; what is known of its user must still be there.",
         "Either nothing can be deleted, or what was learned goes with the conversation.",
         "agent.memory.remember(…, user=id) and agent.user(id), not the state of a conversation."),
    Rule("T101", "content", "No junk among memories", "medium",
         "Memories without content: empty, placeholders, prompts, errors, system text, raw JSON.",
         "Junk is recalled in place of facts and fills the context.",
         "tenuto memory forget ID; absorb facts rather than whole messages."),
    Rule("T102", "content", "No duplicate memories", "low",
         "Memories of one user that say the same in the same words.",
         "Duplicates crowd out other memories when k results are recalled.",
         "tenuto memory forget ID for all but one; give facts a subject, so that a new one supersedes the old."),
    Rule("T103", "content", "No contradictory memories", "high",
         "Pairs of valid memories of one user that differ in one value or in a negation.",
         "The agent believes whichever is recalled first.",
         "agent.memory.supersede(id, text): the old one stays in the history and is recalled no more."),
    Rule("T104", "content", "No stale memories", "low",
         "Memories older than a year that were never confirmed, and those past the date they name.",
         "The agent acts on what was true once.",
         "Supersede or forget them; give memories that end a valid_until."),
    Rule("T105", "content", "No orphaned memories", "low",
         "Memories whose source conversation no longer exists.",
         "No one can check where they come from; they may belong to a deleted user.",
         "tenuto memory forget ID, or confirm them by stating them again."),
    Rule("T106", "content", "No oversized checkpoints", "medium",
         "Checkpoints whose state is larger than 1 MB, and conversations above 10,000 messages.",
         "Each restore reads and decodes all of it.",
         "Keep messages in a thread and large results in blobs; agent.thread(id).compact(…)."),
    Rule("T110", "content", "No run is in doubt", "high",
         "Runs with a step that began and may or may not have happened.",
         "The effect is neither repeated nor confirmed: a person or verify= must say.",
         "tenuto inbox list, then tenuto inbox answer; add verify= to the step."),
    Rule("T111", "content", "No run is stuck", "high",
         "Runs interrupted, or due and not resumed for over a minute.",
         "A user waits for something that no process works on.",
         "tenuto worker MODULE:AGENT; or make the same call again."),
    Rule("T112", "content", "No question is overdue", "high",
         "Open questions past their deadline.",
         "A run waits for a person who has not answered.",
         "tenuto inbox list; add escalate= so that another person is asked."),
    Rule("T113", "content", "No task is dead", "high",
         "Tasks that failed at their last attempt.",
         "Work was accepted and is not done.",
         "tenuto tasks list --dead shows the errors; tenuto tasks retry ID."),
    Rule("T114", "content", "No conversation shows lost context", "medium",
         "The guard over each conversation: repeated calls and questions, contradictions, restarted work.",
         "Users repeat themselves, or the agent contradicts what was decided.",
         "agent.turn(…) builds the context from the store; agent.guard(thread) warns while it happens."),
    Rule("T115", "content", "No notification was given up", "high",
         "Notifications that reached no one after their last attempt.",
         "A person was never told of a question or an alert.",
         "tenuto notify outbox --dead, then tenuto notify test NAME and tenuto notify retry ID."),
)  # fmt: skip

RULES: Final[dict[str, Rule]] = {one.code: one for one in _ALL}


def rule(code: str) -> Rule:
    """Return the rule of a code; `NotFound` with the codes that exist."""
    found = RULES.get(code.upper())
    if found is None:
        raise NotFound(f"There is no rule {code!r}. tenuto explain lists all rules.")
    return found


def rank(severity: str) -> int:
    """Return 0 for the worst severity, more for others."""
    return SEVERITIES.index(severity)
