"""Attacks on the grader: each a submission that wants points, secrets, or somebody's harm.

Bounded on purpose: what floods, forks or allocates stops by itself well below what would
trouble the machine, and outside processes are touched only as nobody in a sandbox.
"""

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from classroom import code_cell, grade_id

SECRET = "SECRET-3f1c"
"""What no output and no feedback may contain; in the course, the environment and elsewhere."""


@dataclass(frozen=True)
class Attack:
    """A submission and what may come of it.

    Args:
        name: a few words.
        code: cells put before everything else, with ROOT and PORT filled in.
        edit: changes the released notebook, for attacks through metadata.
        files: shipped beside the notebook.
        place: changes the folder of the submission, for attacks through the file system.
        points: what it honestly earns.
        lengthy: looks through all memory; on a busy machine its time is over first, and it earns
            nothing.
        control: what stock nbgrader does. "score": gives points; "partial": gives some;
            "loses": takes points that were earned; "harm": HARMED or the secret appears, or the
            kernel ends; "batch": stops grading. Anything else says why that is not expected.
    """

    name: str
    code: str = ""
    edit: Callable[[dict], None] | None = None
    files: dict[str, str] = field(default_factory=dict)
    place: Callable[[Path, Path], None] | None = None
    points: float = 0.0
    control: str = "score"
    solved: bool = False
    lengthy: bool = False


SOLVED = {"solved": True, "points": 16.0}
"""Of an attack with the right answers beside it: what it honestly earns."""


def cell_of(notebook, name):
    return next(c for c in notebook["cells"] if grade_id(c) == name)


def grade_cells(notebook):
    """The cells whose checks give points; a written answer is none of them."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [cell for cell in code if cell["metadata"].get("nbgrader", {}).get("grade")]


def every_answer(expression):
    """Definitions that give the same for everything."""
    names = ("fields_of", "value_of", "max_finite", "encode_nearest")
    return "\n".join(f"def {n}(*a, **k): return {expression}" for n in names)


def answers(source):
    """Put a source into each answer, so that nothing later replaces it."""

    def edit(notebook):
        for cell in notebook["cells"]:
            if grade_id(cell).endswith("-answer") and cell["cell_type"] == "code":
                cell["source"] = source

    return edit


def each_check(change):
    """Change every cell whose check gives points."""

    def edit(notebook):
        for cell in grade_cells(notebook):
            change(cell)

    return edit


def tagged(tag):
    return each_check(lambda cell: cell["metadata"].update(tags=[tag]))


def marked(**mark):
    return each_check(lambda cell: cell["metadata"]["nbgrader"].update(mark))


def duplicate(notebook):
    notebook["cells"] += [copy.deepcopy(c) for c in grade_cells(notebook)]


def as_markdown(cell):
    cell["cell_type"] = "markdown"
    del cell["outputs"], cell["execution_count"]


def as_graded_by_hand(cell):
    """Claim that a check is an answer to be graded by hand, with points given."""
    cell["metadata"]["nbgrader"].update(
        solution=True, locked=False, score=99, points=99
    )
    cell["source"] = "16.0"


READY = {"output_type": "execute_result", "execution_count": 1, "metadata": {},
         "data": {"text/plain": "16.0"}}  # fmt: skip


def added(*sources):
    """Add cells at the end."""
    return lambda notebook: notebook["cells"].extend(map(code_cell, sources))


def remove_checks(notebook):
    notebook["cells"] = [c for c in notebook["cells"] if c not in grade_cells(notebook)]


def checks_first(notebook):
    checks = grade_cells(notebook)
    notebook["cells"] = checks + [c for c in notebook["cells"] if c not in checks]


def foreign_kernel(notebook):
    notebook["metadata"]["kernelspec"] = {
        "name": "bash",
        "display_name": "x",
        "language": "bash",
    }


def claim_refused(notebook):
    notebook["metadata"]["mplab"] = {"refused": "", "score": 16}


ALWAYS_EQUAL = """
class Yes(float):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __getitem__(self, i): return self
    def __hash__(self): return 0
"""

FIND_SOCKET = """
import gc, json, os, socket, struct, sys
def channel():
    for fd in range(3, 64):
        try:
            s = socket.socket(fileno=os.dup(fd))
            if s.family == socket.AF_UNIX: return s
        except OSError: pass
def frame(m):
    b = m if isinstance(m, bytes) else json.dumps(m).encode()
    return struct.pack('>I', len(b)) + b
