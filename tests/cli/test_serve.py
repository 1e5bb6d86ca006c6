"""`unmask serve`: its refusals, and a server that starts, answers, and finishes open requests when it is stopped."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from importlib.util import find_spec

import pytest

from unmask.cli.serve import is_loopback
from unmask.errors import UnmaskError
from unmask.serving import name_checkpoints

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")


def test_another_host_needs_a_key_or_a_decision(refused, monkeypatch):
    monkeypatch.delenv("UNMASK_API_KEY", raising=False)
    assert "give --api-key or --no-auth" in refused("serve", "smoke", "--host", "0.0.0.0")


def test_a_busy_port_is_named(refused):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"127.0.0.1:{port}" in refused("serve", "smoke", "--port", port)


def test_bad_checkpoints_hosts_and_keys_are_refused(refused, tmp_path):
    assert "no checkpoint" in refused("serve", tmp_path / "nothing")
    assert "two checkpoints" in refused("serve", "smoke", "smoke").lower()
    assert "Cannot listen" in refused("serve", "smoke", "--host", "no.such.host.invalid", "--no-auth")
    assert "--api-key" in refused("serve", "smoke", "--api-key", "")


def test_the_extra_is_named(refused, monkeypatch):
    monkeypatch.setattr("unmask.cli.serve.find_spec", lambda name: None if name == "uvicorn" else find_spec(name))
    assert "pip install 'unmask[serve]'" in refused("serve")


def test_checkpoints_have_names(mdlm_folder):
    assert name_checkpoints([str(mdlm_folder), "other=smoke"]) == {mdlm_folder.name: str(mdlm_folder), "other": "smoke"}
    with pytest.raises(UnmaskError, match="no checkpoint"):
        name_checkpoints(["name=nothing-here"])


def test_loopback_hosts():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.test")))


def test_a_stopped_server_finishes_open_requests(mdlm_folder):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "unmask", "serve", f"small={mdlm_folder}", "--port", str(port), "--device", "cpu"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    answers = []

    def ask() -> None:
        body = json.dumps({"model": "small", "n": 32, "max_tokens": 48}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            answers.append(json.load(answer))

    try:
        assert server.stderr is not None
        assert f"127.0.0.1:{port} (without a key, for this machine only)" in server.stderr.readline()
        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.3)
        server.send_signal(signal.SIGINT)
        asking.join(120)
        assert server.wait(60) == 130
        assert len(answers[0]["choices"]) == 32
        assert server.stderr.read().strip() == "unmask: interrupted."
    finally:
        server.kill()
