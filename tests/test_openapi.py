"""The server answers as its OpenAPI says, whatever is sent (schemathesis)."""

import pytest
from hypothesis import HealthCheck, given, settings
from served import asked
from test_serving_systems import one_run, served

schemathesis = pytest.importorskip("schemathesis", reason="sends what a schema allows and what it forbids")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")


@schemathesis.serializer("audio/*")
def as_it_is(context, value):
    return value.encode() if isinstance(value, str) else getattr(value, "data", value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "language-model", "tagging", "captioning", "speech"])
def test_answers_are_those_of_the_schema(name, tmp_path):
    """Random requests, right and wrong, to each endpoint: the status, the type and the content of each answer
    are those of the schema, and there is no 5xx."""
    with asked(served(one_run(name, tmp_path), name)) as client:
        operations = [
            each.ok()
            for each in schemathesis.openapi.from_asgi("/openapi.json", client.app).get_all_operations()
        ]
        assert len(operations) > 4
        for operation in operations:

            @given(case=operation.as_strategy())
            @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
            def send(case):
                # a run may refuse what the schema allows, such as a language that it does not know
                case.call_and_validate(excluded_checks=[checks.positive_data_acceptance])

            send()
