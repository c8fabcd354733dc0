"""`mplab audit`: simulated operations beside torch's own kernels."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mplab.commands._errors import require_device
from mplab.course.files import replace_file
from mplab.numbers.installation import environment
from mplab.simulation.audit import FORMATS, Refused, Row, audit, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the audit; see `mplab audit --help`."""
    parser = argparse.ArgumentParser(prog="mplab audit", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--out", type=Path, help="file for the rows, as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer inputs, a few seconds")
    options = parser.parse_args(arguments)
    require_device(options.device)
    chosen = [FORMATS[name] for name in options.format]
    rows = list(audit(chosen, device=options.device, quick=options.quick))
    print(table(rows))
    if options.out:
        replace_file(options.out, json.dumps(record(rows, options.device), indent=1).encode())
        print(f"wrote {options.out}")
    return 0


def record(rows: Sequence[Row | Refused], device: str) -> dict[str, Any]:
    """Rows and circumstances, for a JSON file."""
    import torch

    cuda, known = device.startswith("cuda"), environment()
    return {
        **{key: known[key] for key in ("mplab", "torch")},
        "device": torch.cuda.get_device_name(device) if cuda else platform.machine(),
        "instructions": "" if cuda else torch.backends.cpu.get_cpu_capability(),
        "rows": [row._asdict() for row in rows if isinstance(row, Row)],
        "refused": [row._asdict() for row in rows if isinstance(row, Refused)],
    }
