"""`python -m tools.gpu` runs its parts one after the other and says how each ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import gpu


def test_parts_fail_and_time_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = "import sys; print('said'); open(sys.argv[-1], 'w').write('{}')"
    parts = {
        "tests": ["-c", "import dadlm, sys; print(dadlm.__name__); sys.exit(3)"],
        "steps": ["-c", "import time; print('slow', flush=True); time.sleep(60)"],
        "lab": ["-c", write],
    }
    monkeypatch.setattr(gpu, "PARTS", parts)
    monkeypatch.setattr(sys, "argv", ["gpu", str(tmp_path / "out"), "--only", *parts, "--limit", "5"])
    assert gpu.main() == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:1] + row[-1:] for row in rows] == [["tests", "dadlm"], ["steps", "slow"], ["lab", "said"]]
    assert "exit 3" in " ".join(rows[0]) and "too long" in " ".join(rows[1]) and rows[2][1] == "ok"
    assert (tmp_path / "out" / "lab.json").read_text() == "{}"


def test_its_commands_exist() -> None:
    for words in gpu.PARTS.values():
        if words[0] == "-m" and words[1] == "dadlm.cli":
            known = subprocess.run([sys.executable, *words[:4], "--help"], capture_output=True, text=True)
            assert known.returncode == 0 and all(
                word in known.stdout for word in words if word.startswith("--")
            )
        else:
            paths = [word for word in words if word.endswith(".py") or word.startswith("tests/")]
            assert paths and all((gpu.ROOT / path).exists() for path in paths)
