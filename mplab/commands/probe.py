"""`mplab probe`: compare the matrix units of this machine's GPU with the models."""

import argparse
from collections.abc import Sequence

from mplab.lessons.l06.probes import PROBES, on_cuda, report


def main(argv: Sequence[str] | None = None) -> int:
    """Run each probe on this machine's GPU, and print its answer beside the models'."""
    argparse.ArgumentParser(
        prog="mplab probe",
        description="Ask the matrix units of this machine's GPU questions that tell models of "
        "their arithmetic apart, and print each answer beside the models'.",
    ).parse_args(argv)
    import torch

    cuda = torch.cuda.is_available()
    if cuda:
        print(f"GPU: {torch.cuda.get_device_name()}, torch {torch.__version__}")
    else:
        print("There is no CUDA device here, so these are the models' answers only.")
    for probe in PROBES:
        measured = None
        problem = ""
        if cuda:
            try:
                measured = on_cuda(probe)
            except Exception as error:  # of any kind: the other probes go on
                line = str(error).strip().partition("\n")[0] or type(error).__name__
                problem = f"  this GPU, with this torch, cannot: {line}"
        print(
            "\n".join([*report(probe, measured), *([problem] if problem else [])]),
            flush=True,
        )
    return 0
