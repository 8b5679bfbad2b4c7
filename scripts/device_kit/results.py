"""Take a run of the device kit back: `make device-results FILE=results.json`.

It writes the table "On a device" of docs/performance.md, failures first, and brings the tunings to
the files that the examples' manifests name. The programs must be in the cache that `make
device-kit` left.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kit import shown, unserved

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- make device-results -->\n", "<!-- end of make device-results -->\n"
_MAX_SHOWN = 5
"""Failures of a step that the page names."""
_HIDDEN = ("system", "tools")
"""Facts of the machine that are in results.json alone."""


def page(report: dict[str, Any]) -> str:
    """Return what docs/performance.md says of a run."""
    steps = {name: step.get("result", step) for name, step in report["steps"].items()}
    failed = [f"- {name}: {text}" for name, step in steps.items() for text in failures(name, step)]
    parts = [", ".join(facts(steps.get("machine", {}))) + "."]
    parts += ["Failures:\n\n" + "\n".join(failed) if failed else "No failures."]
    rows = [f"| {name} | {text} |" for name, step in steps.items() for text in outcomes(name, step)]
    parts += ["\n".join(["| step | result |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def facts(machine: dict[str, Any]) -> Iterator[str]:
    """Yield what the machine is, the GPU first."""
    gpu = machine.get("gpu") or {}
    smi = machine.get("nvidia-smi")
    yield str(smi or gpu.get("name") or machine.get("cpu") or "an unknown machine")
    for name, value in machine.items():
        if name not in ("gpu", "cpu", "nvidia-smi", "packages", *_HIDDEN):
            yield f"{name} {value}"
    yield from (f"{name} {version}" for name, version in machine.get("packages", {}).items())


def failures(name: str, step: Any) -> Iterator[str]:
    """Yield what went wrong in a step."""
    messages: list[str] = []
    if name == "check" and "left out" not in step:
        for package, row in step.items():
            messages += [f"`{item['again']}`: {item['status']}" for item in row["wrong"]]
            alone = [f"{script}: {why}" for script, why in unserved(row)]
            messages += alone
            if row["ended"] and not row["wrong"] and not alone:
                messages.append(f"{package} ended with {row['ended']}: {_last(row['error'])}")
    elif name in ("tune", "sanitizer") and "left out" not in step:
        for item, row in step.items():
            without = [line.strip() for line in row["said"] if line.endswith("is usable")]
            messages += [f"{item}: {line}" for line in without]
            ended = row.get("ended", row.get("status"))
            if ended and not (ended == 1 and without):  # which is what those lines say
                messages.append(f"{item} ended with {ended}: {_last(row.get('error', ''))}")
    elif "rows" in step:
        messages += [
            shown(row, ", ") for row in step["rows"] if "error" in row or row.get("right") is False
        ]
        messages += [f"ended with {step['ended']}"] if step["ended"] else []
    elif step.get("status"):
        messages.append(f"ended with {step['status']}: {' '.join(step['said'][-3:])}")
    yield from messages[:_MAX_SHOWN]
    if len(messages) > _MAX_SHOWN:
        yield f"and {len(messages) - _MAX_SHOWN} more"


def outcomes(name: str, step: Any) -> Iterator[str]:
    """Yield the rows of a step in the table."""
    if "left out" in step:
        yield f"left out: {step['left out']}"
    elif name == "check":
        for package, row in step.items():
            yield f"{package}: {row['right']} of {row['calls']} calls right"
    elif name == "tune":
        for text, row in step.items():
            yield f"{text}: {(row['said'] or ['nothing'])[-1].partition(':')[0]}"
    elif "rows" in step:
        yield from (shown(row, ", ") for row in step["rows"] if "error" not in row)
    elif name != "machine":
        yield " ".join(f"{text}" for text in step.get("said", [])[-1:]) or shown(step, ", ")


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def write_page(path: Path, text: str) -> None:
    """Put it between the markers of docs/performance.md."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no place for it: {BEGIN.strip()}, {END.strip()}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def take_back(root: Path, caches: Path, name: str, log: Sequence[str]) -> str:
    """Import the log of a script, and export it to the file that the example's manifest names;
    return what came of it."""
    example, _, script = name.rpartition(".")[0].partition("-")
    project = root / "examples" / example
    if not log:
        return "nothing was measured"
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(f"{line}\n" for line in log))
        file.flush()
        for words in (["tune", "--import", file.name], ["dispatch", "export", script]):
            command = [sys.executable, "-m", "tilusbuild", *words]
            ended = subprocess.run(
                [*command, "--cache-dir", str(caches / example)],
                cwd=project,
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode not in (0, 1) or (ended.returncode and words[0] == "dispatch"):
                return ended.stderr.strip().splitlines()[0]
    return ended.stdout.strip().splitlines()[-1]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, help="results.json of the kit's run")
    parser.add_argument("--caches", type=Path, default=ROOT / "build" / "device-kit-cache")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to write to")
    options = parser.parse_args(words)
    report = json.loads(options.file.read_text())
    if report.get("schema") != 1 or "steps" not in report:
        raise SystemExit(f"{options.file} is not what the device kit writes")
    write_page(options.root / "docs" / "performance.md", page(report))
    print("docs/performance.md: On a device")
    tuned = report["steps"].get("tune", {}).get("result", {})
    for name, row in tuned.items() if "left out" not in tuned else ():
        print(f"{name}: {take_back(options.root, options.caches.resolve(), name, row['log'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
