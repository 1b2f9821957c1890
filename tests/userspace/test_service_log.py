"""Log messages about services, not too often."""

from __future__ import annotations

from kubeproxy.modes.userspace.carrier.service_log import ServiceLog


def test_a_message_is_repeated_only_after_the_interval_with_its_count() -> None:
    written: list[tuple[str, str]] = []
    log = ServiceLog(lambda text, service: written.append((text, service)), every_seconds=10)
    for now in (0.0, 1.0, 2.0, 11.0):
        log.log("ns/web", "endpoint does not answer", "10.0.0.1:80", now)
    log.log("ns/other", "endpoint does not answer", "10.0.0.2:80", 11.0)
    assert written == [
        ("endpoint does not answer: 10.0.0.1:80", "ns/web"),
        ("endpoint does not answer: 10.0.0.1:80 (and 2 times more before)", "ns/web"),
        ("endpoint does not answer: 10.0.0.2:80", "ns/other"),
    ]


def test_a_service_that_is_gone_leaves_no_record() -> None:
    written: list[str] = []
    log = ServiceLog(lambda text, _service: written.append(text))
    log.log("ns/web", "x", "y", 0.0)
    log.forget("ns/web")
    log.log("ns/web", "x", "y", 1.0)
    assert written == ["x: y", "x: y"]
