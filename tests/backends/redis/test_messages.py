"""Every error of Redis is a sentence that says what it means for the data and what to do next."""

import pytest
from redis import exceptions as driver

from tenuto.backends.redis.errors import translated

ERRORS = [
    driver.AuthenticationError("WRONGPASS invalid username-password pair"),
    driver.BusyLoadingError("LOADING Redis is loading the dataset in memory"),
    driver.OutOfMemoryError("OOM command not allowed when used memory > 'maxmemory'."),
    driver.NoPermissionError("NOPERM this user has no permissions to run the 'eval' command"),
    driver.ReadOnlyError("READONLY You can't write against a read only replica."),
    driver.ClusterDownError("CLUSTERDOWN Hash slot not served"),
    driver.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
    driver.ResponseError("NOREPLICAS Not enough good replicas to write."),
    driver.ResponseError("BUSY Redis is busy running a script."),
    driver.ResponseError("ERR unknown"),
    driver.ConnectionError("Error 111 connecting to x:6379. Connection refused."),
    driver.TimeoutError("Timeout reading from socket"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda one: str(one).split(" ")[0])
def test_a_message_says_what_was_written_and_what_to_do(error: Exception) -> None:
    said = str(translated(error, "redis at host:6379"))
    assert said.count("Nothing was written") == 1
    what, _, advice = said.partition("Nothing was written")
    assert "host:6379" in what
    assert advice.endswith(".")
    assert len(advice.split()) >= 4
    assert "secret" not in said


def test_a_lost_reply_says_that_the_outcome_is_unknown() -> None:
    said = str(translated(driver.TimeoutError("Timeout reading"), "redis at host:6379", sent=True))
    assert "is not known; commit again with the same request id" in said