"""

LEAK = f"""
import os
def leak(path):
    try:
        text = open(path, errors='replace').read()
        i = text.find('{SECRET[:6]}' + '{SECRET[6:]}')
        if i >= 0: print(text[i:i+40])
    except OSError as e: print('no', type(e).__name__)
"""


def solution_in(path):
    """Code that runs the answers of a notebook of the course."""
    return (f"import json\ntry:\n    n = json.load(open('ROOT/{path}'))\n"
            "    for c in n['cells']:\n"
            "        if c['cell_type'] == 'code' and 'SOLUTION' in ''.join(c['source']):\n"
            "            exec(''.join(c['source']))\nexcept OSError: pass")  # fmt: skip


SHIPPED = []
SHADOW = "print('HARM' + 'ED')\nraise SystemExit"
for _file in ("numpy.py", "mplab.py", "ipykernel_launcher.py", "sitecustomize.py", "torch.py",
              "json.py", "usercustomize.py"):  # fmt: skip
    control = (
        "harm" if _file in ("numpy.py", "ipykernel_launcher.py") else "not each run"
    )
    shipped = {_file: "open('HARMED', 'w')\n" + SHADOW}
    code = "import numpy, json, mplab"
    SHIPPED.append(
        Attack(f"shipped {_file}", code, files=shipped, control=control, **SOLVED)
    )
shipped = {"x.pth": "import os; print('HARM' + 'ED')\n"}
SHIPPED.append(Attack("shipped x.pth", files=shipped, control="not each run", **SOLVED))


def link_to_solution(folder, root):
    (folder / "a1.ipynb").unlink()
    (folder / "a1.ipynb").symlink_to(root / "source" / "a1" / "a1.ipynb")


def hard_link_to_solution(folder, root):
    (folder / "a1.ipynb").unlink()
    victim = root / "submitted" / "s000" / "a1" / "a1.ipynb"
    if os.geteuid() != 0:  # cannot pretend to be two users
        (folder / "a1.ipynb").symlink_to(victim)
        return
    (folder / "a1.ipynb").hardlink_to(victim)
    os.chown(folder, 12345, 12345)


def link_to_secret(folder, root):
    (folder / "notes.txt").symlink_to(root / "checks" / "a1" / "exercises.py")
    (folder / "more").symlink_to(root / "checks")


def link_as_folder(folder, root):
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.symlink_to(root / "submitted" / "s000" / "a1")


def content(text):
    def place(folder, root):
        data = text if isinstance(text, bytes) else text.encode()
        (folder / "a1.ipynb").write_bytes(data)

    return place


def fifo(folder, root):
    (folder / "a1.ipynb").unlink()
    os.mkfifo(folder / "a1.ipynb")


def markup(notebook):
    bad = ("<script>alert(1)</script><img src=x onerror=alert(2)><a href='javascript:alert(3)'>x"
           "</a><iframe src='http://127.0.0.1:1/'></iframe><svg onload=alert(4)>")  # fmt: skip
    notebook["cells"].insert(
        0, {"cell_type": "markdown", "metadata": {}, "source": bad, "id": "m"}
    )
    notebook["cells"].insert(0, {"cell_type": "raw", "metadata": {"format": "text/html"},
                                 "source": bad, "id": "r"})  # fmt: skip
    notebook["cells"].insert(0, code_cell(
        f"from IPython.display import HTML, Javascript, display\ndisplay(HTML({bad!r}))\n"
        f"display(Javascript('alert(5)'))\nprint({bad!r})\nraise ValueError({bad!r})"))  # fmt: skip


UNSAFE = "not run: unsafe without walls"


CLASSES = {
    "the kernel is patched: points": [
    Attack("ast transformer", """
import ast
class Strip(ast.NodeTransformer):
    def visit_Assert(self, node): return ast.Pass()
get_ipython().ast_transformers.append(Strip())
""",
        edit=answers(every_answer("0"))),
    Attack("input transformer", "get_ipython().input_transformers_post.append(lambda ls: "
        "['pass\\n' if 'assert' in l else l for l in ls])", edit=answers(every_answer("0"))),
    Attack("patched do_execute", """
async def fake(code, silent, *a, **k):
    return {'status': 'ok', 'execution_count': 1, 'payload': [], 'user_expressions': {}}
get_ipython().kernel.do_execute = fake
"""),
    Attack("patched run_cell", """
from IPython.core.interactiveshell import InteractiveShell, ExecutionResult
async def fake(self, *a, **k):
    r = ExecutionResult(None); r.execution_count = 1; return r
