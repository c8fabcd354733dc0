"""Runs the page's modules under Node, which is given arrays and gives arrays back."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mplab.course.explorers import modules

CORE = Path(modules.__file__).parent / "page" / "numbers.js"

PRELUDE = f"""
import {{ readFileSync, writeFileSync }} from "node:fs";
import * as core from {json.dumps(CORE.as_uri())};
const given = JSON.parse(readFileSync("given.json"));
const array = (name, kind) => new kind(new Uint8Array(readFileSync(name)).buffer);
const write = (name, numbers) => writeFileSync(name, numbers);
"""


def run(code, folder, given=None, **arrays):
    """Run `code` in `folder`, with JSON in `given` and files of arrays; what it prints, as JSON."""
    if (node := shutil.which("node")) is None:
        (pytest.fail if os.environ.get("MPLAB_REQUIRE_BROWSER") else pytest.skip)(
            "needs Node"
        )
    (folder / "given.json").write_text(json.dumps(given))
    for name, numbers in arrays.items():
        np.asarray(numbers).tofile(folder / name)
    (folder / "run.mjs").write_text(PRELUDE + code)
    command = [node, "run.mjs"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None
