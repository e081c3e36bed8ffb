"""Show in the reference what people call: a method returns its result, not the work that computes it."""

from typing import Any

import griffe

WORK = {"on_store", "on_caller", "streamed"}


class Signatures(griffe.Extension):
    """Undo, for the reader, what the decorators of `kernel/work.py` and `scoped` of `state.py` do at run time."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace `Work[X]` by `X`, and `Stream[X]` by `Iterator[X]`."""
        made = {str(one.value).rpartition(".")[2] for one in func.decorators} & WORK
        if made and func.returns is not None:
            shown = str(func.returns)
            inner = shown[shown.index("[") + 1 : -1]
            func.returns = f"Iterator[{inner}]" if made == {"streamed"} else inner

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Show `get = scoped(State.get)` as the method that it is."""
        for name, member in list(cls.members.items()):
            value = str(getattr(member, "value", None))
            if not value.startswith("scoped(State."):
                continue
            source = cls.parent["State"][value.removeprefix("scoped(State.").rstrip(")")]  # type: ignore[index]
            shown = griffe.Function(
                name,
                lineno=member.lineno,
                endlineno=member.endlineno,
                parameters=griffe.Parameters(*[one for one in source.parameters if one.name != "scope"]),
                returns=source.returns,
                docstring=source.docstring,
            )
            cls.set_member(name, shown)
