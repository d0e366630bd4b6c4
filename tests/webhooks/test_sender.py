import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_network

import pytest
from standardwebhooks import Webhook, WebhookVerificationError
from werkzeug import Request, Response

from app.errors import Misconfigured
from app.outbound import Outbound
from app.settings import load
from app.webhooks.sender import WebhookSender
from app.webhooks.signing import headers, new_secret

LOOPBACK = (ip_network("127.0.0.0/8"),)


@pytest.fixture
def sender():
    return WebhookSender(Outbound(LOOPBACK), timeout_s=1.0)


def test_what_is_sent_verifies_by_the_standard_library(sender, httpserver):
    secret, seen = new_secret(), []

    def receive(request: Request) -> Response:
        seen.append(Webhook(secret).verify(request.get_data(as_text=True), dict(request.headers)))
        return Response(status=204)

    httpserver.expect_request("/hook", method="POST").respond_with_handler(receive)
    body = '{"type":"image.completed"}'
    assert sender.send(httpserver.url_for("/hook"), headers([secret], "evt_1_1", body), body).delivered
    assert seen == [{"type": "image.completed"}]


def test_another_secret_or_another_body_does_not_verify():
    secret = new_secret()
    signed = headers([secret], "evt_1_1", "{}")
    for key, body in ((new_secret(), "{}"), (secret, '{"a":1}')):
        with pytest.raises(WebhookVerificationError):
            Webhook(key).verify(body, signed)


@pytest.mark.parametrize(
    ("status", "delivered", "final"),
    [
        (200, True, False),
        (204, True, False),
        (301, False, False),
        (404, False, False),
        (410, False, True),
        (500, False, False),
    ],
)
def test_only_2xx_is_success_and_410_ends(sender, httpserver, status, delivered, final):
    httpserver.expect_request("/hook").respond_with_data(status=status, headers={"Location": httpserver.url_for("/x")})
    outcome = sender.send(httpserver.url_for("/hook"), {}, "{}")
    assert (outcome.delivered, outcome.final, outcome.status) == (delivered, final, status)
    assert len(httpserver.log) == 1, "a redirect was followed"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://[::1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f000001:{port}/",
        "http://0.0.0.0:{port}/",
        "https://127.0.0.1:{port}/",
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/",
        "https://100.64.0.1/",
        "https://[64:ff9b::7f00:1]/",
        "http://192.0.2.1/",
    ],
)
def test_without_the_operators_word_nothing_inside_is_reached(httpserver, url):
    outcome = WebhookSender(Outbound(()), timeout_s=1.0).send(url.format(port=httpserver.port), {}, "{}")
    assert not outcome.delivered
    assert outcome.final
    assert "refused" in outcome.error
    assert "PLANPAINT_WEBHOOK_ALLOW" in outcome.error, "who may change it learns how"
    assert not httpserver.log


def test_a_name_that_changes_its_mind_is_not_followed(httpserver, monkeypatch):
    """liwala/ay-framework#301: DNS rebinding. The address that was checked is the one that is connected to."""
    httpserver.expect_request("/").respond_with_data()
    real, answers = socket.getaddrinfo, []

    def resolve(host, *rest, **options):
        return real(answers.pop(0) if host == "rebinding.example" and answers else "127.0.0.1", *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    url = f"http://rebinding.example:{httpserver.port}/"
    sender = WebhookSender(Outbound((ip_network("127.0.0.2/32"),)), timeout_s=1.0)
    answers[:] = ["127.0.0.2"]
    assert not sender.send(url, {}, "{}").delivered
    refused = sender.send(url, {}, "{}")
    assert "refused" in refused.error, "now it is another address"
    assert not httpserver.log
    assert WebhookSender(Outbound(LOOPBACK), timeout_s=1.0).send(url, {}, "{}").delivered


def test_the_operators_networks_open_nothing_else(sender):
    for url in ("http://10.1.2.3/", "https://10.1.2.3/", "http://192.0.2.1/", "http://[::1]:80/"):
        outcome = sender.send(url, {}, "{}")
        assert outcome.final, url
        assert "refused" in outcome.error


def test_a_silent_receiver_costs_the_timeout_and_no_more(sender):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        outcome = sender.send(f"http://127.0.0.1:{silent.getsockname()[1]}/", {}, "{}")
    assert not outcome.delivered
    assert not outcome.final


def test_an_endless_answer_is_not_read(sender):
    sent = 0
    done = threading.Event()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def answer():
            nonlocal sent
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
                try:
                    while not done.is_set():
                        sent += connection.send(b"x" * 65536)
                except OSError:
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        outcome = sender.send(f"http://127.0.0.1:{server.getsockname()[1]}/", {}, "{}")
        done.set()
        thread.join(5)
    assert outcome.delivered
    assert sent < 50_000_000


@pytest.mark.parametrize("begin", [b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\nX-Long: "])
def test_a_receiver_that_dribbles_its_answer_is_left(sender, begin):
    """Each byte would start every timeout of the sockets anew. A head without an end is no answer."""
    done = threading.Event()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                try:
                    connection.sendall(begin)
                    while not done.wait(0.2):
                        connection.sendall(b"x")
                except OSError:
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        started = time.monotonic()
        outcome = sender.send(f"http://127.0.0.1:{server.getsockname()[1]}/", {}, "{}")
        seconds = time.monotonic() - started
        done.set()
        thread.join(5)
    assert not outcome.delivered
    assert not outcome.final
    # Twice the timeout is the limit; without one this would never end.
    assert seconds < 20


def test_retry_after_is_read_in_both_of_its_forms(sender, httpserver):
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    for wish, least, most in (("7", 7, 7), (at, 60, 90), ("-1", 0, 0), ("soon", 0, 0), ("\u0667", 0, 0)):
        httpserver.clear()
        answer = Response(status=503, headers={"Retry-After": wish.encode().decode("latin-1")})
        httpserver.expect_request("/hook").respond_with_response(answer)
        assert least <= sender.send(httpserver.url_for("/hook"), {}, "{}").retry_after_s <= most


@pytest.mark.parametrize("secret", ["x", "whsec_", "whsec_%%%", "whsec_c2hvcnQ="])
def test_bad_secrets_refuse_to_start(secret):
    with pytest.raises(Misconfigured, match="PLANPAINT_WEBHOOK_SECRET"):
        load({"PLANPAINT_WEBHOOK_SECRET": secret})


def test_a_drawn_secret_is_good():
    secret = new_secret()
    assert load({"PLANPAINT_WEBHOOK_SECRET": secret}).webhook_secret.get_secret_value() == secret


def test_an_address_that_no_client_takes_is_not_tried_again(sender):
    assert sender.send("http://h:99999/", {}, "{}").final
