"""/health, /metrics, /version, and what every route has in common: the key, unknown URLs, our own mistakes."""

import pytest

from omnistage import __version__
from omnistage.core.errors import ErrorInfo
from omnistage.runtime.base import ReplicaStatus, RuntimeStatus
from tests.fakes_runtime import FakeRuntime
from tests.serve.live import CHAT, client_of, serving_of


@pytest.mark.parametrize(("state", "status"), [("ready", 200), ("starting", 503), ("degraded", 503), ("draining", 503)])
async def test_health_is_the_truth(state: str, status: int) -> None:
    """Fault: a server that cannot answer says that it is well."""
    runtime = FakeRuntime()
    runtime.state = state
    async with client_of(serving_of(runtime)) as client:
        response = await client.get("/health")
    assert response.status_code == status
    assert response.json() == {"status": state, "stages": {"thinker": state, "speaker": "ready"}}


async def test_health_says_why() -> None:
    """Fault: a stage that is down, and no word of the reason."""

    class Troubled(FakeRuntime):
        def status(self) -> RuntimeStatus:
            down = ReplicaStatus("speaker", 0, "restarting", "91 of 269 MB of weights", 0.338, restarts=2)
            return RuntimeStatus("degraded", {"speaker": "restarting"}, (down, ReplicaStatus("thinker", 0, "ready")))

    async with client_of(serving_of(Troubled())) as client:
        health = (await client.get("/health")).json()
        metrics = (await client.get("/metrics")).text
    assert health["replicas"] == [
        {
            "process": "speaker",
            "replica": 0,
            "state": "restarting",
            "progress": 0.34,
            "note": "91 of 269 MB of weights",
        }
    ]
    assert "omnistage_restarts 2.0" in metrics
    assert 'omnistage_stage_ready{stage="speaker"} 0.0' in metrics


async def test_health_says_what_is_wrong_with_the_whole() -> None:
    """Fault: "stopped", and no word of the exception behind it."""
    runtime = FakeRuntime()
    runtime.state, runtime.reason = "stopped", "the runtime has failed: ValueError: no such state"
    async with client_of(serving_of(runtime)) as client:
        health = await client.get("/health")
    assert (health.status_code, health.json()["reason"]) == (503, runtime.reason)


async def test_metrics_equal_what_clients_counted() -> None:
    """Fault: numbers that lie."""
    async with client_of(serving_of(FakeRuntime())) as client:
        for _ in range(2):
            await client.post("/v1/chat/completions", json={"messages": CHAT, "modalities": ["audio"], "stream": True})
        await client.post("/v1/chat/completions", json={"messages": CHAT, "temperature": -1})
        await client.get("/made/up")
        response = await client.get("/metrics")
    lines = response.text.splitlines()
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in (
        'omnistage_requests_total{outcome="finished"} 2.0',
        'omnistage_tokens_total{kind="completion",outcome="finished"} 4.0',
        'omnistage_tokens_total{kind="prompt",outcome="finished"} 6.0',
        'omnistage_audio_seconds_total{outcome="finished"} 0.04',
        'omnistage_errors_total{code="invalid_request"} 1.0',
        'omnistage_errors_total{code="unknown_url"} 1.0',
        "omnistage_inter_token_seconds_count 2.0",
        "omnistage_time_per_output_token_seconds_count 2.0",
        "omnistage_real_time_factor_count 2.0",
        "omnistage_time_to_first_text_seconds_count 2.0",
        "omnistage_time_to_first_audio_seconds_count 2.0",
        "omnistage_request_seconds_count 2.0",
        'omnistage_stage{figure="running",replica="0",stage="thinker"} 1.0',
        'omnistage_http_responses_total{route="/v1/chat/completions",status="200"} 2.0',
        'omnistage_http_responses_total{route="/v1/chat/completions",status="400"} 1.0',
        'omnistage_http_responses_total{route="unknown",status="404"} 1.0',
    ):
        assert line in lines


async def test_every_error_object_is_counted_by_its_code() -> None:
    """Fault: errors of one kind, or of a stream that has begun, that no series shows."""
    runtime = FakeRuntime()
    serving = serving_of(runtime, api_key="secret")
    async with client_of(serving) as client:
        await client.get("/version")
        client.headers["Authorization"] = "Bearer secret"
        runtime.error = ErrorInfo("stage_failed", "broken", "speaker")
        for stream in (True, False):
            await client.post("/v1/chat/completions", json={"messages": CHAT, "stream": stream})
        lines = (await client.get("/metrics")).text.splitlines()
    assert 'omnistage_errors_total{code="stage_failed"} 2.0' in lines
    assert 'omnistage_errors_total{code="invalid_api_key"} 1.0' in lines
    assert 'omnistage_requests_total{outcome="failed"} 2.0' in lines


async def test_the_key_covers_every_route_but_health() -> None:
    """Fault: a route that is forgotten, or a key that is compared by its beginning."""
    async with client_of(serving_of(FakeRuntime(), api_key="secret")) as client:
        assert (await client.get("/health")).status_code == 200
        for path in ("/v1/models", "/metrics", "/version", "/docs", "/openapi.json", "/made/up"):
            response = await client.get(path)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
        for key in ("secre", "secret2", "", "ſecret"):
            response = await client.get("/version", headers=[(b"authorization", f"Bearer {key}".encode())])
            assert response.status_code == 401
        response = await client.get("/version", headers={"Authorization": "Bearer secret"})
        assert response.json() == {"version": __version__}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("POST", "/v1/audio/speech", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
async def test_what_is_not_there_has_the_shape_of_an_error(method: str, path: str, status: int, code: str) -> None:
    """Fault: a framework's own error page."""
    async with client_of(serving_of(FakeRuntime())) as client:
        response = await client.request(method, path)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert path in response.json()["error"]["message"] or code == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("GET", "/", "unknown URL: GET /; /openapi.json lists those that are served"),
        ("GET", "/v1/chat/completions", "GET is not allowed for /v1/chat/completions; accepted: POST"),
        ("DELETE", "/health", "DELETE is not allowed for /health; accepted: GET"),
    ],
)
async def test_who_asks_for_what_is_not_there_is_told_what_is(method: str, path: str, said: str) -> None:
    """Fault: a refusal that leaves whoever opens the server in a browser to guess."""
    async with client_of(serving_of(FakeRuntime())) as client:
        assert (await client.request(method, path)).json()["error"]["message"] == said


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/" + "x" * 9000),
        ("X" * 9000, "/health"),
        ("PATCH", "/v1/models/" + "x" * 9000),
        ("GET", "/v1/models/" + "x" * 9000),
    ],
)
async def test_a_long_path_is_not_repeated_at_length(method: str, path: str) -> None:
    """Fault: an answer, or a line of the log, as long as whoever asks wants it."""
    async with client_of(serving_of(FakeRuntime())) as client:
        response = await client.request(method, path)
    assert response.status_code in (404, 405)
    assert len(response.text) < 500


async def test_our_own_mistake_is_told_without_its_details() -> None:
    """Fault: a traceback, or an error without the shape of one, reaches a client."""

    class Broken(FakeRuntime):
        def status(self) -> RuntimeStatus:
            raise ZeroDivisionError("inner detail")

    async with client_of(serving_of(Broken())) as client:
        response = await client.get("/health")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal")
    assert "inner detail" not in response.text
