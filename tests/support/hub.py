"""A JupyterHub on this machine as the guide describes it; its accounts are gone afterwards."""

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
from gloo import free_port

import mplab

ROOT = Path(mplab.__file__).parent.parent
START = 180
"""Seconds to wait for the Hub, and for a server of it."""

SCRIPTS = ("alembic", "jupyterhub", "jupyterhub-singleuser", "mplab")

LOCAL = """
c.JupyterHub.bind_url = "http://127.0.0.1:{ports[0]}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{ports[1]}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports[2]}"
c.JupyterHub.services += [{{"name": "tester", "api_token": "{token}"}}]
c.JupyterHub.load_roles += [{{
    "name": "tester",
    "services": ["tester"],
    "scopes": ["admin:users", "admin:servers", "tokens"],
}}]
c.Spawner.env_keep = ["PATH", "PYTHONPATH", "JUPYTER_CONFIG_PATH", "LANG", "OMP_NUM_THREADS"]
c.Spawner.start_timeout = c.Spawner.http_timeout = {start}
"""


def problem():
    """Why there can be no Hub here; None if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "making accounts needs Linux and root"
    for command in ("configurable-http-proxy", "useradd", "userdel", "runuser"):
        if shutil.which(command) is None:
            return f"{command} is not installed"
    if find_spec("jupyterhub") is None:
        return "jupyterhub is not installed"
    if python() is None:
        return "no Python of this version is where every account can run it"
    shut = [
        str(p)
        for p in (ROOT, sysconfig.get_paths()["purelib"])
        if not open_to_all(Path(p))
    ]
    return f"accounts cannot read {', '.join(shut)}" if shut else None


def open_to_all(place):
    """Whether every account can read a folder or program."""
    ways = (place.resolve(), *place.resolve().parents)
    return all(way.stat().st_mode & 0o005 == 0o005 for way in ways)


def python():
    """A Python of this version that every account can run."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for place in (Path(sys.executable), Path(f"/usr/bin/python{version}")):
        if place.exists() and open_to_all(place):
            return place
    return None


def make_environment(folder):
    """An environment with the libraries of this one, whose Python every account can run."""
    subprocess.run([python(), "-m", "venv", "--without-pip", folder], check=True)
    here = Path(sys.prefix)
    (site,) = folder.glob("lib/python3*/site-packages")
    site.rmdir()
    site.symlink_to(sysconfig.get_paths()["purelib"])
    for name in ("share", "etc"):
        (folder / name).symlink_to(here / name)
    for name in SCRIPTS:
        text = Path(sysconfig.get_paths()["scripts"], name).read_text()
        (folder / "bin" / name).write_text(
            re.sub(r"\A#!.*", f"#!{folder}/bin/python", text)
        )
        (folder / "bin" / name).chmod(0o755)


@contextlib.contextmanager
def accounts(folder, *names):
    """New accounts with closed homes in `folder`, called by these names and a number."""
    made = []
    try:
        for name in names:
            account = f"{name}{os.getpid()}"
            command = [
                "useradd",
                "--create-home",
                "--base-dir",
                folder,
                "-K",
                "HOME_MODE=0700",
            ]
            subprocess.run([*command, "--shell", "/bin/bash", account], check=True)
            made.append(account)
            subprocess.run(
                ["chpasswd"], input=f"{account}:{account}", text=True, check=True
            )
        yield made
    finally:
        for account in made:
            end(p for p in psutil.process_iter() if owner(p) == account)
            subprocess.run(["userdel", "--remove", account], capture_output=True)


def owner(process):
    try:
        return process.username()
    except psutil.Error:
        return None


def end(processes):
    """End these processes, and wait until they are gone."""
    gone = list(processes)
    for process in gone:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(gone, timeout=20)


def as_account(account, environment, *command):
    """Run a command as an account would in its own shell; what it printed.

    Raises:
        AssertionError: it failed.
    """
    line = ["runuser", "-u", account, "--", *map(str, command)]
    home = pwd.getpwnam(account).pw_dir
    done = subprocess.run(
        line, env={**environment, "HOME": home, "USER": account}, cwd=home, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Hub:
    """A running Hub, asked over HTTP through its proxy."""

    def __init__(self, address, own, token):
        self.address = address
        self.own = own
        self._tokens = {None: token}

    def ask(self, method, path, *, account=None, **options):
        """Ask as an account, or as the test, with an address below that of the proxy."""
        import requests

        headers = {"Authorization": f"token {self._tokens[account]}"}
        with requests.Session() as session:
            session.trust_env = False
            return session.request(
                method, self.address + path, headers=headers, timeout=START, **options
            )

    def log_in(self, *accounts):
        """Start the servers of accounts, and take a token of its own for each."""
        for account in accounts:
            # One that has a role is known already.
            self.ask("POST", f"/hub/api/users/{account}")
            made = self.ask("POST", f"/hub/api/users/{account}/tokens", json={})
            self._tokens[account] = made.json()["token"]
            self.ask("POST", f"/hub/api/users/{account}/server").raise_for_status()
        deadline = time.monotonic() + START
        for account in accounts:
            while not self._ready(account):
                assert time.monotonic() < deadline, f"{account}'s server does not start"
                time.sleep(0.5)

    def _ready(self, account):
        servers = self.ask("GET", f"/hub/api/users/{account}").json()["servers"]
        return bool(servers) and servers[""]["ready"]

    def server(self, account, method, path, **options):
        """What an account's own server answers to it.

        Raises:
            AssertionError: it refused.
        """
        answer = self.ask(method, f"/user/{account}{path}", account=account, **options)
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
        try:
            return answer.json()  # whatever it says that it is
        except ValueError:
            return answer.text


@contextlib.contextmanager
def serve(folder, settings, environment):
    """Start JupyterHub in `folder` with these settings, and the proxy, on 127.0.0.1."""
    ports = [free_port() for _ in range(3)]
    token = secrets.token_hex(16)
    config = folder / "jupyterhub_config.py"
    config.touch(mode=0o600)
    config.write_text(settings + LOCAL.format(ports=ports, token=token, start=START))
    command = [shutil.which("jupyterhub", path=environment["PATH"]), "--config", config]
    with (folder / "hub.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        hub = Hub(f"http://127.0.0.1:{ports[0]}", ports[1], token)
        try:
            deadline = time.monotonic() + START
            while not answers(hub):
                assert server.poll() is None and time.monotonic() < deadline, "no Hub"
                time.sleep(0.5)
            yield hub
        except BaseException:
            print((folder / "hub.log").read_text(errors="replace")[-20000:])
            raise
        finally:
            children = psutil.Process(server.pid).children(recursive=True)
            server.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(30)
            server.kill()
            server.wait()
            end(children)


def answers(hub):
    import requests

    try:
        return hub.ask("GET", "/hub/api/").ok
    except requests.ConnectionError:
        return False


@contextlib.contextmanager
def public_folder():
    """A folder that every account can reach; pytest's own it cannot."""
    with tempfile.TemporaryDirectory(prefix="mplab-hub-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