def quiet(self, *a, **k): return ExecutionResult(None)
InteractiveShell.run_cell_async = fake; InteractiveShell.run_cell = quiet
"""),
    ],
    "answers and libraries that lie: points": [
    Attack("answers equal to all", edit=answers(ALWAYS_EQUAL + every_answer("Yes(1)"))),
    Attack("shadowed builtins",
        "import builtins\nbuiltins.all = lambda *a: True\nbuiltins.float = lambda *a: 1.0",
        edit=answers(every_answer("0")), control="nothing gained: the control uses assert"),
    Attack("array that lies", edit=answers("import numpy as np\nclass Liar(np.ndarray):\n"
            "    def __array_ufunc__(self, *a, **k): return np.True_\n"
            "    def __array__(self, *a, **k): raise KeyboardInterrupt\n"
            "    def __eq__(self, o): return True\n"
            "    __hash__ = None\n" + every_answer("np.ones(3).view(Liar)"))),
    Attack("patched numpy", "import numpy as np\nnp.testing.assert_equal = lambda *a, **k: None\n"
        "np.signbit = np.isnan = lambda *a: np.array(True)\n"
        "np.frombuffer = np.asarray = lambda *a, **k: np.zeros(())",
        edit=answers(every_answer("0")), control="nothing gained: the control uses assert"),
    Attack("patched mplab", "import mplab, mplab.course\n"
        "import mplab.course.grading.serialization as v, mplab.course.grading.exercises as e\n"
        "mplab.check = mplab.course.check = lambda *a, **k: True\n"
        "mplab.course.equal = e.equal = lambda *a: True\n"
        "v.encode_value = lambda x: {'float': '0x1.0000000000000p+0'}",
        edit=answers(every_answer("0")), control="nothing gained: the control uses assert"),
    Attack("frame inspection", edit=answers("""
import sys
def peek(*args):
    f = sys._getframe()
    while f:
        for space in (f.f_locals, f.f_globals):
            for name in ('expected', 'wanted', 'want', 'outcomes'):
                if name in space: return space[name][args] if hasattr(space[name], 'get') \
                    and args in space[name] else space[name]
        f = f.f_back
fields_of = value_of = max_finite = encode_nearest = peek
""")),
    Attack("memory inspection", edit=answers("""
import gc
def peek(*args):
    for o in gc.get_objects():
        if type(o) is dict and args in o: return o[args]
        if type(o).__name__ in ('Graded', 'Exercise') and callable(getattr(o, 'answer', None)):
            try: return o.answer(*args)
            except Exception: pass
fields_of = value_of = max_finite = encode_nearest = peek
"""), lengthy=True),
    Attack("answers from the public table", edit=answers("""
import json
import os
from mplab.course.grading import load_public
from mplab.course import EXERCISES
load_public('checks.json')
fields_of = EXERCISES['fields'].answer; value_of = EXERCISES['value'].answer
max_finite = EXERCISES['max_finite'].answer; encode_nearest = EXERCISES['encode'].answer
finite_codes = EXERCISES['finite_codes'].answer
"""), control="the control has no table"),
    Attack("functions of the library", edit=answers("""
import mplab
def toy(e, t): return mplab.Format('toy', exponent_bits=e, precision=t + 1)
def fields_of(c, e, t): return tuple(map(int, mplab.fields(c, toy(e, t))))
def value_of(c, e, t): return float(mplab.decode(c, toy(e, t)))
def max_finite(e, t): return toy(e, t).max_finite
def encode_nearest(x, e, t):
    return int(mplab.encode(float(mplab.round_to(float(x), toy(e, t))), toy(e, t)))
