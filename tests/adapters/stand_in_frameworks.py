"""What stands in for the reference backends of Strands and Google ADK when their own tests run on ours."""

from typing import Any

from tenuto import Tenuto


def adk_sessions() -> Any:
    """Return what stands in for ADK's `InMemorySessionService`: an empty store."""
    from tenuto.adapters.adk import TenutoSessionService

    return TenutoSessionService(Tenuto("suite", "volatile:"))


def __getattr__(name: str) -> Any:
    if name != "MockedSessionRepository":
        raise AttributeError(name)
    from tenuto.adapters.strands import TenutoSessionRepository

    class MockedSessionRepository(TenutoSessionRepository):
        def __init__(self) -> None:
            super().__init__(Tenuto("suite", "volatile:"))

    return MockedSessionRepository
