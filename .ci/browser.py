"""A Chromium for tests/browser: prints its path, or on stderr why there is none, with exit 1.

    python .ci/browser.py [--install]

finds one, or installs one. Debian's package first, 100 MB with its dependencies: a mirror of it is near
where CI runs, and Playwright
has its own from one host alone. Every step has a limit, so that no network means no long wait.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

DEBIAN = "chromium-headless-shell"
NAMES = ("chromium", DEBIAN, "chrome-headless-shell", "chromium-browser", "google-chrome")
LIMIT = 90.0  # seconds for all that may wait for a network


class Failed(Exception):
    """Hold the reason why a way to a browser fails."""


def there() -> str | None:
    """Return the browser that `GLUON_CHROMIUM` names, or one on the path."""
    named = os.environ.get("GLUON_CHROMIUM")
    return next((path for name in (named, *NAMES) if name and (path := shutil.which(name))), None)


def _run(name: str, command: list[str], until: float, **env: str) -> None:
    """Run a command; its error, or else its last output, is the reason of a failure."""
    left = until - time.monotonic()
    try:
        done = subprocess.run(
            command,
            env=os.environ | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=max(left, 0.1),
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} took more than {left:.0f} s") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        message = next((line for line in lines if line.startswith(("E:", "Error:"))), lines[-1])
        raise Failed(f"{name} says: {message}")


def debian(until: float) -> str:
    """Debian's package, as root or with a `sudo` that asks nothing."""
    if shutil.which("apt-get") is None:
        raise Failed("there is no apt-get")
    rights: list[str] = []
    if os.geteuid() != 0:
        sudo = shutil.which("sudo")
        if sudo is None or subprocess.run([sudo, "-n", "true"], capture_output=True).returncode:
            raise Failed("apt-get needs root")
        rights = ["sudo", "-n"]
    options = ["Acquire::Retries=0", "Acquire::http::Timeout=15", "Acquire::https::Timeout=15"]
    options += ["DPkg::Lock::Timeout=30", "Dpkg::Options::=--force-unsafe-io"]
    apt = [*rights, "apt-get", "-q", "-y", *(part for o in options for part in ("-o", o))]
    install = [*apt, "install", "--no-install-recommends", DEBIAN]
    _run("apt-get update", [*apt, "update"], until)
    _run("apt-get", [*install, "--download-only"], until)
    # Needs no network any more, and must not be ended in the middle.
    _run("apt-get", install, time.monotonic() + 120, DEBIAN_FRONTEND="noninteractive")
    path = shutil.which(DEBIAN)
    if path is None:
        raise Failed(f"{DEBIAN} was installed and is not on the path")
    return path


def playwrights(until: float) -> str:
    """Return the browser that Playwright fetches into the user's cache."""
    command = [sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]
    _run("playwright install", command, until)
    return ""


def main() -> int:
    browser, until = there(), time.monotonic() + LIMIT
    installs = "--install" in sys.argv[1:]
    reasons = [] if installs else ["no Chromium on the path"]
    for way in (debian, playwrights) if browser is None and installs else ():
        try:
            browser = way(until)
            break
        except Failed as error:
            reasons.append(str(error))
    if browser is None:
        print("; ".join(reasons), file=sys.stderr)
        return 1
    print(browser)
    return 0


if __name__ == "__main__":
    sys.exit(main())