finite_codes = toy(5, 3).finite_codes
"""), points=1),  # a number may be found in any way
    Attack("everything is NaN", edit=answers(every_answer("float('nan')")), control="partial"),
    Attack("partial credit through repr", edit=answers(
            "class P:\n    def __repr__(self): return '16.0'\n    def __eq__(s, o): return s\n"
            "    def __bool__(s): return True\n    def __radd__(s, o): return s\n"
            "    __add__ = __radd__\n" + every_answer("P()"))),
    Attack("values beyond the bounds", edit=answers(
            "import numpy as np\ndeep = []\nfor i in range(100000): deep = [deep]\n"
            "from itertools import cycle\n"
            "wild = cycle([deep, 1 << 10**6, np.zeros(10**7), 'x' * 10**7,"
            " [0] * 10**6, object(), np.array([object()]), {1: 2}, np.zeros(3, 'M8[s]')])\n"
            + every_answer("next(wild)")), control="nothing gained"),
    Attack("exceptions beyond Exception",
        edit=answers(every_answer("(_ for _ in ()).throw(GeneratorExit)")),
        control="nothing gained"),
    ],
    "nbgrader's marks and metadata: points": [
    Attack("skip-execution tag", edit=tagged("skip-execution")),
    Attack("raises-exception tag", edit=tagged("raises-exception"), control="stock resists"),
    Attack("points in the metadata", edit=marked(points=1000), control="stock resists"),
    Attack("duplicated check cells", edit=duplicate, control="batch", **SOLVED),
    Attack("check cells as markdown", edit=each_check(as_markdown), **SOLVED,
        control="stock resists"),
    Attack("check cells removed", edit=remove_checks, **SOLVED, control="loses"),
    Attack("check cells as answers", edit=each_check(as_graded_by_hand), control="batch"),
    Attack("check cells first", edit=checks_first, **SOLVED, control="loses"),
    Attack("foreign kernelspec", edit=foreign_kernel, **SOLVED, control="stock resists"),
    Attack("metadata of the grader", edit=claim_refused, control="stock has none"),
    Attack("ready-made outputs", edit=each_check(lambda cell: cell.update(outputs=[READY])),
        control="stock resists"),
    ],
    "solutions, gradebook, environment, others are read: secrets": [
    Attack("solution read from source/", edit=answers(solution_in("source/a1/a1.ipynb"))),
    Attack("another's submission", edit=answers(solution_in("submitted/s000/a1/a1.ipynb"))),
    Attack("references of the exercises", edit=answers(
            "from pathlib import Path\nimport mplab\ntry:\n"
            "    from mplab.common.files import course_folder\n"
            "    places = [Path('ROOT/checks/a1/exercises.py'), "
            "course_folder('data').parent / 'lessons/assignments/a1/exercises.py']\n"
            "    for p in places:\n        exec(p.read_text())\nexcept Exception as e: print(e)")),
    Attack("SQL into the gradebook",
        "import sqlite3, glob\ntry:\n    db = sqlite3.connect('ROOT/gradebook.db', timeout=1)\n"
        "    db.execute('update grade set manual_score=66'); db.commit()\n"
        "    print('HARM' + 'ED')\nexcept sqlite3.Error as e: print(e)", control="harm"),
    Attack("environment read", LEAK + "print(os.environ)", control="harm"),
    Attack("hidden checks read",
        LEAK + "leak('ROOT/checks/a1/exercises.py'); leak('ROOT/source/a1/a1.ipynb')\n"
        "leak('ROOT/.mplab/key.txt'); leak('ROOT/roster.csv')", control="harm"),
    Attack("other processes read",
        LEAK + "import glob\nfor p in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline')"
        " + glob.glob('/proc/*/root/etc/hostname'): leak(p)", control="harm"),
    ],
    "the channel to the grader: points, the grader": [
    Attack("reply forged on the channel", FIND_SOCKET + "c = channel()\nfor i in range(1, 40):\n"
        "    c.sendall(frame({'id': i, 'ok': True, 'outputs': [], 'points': 16, 'earned': 16,"
        " 'values': [{'value': True}] * 24})) if c else None", control="stock has no such channel"),
    Attack("replaced answering", """
import gc
for o in gc.get_objects():
    if type(o).__name__ == 'Kernel':
        type(o).do_ask = lambda self, r: {'values': [{'value': True}] * len(r['cases'] or [0]),
                                          'points': 16, 'score': 16}
""",
        control="stock has no such channel"),
    Attack("replies of the wrong shape", """
import gc
for o in gc.get_objects():
    if type(o).__name__ == 'Kernel':
        type(o).do_ask = lambda self, r: {'values': {'length_hint': 3}, 'interrupted': [],
            'missing': {}, 'kind': 7, 'raised': {'a': 1}}
        type(o)._outcome = lambda self, c: {'value': {'array': 'float64', 'shape': [-1, 10**9],
            'data': 'AAAA'}}
