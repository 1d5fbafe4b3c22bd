"""Who may call the server: hosts, origins, the token, and sizes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strictq.server.app import Application
from strictq.server.parts import BODY_BYTES_MAX
from tests.support.asgi import Answer, Echo, application, call

TOKEN = "0123456789abcdef"


def answer(app: Application, *args: Any, **kwargs: Any) -> Answer:
    return asyncio.run(call(app, *args, **kwargs))


class TestHosts:
    @pytest.mark.parametrize(
        "host",
        [
            "127.0.0.1:9324",
            "127.0.0.1",
            "localhost:1",
            "LOCALHOST",
            "[::1]:9324",
            "q.localhost",
            "sqs:9324",
            "10.1.2.3:80",
            "own.example",
        ],
    )
    def test_a_name_that_no_stranger_can_register_is_served(self, host: str) -> None:
        assert answer(application(host_names=("Own.Example",)), headers={"host": host}).status == 200

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:9324", "127.0.0.1.evil.example", "localhost.evil.example", "", ":1", "[", "\xe9",
                 "evil.example@localhost", "localhost/evil.example", "localhost?", 'a"><b>', "localhost:x",
                 "[::1", "[::1%25eth0]"],
    )  # fmt: skip
    def test_a_rebound_name_is_refused(self, host: str) -> None:
        echo = Echo()
        found = answer(application(echo), headers={"host": host})
        assert (found.status, echo.calls) == (403, [])
        assert b"--host-name" in found.body

    def test_two_names_are_refused(self) -> None:
        assert answer(application(), headers=[("host", "localhost"), ("host", "localhost")]).status == 403

    def test_many_names_fill_no_memory(self) -> None:
        app = application()

        async def many() -> None:
            for n in range(300):
                assert (await call(app, headers={"host": f"{n}.example"})).status == 403

        asyncio.run(many())
        assert len(app._guard._known) == 100


class TestOrigins:
    @pytest.mark.parametrize(
        "headers",
        [
            {"origin": "http://evil.example"},
            {"origin": "http://127.0.0.1:8000"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "http://127.0.0.1:9324", "sec-fetch-site": "same-site"},
        ],
    )
    @pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
    def test_a_page_of_another_origin_is_refused(self, method: str, headers: dict[str, str]) -> None:
        echo = Echo()
        found = answer(application(echo), method=method, headers=headers)
        assert (found.status, echo.calls) == (403, [])
        assert "access-control-allow-origin" not in found.headers

    @pytest.mark.parametrize(
        "headers", [{}, {"sec-fetch-site": "none"}, {"origin": "http://127.0.0.1:9324", "sec-fetch-site": "same-origin"}]
    )
    def test_programs_and_the_own_page_are_served(self, headers: dict[str, str]) -> None:
        assert answer(application(), method="POST", headers=headers, body=b"x").body == b"x"

    def test_an_allowed_origin_is_served_with_cors(self) -> None:
        app = application(allow_origins=("https://ops.example/",))
        headers = {"origin": "https://ops.example", "sec-fetch-site": "cross-site"}
        found = answer(app, headers=headers)
        assert (found.status, found.headers["access-control-allow-origin"]) == (200, "https://ops.example")
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-amz-target"}
        found = answer(app, method="OPTIONS", headers={**headers, **asked})
        assert (found.status, found.headers["access-control-allow-methods"]) == (204, "POST")
        assert found.headers["access-control-allow-headers"] == "x-amz-target"


class TestToken:
    def test_without_it_a_guarded_part_is_refused_and_another_one_served(self) -> None:
        app = application(Echo(), Echo("sqs", guarded=False), token=TOKEN)
        assert answer(app).status == 403
        assert answer(app, headers={"authorization": "Bearer wrong"}).status == 403
        assert answer(app, headers={"authorization": f"bearer {TOKEN}"}).status == 200
        assert answer(app, "/sqs").status == 200
        assert answer(app, "/nothing").status == 404

    def test_a_browser_signs_in_with_a_form(self) -> None:
        app = application(token=TOKEN)
        asked = answer(app, headers={"accept": "text/html,*/*"})
        assert asked.status == 403
        assert b'action="/sign-in"' in asked.body
        wrong = answer(app, "/sign-in", "POST", headers={"accept": "text/html"}, body=b"token=wrong")
        assert (wrong.status, "set-cookie" in wrong.headers) == (403, False)
        done = answer(app, "/sign-in", "POST", body=b"token=" + TOKEN.encode())
        assert (done.status, done.headers["location"]) == (303, "/")
        cookie, *attributes = done.headers["set-cookie"].split("; ")
        assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
        assert TOKEN not in cookie
        assert answer(app, headers={"cookie": f"other=1; {cookie}"}).status == 200
        assert answer(app, headers={"cookie": cookie[:-1] + "x"}).status == 403
        assert answer(application(token=TOKEN + "2"), headers={"cookie": cookie}).status == 403

    def test_a_form_with_many_fields_is_refused(self) -> None:
        found = answer(application(token=TOKEN), "/sign-in", "POST", body=b"&".join([b"token=" + TOKEN.encode()] * 1000))
        assert (found.status, "set-cookie" in found.headers) == (403, False)

    def test_a_page_of_another_origin_cannot_sign_in(self) -> None:
        app = application(token=TOKEN)
        found = answer(app, "/sign-in", "POST", headers={"origin": "http://evil.example"}, body=b"token=" + TOKEN.encode())
        assert (found.status, "set-cookie" in found.headers) == (403, False)


class TestSizes:
    def test_long_headers_and_bodies_are_refused(self) -> None:
        app = application()
        assert answer(app, headers={"x": "y" * (64 << 10)}).status == 431
        assert answer(app, method="POST", headers={"content-length": str(BODY_BYTES_MAX + 1)}).status == 413
        assert answer(app, method="POST", body=b"x" * (BODY_BYTES_MAX + 1)).status == 413
        assert answer(app, method="POST", body=[b"x" * (BODY_BYTES_MAX // 2), b"y" * (BODY_BYTES_MAX // 2), b"z"]).status == 413
        assert answer(app, method="POST", body=[b"a", b"b", b"c"]).body == b"abc"


def test_what_is_refused_is_counted_by_its_code() -> None:
    app = application()
    answer(app)
    answer(app, headers={"host": "evil.example"})
    answer(app, "/nothing")
    answer(app, body=())
    assert app.context.counters.requests == {("echo", 200): 1, ("refused", 403): 1, ("other", 404): 1, ("echo", 499): 1}
