"""The sheet to keep open: its table is computed, and its words stand where it says."""

import re

import make_sheet
import nbformat
import pytest
import torch
from torch import nn

from mplab.common.files import course_folder

LESSONS = course_folder("lessons")
SHEET = (LESSONS / "SHEET.md").read_text(encoding="utf-8")
WORDS = re.findall(r"(?m)^\| \*\*(.*?)\*\*.*\| (\d+) \|$", SHEET)


def test_the_table_of_formats_is_the_one_that_is_computed():
    assert make_sheet.renewed(SHEET) == SHEET, "python data/make_sheet.py writes it"
    assert make_sheet.renewed(SHEET.replace("65504", "65505")) == SHEET


@pytest.mark.parametrize(("word", "lesson"), WORDS)
def test_a_word_stands_in_the_lesson_that_explains_it(word, lesson):
    (path,) = LESSONS.glob(f"{int(lesson):02}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    text = " ".join(cell.source for cell in cells)
    stem = word.split()[0][:6]
    assert re.search(rf"\b{stem}", text, re.IGNORECASE)


def test_words_are_in_order_and_each_stands_once():
    words = [word.lower() for word, _ in WORDS]
    assert len(words) > 20
    assert words == sorted(set(words))


def test_what_to_do_names_a_lesson_that_speaks_of_the_format_and_of_what_to_watch():
    table = SHEET.partition("## What to do")[2].partition("##")[0]
    rows = re.findall(r"(?m)^\| (?!you)([^|-]+)\|.*\| (.*) \| (\d+) \|$", table)
    assert len(rows) == 8
    for what, watch, lesson in rows:
        (path,) = LESSONS.glob(f"{int(lesson):02}_*.ipynb")
        cells = nbformat.read(path, as_version=4).cells
        text = " ".join(cell.source for cell in cells)
        formats = re.findall(r"FP16|BF16|FP8|MXFP4|NVFP4|INT8|Muon", what)
        assert formats and all(name in text for name in formats), what
        words = re.findall(r"[a-z]{5,}", watch)
        assert sum(word[:5] in text.lower() for word in words) >= len(words) / 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, x):
        return x + self.inner(x)


def warmed_losses(seed, dtype, steps_of_warm_up):
    torch.manual_seed(seed)
    blocks = [Block() for _ in range(8)]
    model = nn.Sequential(nn.Linear(4, 64), *blocks, nn.Linear(64, 1))
    x = torch.randn(128, 4)
    y = x.sum(1, keepdim=True).sin()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    warm_up = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / steps_of_warm_up)
    )
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            output = model(x)
        loss = (output.float() - y).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        warm_up.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Detected call of")  # a step that the scaler skipped
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(3))
def test_a_warm_up_cures_a_jump_in_the_first_steps_in_any_format(seed, dtype):
    cold = warmed_losses(seed, dtype, 1)
    warm = warmed_losses(seed, dtype, 50)
    assert max(cold) > 30 and max(warm) < 2
