"""Write the predictions of all lessons with their answers: a quiz bank for teachers.

python data/make_quiz.py > quiz.md        # or with the numbers of some lessons: 1 8 11
"""

import re
import sys

import nbformat

from mplab.common.files import PICTURE, PREDICTION, course_folder

FOLDED = re.compile(r"<details>.*?</summary>(.*?)</details>", re.DOTALL)


def predictions(notebook):
    """Yield each prediction of a lesson: its section, its question, and its answer.

    The question includes the text before it in the same section, and the code that settles it.
    """
    section, said, asked = "", "", ""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            asked += f"\n\n```python\n{cell.source}\n```" * bool(asked)
            continue
        for piece in re.split(
            r"(?m)(<details>.*?</details>)|^(?=## )", cell.source, flags=re.S
        ):
            text = re.sub(PICTURE, "", piece or "").strip()
            if FOLDED.match(text):
                if asked:
                    yield section, asked, FOLDED.match(text)[1].strip()
                said = asked = ""
            elif text:
                if text.startswith("## "):
                    section, _, text = text[3:].partition("\n")
                    said = ""
                said = f"{said}\n\n{text.strip()}".strip()
                asked = said if re.search(PREDICTION, said) else asked


def quiz(numbers):
    """Return the predictions of these lessons, or of all, as one text in Markdown."""
    parts = ["# Predictions, and their answers"]
    for path in sorted(course_folder("lessons").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        number, title = int(path.name[:2]), notebook.cells[0].source.splitlines()[0][2:]
        if numbers and number not in numbers:
            continue
        parts.append(f"## {number} · {title}")
        for k, (section, asked, answer) in enumerate(predictions(notebook), 1):
            parts += [
                f"### {number}.{k} ({section})",
                asked,
                f"> {answer}".replace("\n", "\n> "),
            ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(quiz([int(number) for number in sys.argv[1:]]))
