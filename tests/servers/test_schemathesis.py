"""Schemathesis makes requests from the OpenAPI document, valid and not: no 5xx, and every reply fits the document."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from support.long import size

schemathesis = pytest.importorskip("schemathesis")
pytestmark = pytest.mark.slow


def test_the_document_is_valid_json_schema(served: Any) -> None:
    document = served.get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    assert len(document["paths"]) > 40
    for path in document["paths"].values():
        for operation in path.values():
            for media in operation["responses"]["200"]["content"].values():
                jsonschema.Draft202012Validator.check_schema(media["schema"])


@pytest.mark.scorecard(18)
@pytest.mark.timeout(size(180, 1_800))
def test_no_request_makes_the_server_fail_or_answer_off_the_document(served: Any, figures: Any) -> None:
    document = served.get("/openapi.json").json
    document["servers"] = [{"url": served.address}]
    for path in [path for path in document["paths"] if path.endswith("/watch")]:
        del document["paths"][path]  # an event stream has no end
    schema = schemathesis.openapi.from_dict(document)
    headers = {"Authorization": f"Bearer {served.token}"}
    made = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=size(4, 60), deadline=None, database=None, derandomize=True, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            nonlocal made
            made += 1
            reply = case.call(base_url=served.address, headers=headers, timeout=20)
            shown = (case.method, case.path, case.query, case.body, reply.status_code, reply.text[:300])
            assert reply.status_code < 500, shown
            described = case.operation.definition.raw["responses"]
            assert str(reply.status_code) in described, shown
            content = described[str(reply.status_code)].get("content", {})
            media = (
                reply.headers["content-type"][0]
                if isinstance(reply.headers["content-type"], list)
                else reply.headers["content-type"]
            )
            if content and reply.text:
                assert media in content, shown
                wanted = {**content[media]["schema"], "components": document["components"]}
                jsonschema.validate(json.loads(reply.text), wanted)

        check()
    figures(**{"HTTP requests": made, "5xx": 0})
    assert made > 100