""",
        control="stock has no such channel"),
    ],
    "files named like libraries: points, the grader's Python": SHIPPED,
    "writing outside, leaving something behind: files": [
    Attack("writing outside", "import os\nfor p in ('ROOT/HARMED', 'ROOT/submitted/s000/a1/HARMED',"
        " os.path.expanduser('~/HARMED'), '/tmp/HARMED-mplab'):\n"
        "    try:\n        open(p, 'w').write('x')\n"
        "        if not p.startswith('/submission'): print('HARM' + 'ED')\n"
        "    except OSError as e: print(type(e))", control="harm"),
    Attack("start-up files for the next",
        "import os, sys\nfor p in ('~/.ipython/profile_default/startup/00.py',"
        " sys.prefix + '/lib/evil.pth', '/dev/shm/poison', '/submission/poison'):\n"
        "    try:\n        p = os.path.expanduser(p)\n"
        "        os.makedirs(os.path.dirname(p), exist_ok=True)\n"
        "        open(p, 'w').write('print(\"HARM\" + \"ED\")')\n    except OSError as e: print(e)",
        control=UNSAFE),
    Attack("what the one before left", "import os\nfor d in ('/submission', '/dev/shm', '/tmp'):\n"
        "    try: print('HARM' + 'ED' if 'poison' in os.listdir(d) else 'clean')\n"
        "    except OSError as e: print(e)", control="follows the one before", **SOLVED),
    ],
    "memory, processes, disk, output: the machine, neighbours": [
    Attack("killing", "import os, signal\nfor p in [os.getppid(), 1, *range(2, 300)]:\n"
        "    if p != os.getpid():\n        try: os.kill(p, 9)\n        except OSError: pass\n"
        "try: os.kill(-1, 9)\nexcept OSError: pass", control=UNSAFE),
    Attack("daemon",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        time.sleep(120)\n    os._exit(0)", control=UNSAFE, **SOLVED),
    Attack("200 forks",
        "import os, time\nkids = 0\nfor i in range(200):\n    try:\n        if os.fork() == 0:\n"
        "            time.sleep(60); os._exit(0)\n        kids += 1\n"
        "    except OSError as e: print(e); break\ntime.sleep(1)\n"
        "if kids > 100: print('HARM' + 'ED')",
        control=UNSAFE, **SOLVED),  # ended for the memory of them all, and gone on without it
    Attack("memory",
        "import os\nheld = []\nfor i in range(60):\n    held.append(bytearray(64 << 20))\n"
        "print('HARM' + 'ED')", control=UNSAFE),
    Attack("memory that no limit counts",
        "import ctypes, os\nheld = 0\nfor i in range(40):\n    try:\n"
        "        f = os.memfd_create('m'); os.write(f, bytes(32 << 20)); held += 1\n"
        "    except OSError as e: print(e); break\nlibc = ctypes.CDLL(None)\n"
        "for i in range(20): held += libc.shmget(0, 32 << 20, 0o1600) >= 0\n"
        "if held > 8: print('HARM' + 'ED')", control=UNSAFE, **SOLVED),
    Attack("shared memory out of sight", "import mmap, os\nheld = 0\nfor i in range(8):\n    try:\n"
        "        m = mmap.mmap(-1, 64 << 20); m.write(bytes(64 << 20))\n"
        "        m.madvise(mmap.MADV_DONTNEED); held += 1; globals()[f'm{i}'] = m\n"
        "    except OSError as e: print(e); break\n"
        "try: mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20); held += 9\n"
        "except OSError as e: print(e)\nif held > 6: print('HARM' + 'ED')",
        control=UNSAFE, **SOLVED),
    Attack("what the machine has in its cache of files",
        "import ctypes, mmap, os\nfd = os.open(os.__file__, os.O_RDONLY)\nseen = 0\n"
        "for look in (lambda: os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT),\n"
        "             lambda: os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)):\n"
        "    try: look(); seen += 1\n    except OSError as e: print(e)\n"
        "m = mmap.mmap(fd, 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)\n"
        "at = id(m); held = ctypes.create_string_buffer(9)\n"
        "seen += not ctypes.CDLL(None).mincore(ctypes.c_void_p(at & -4096), 4096, held)\n"
        "if seen: print('HARM' + 'ED')", control=UNSAFE, **SOLVED),
    Attack("terminals and the host's sockets",
        "import os, socket\nheld = 0\ntry:\n    for i in range(100): os.openpty(); held += 1\n"
        "except OSError as e: print(e)\n"
        "try: socket.socket(40, socket.SOCK_STREAM); held += 99\nexcept OSError as e: print(e)\n"
        "if held > 50: print('HARM' + 'ED')", control=UNSAFE, **SOLVED),
    Attack("disk", "n = 0\nfor i in range(10):\n    try:\n        for j in range(50):\n"
        "            open(f'big{i}', 'ab').write(bytes(1 << 20)); n += 1\n"
        "    except OSError as e: print(e); break\nif n > 200: print('HARM' + 'ED')",
        control=UNSAFE),
    Attack("output", "for i in range(300):\n    print('x' * (1 << 20))", control=UNSAFE, **SOLVED),
    ],
    "it ends, hangs or floods: what was earned before, neighbours": [
    Attack("endless channel",
        FIND_SOCKET + "c = channel()\nif c:\n    c.sendall(struct.pack('>I', 4 << 20))\n"
        "    for i in range(200): c.sendall(bytes(1 << 20))", control="stock has no such channel"),
    Attack("a message of 4 GiB", FIND_SOCKET + "c = channel()\nif c: c.sendall(b'\\xff' * 8)",
        control="stock has no such channel"),
    Attack("deep JSON on the channel",
        FIND_SOCKET + "c = channel()\nif c: c.sendall(frame(b'[' * 900000))",
        control="stock has no such channel"),
    Attack("a message that never ends",
        FIND_SOCKET + "import time\nc = channel()\nif c:\n    c.sendall(struct.pack('>I', 1000))\n"
        "    for i in range(200):\n        time.sleep(0.3); c.sendall(b' ')",
        control="stock has no such channel"),
    Attack("a loop that ignores interrupts",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        control=UNSAFE),
    Attack("os._exit", "import os; os._exit(0)", control="batch"),
    Attack("segmentation fault", "import ctypes; ctypes.string_at(0)", control="batch"),
    Attack("earned, then dead",
        edit=lambda nb: cell_of(nb, "value-answer").update(source="import os; os._exit(1)"),
        solved=True, points=12, control="batch"),
    ],
    "out of the sandbox: network, namespaces": [
    Attack("loopback network",
        "import socket\ntry:\n    s = socket.create_connection(('127.0.0.1', PORT), 2)\n"
        "    print('HARM' + 'ED')\nexcept OSError as e: print(e)", control="harm"),
    Attack("namespaces and tracing",
        "import ctypes, os, subprocess\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "won = [libc.unshare(0x10000000) == 0, libc.ptrace(16, 1, 0, 0) == 0,"
        " libc.mount(b'x', b'/submission', b'tmpfs', 0, None) == 0]\n"
        "done = subprocess.run(['unshare', '-Ur', 'true'], capture_output=True)\n"
        "won.append(done.returncode == 0)\nif any(won): print('HARM' + 'ED', won)",
        control=UNSAFE, **SOLVED),
    ],
    "links, pipes, no notebooks: other files, neighbours": [
    Attack("symlink to the solution", place=link_to_solution),
    Attack("folder that is another's", place=link_as_folder),
    Attack("hard link to another's", place=hard_link_to_solution),
    Attack("symlinked extra files", place=link_to_secret, **SOLVED, control="harm"),
    Attack("a pipe as notebook", place=fifo, control=UNSAFE),
    Attack("25 MiB cell", edit=added("#" * (25 << 20)), control=UNSAFE),
    Attack("2000 cells", edit=added(*(f"x = {i}" for i in range(2000))), control=UNSAFE),
    Attack("deep JSON", place=content('{"cells":' + "[" * 100_000), control="batch"),
    Attack("broken JSON", place=content('{"cells": ['), control="batch"),
    Attack("no notebook", place=content("[1, 2]"), control="batch"),
    Attack("no text", place=content(b"\0\xff\xfe" * 100), control="batch"),
    ],
    "markup, odd text, warnings: the pages": [
    Attack("NUL and surrogates", edit=added("x = 'a\0b'", "y = '\ud800'"), **SOLVED,
        control="batch"),
    Attack("half a surrogate pair shown", "print('a\\ud800b')\nraise ValueError('c\\udfffd')",
        **SOLVED, control="not tried"),
    Attack("markup in feedback", edit=markup, **SOLVED, control="harm"),
    Attack("warnings", "import warnings, sys, numpy as np\nwarnings.warn('careful')\n"
        "print('careful', file=sys.stderr)\nnp.float32(3e38) * np.float32(3e38)",
        edit=lambda nb: cell_of(nb, "fields-answer").update(
            source=cell_of(nb, "fields-answer")["source"].replace(
                "    ### BEGIN", "    import warnings; warnings.warn('hm')\n    ### BEGIN")),
        **SOLVED, control="loses"),
    ],
}  # fmt: skip
"""The attacks by class, each with what it must leave untouched."""
ATTACKS = [attack for attacks in CLASSES.values() for attack in attacks]
