"""The cache folder of users who have a home folder, and of those who have none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from embedllm.files.user_cache import user_cache

# as in a container of a user id without an entry in /etc/passwd, whose environment has no HOME
HOMELESS = """
import os, sys
try:
    import pwd
except ImportError:
    pass
else:
    def no_entry(uid):
        raise KeyError(uid)
    pwd.getpwuid = no_entry
import embedllm
from embedllm.files.user_cache import user_cache
first, second = user_cache("tuned"), user_cache("exports")
assert first.parent == second.parent
first.mkdir(parents=True)
with embedllm.load("demo") as llm:
    llm.generate("ls", max_tokens=1)
print(first.parent)
"""


def test_names_are_below_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if sys.platform.startswith("linux"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert user_cache("a", "b") == tmp_path / "embedllm" / "a" / "b"
    assert user_cache("a", "b").parts[-2:] == ("a", "b")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems know a user's folders without HOME")
def test_without_a_home_folder_the_cache_is_the_process_own_and_goes_with_it(tmp_path: Path) -> None:
    given = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    ended = subprocess.run([sys.executable, "-c", HOMELESS], env={**given, "TMPDIR": str(tmp_path)}, cwd=tmp_path,
                           capture_output=True, text=True, check=False)  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    folder = Path(ended.stdout.strip())
    assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []
