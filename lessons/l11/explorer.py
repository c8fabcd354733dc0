"""The explorer of speed: what a narrower format gains when two limits and a start cost time."""

from mplab.course.explorers.chart import BOLD, Drawing
from mplab.course.explorers.widget import Explorer, stops
from mplab.course.pictures.canvas import BAD, FAINT

SIZES = tuple(2**k for k in range(4, 14))

PEAK, BANDWIDTH, START = 20e12, 1e12, 5e-6
"""The model machine: FP32 operations a second, bytes a second, seconds to start."""


class SpeedUp(Explorer):
    """Why is 8× promised, and 2× or nothing seen?

    A model machine, not a real one: its product takes the longer of arithmetic and memory, and
    a fixed time to start. Bars are the times in FP32 and in 16 bits.

    Attributes:
        rows: the slider of the first matrix' rows.
        size: the slider of the size of the second matrix, which is square.
        gain: how many times faster 16-bit arithmetic is.

    Examples:
        >>> explorer = SpeedUp()
        >>> explorer.rows.value = explorer.size.value = 8192
        >>> round(explorer.speed_up, 1)
        8.0
        >>> explorer.rows.value = 16
        >>> round(explorer.speed_up, 1)
        2.0
    """

    def __init__(self) -> None:
        sizes = [(f"{n:,}", n) for n in SIZES]
        self.rows = stops("rows (batch)", sizes, 64)
        self.size = stops("layer's width", sizes, 1024)
        self.gain = stops("16-bit units", [(f"{n}×", n) for n in (1, 2, 4, 8, 16)], 8)
        question = "Why is 8× promised, and 2× or nothing seen?"
        super().__init__(question, [self.rows, self.size, self.gain])

    def times(self, width: int) -> tuple[float, float, float]:
        """Seconds of arithmetic, of memory and of the start, with numbers of `width` bytes."""
        m, n = self.rows.value, self.size.value
        rate = PEAK * (self.gain.value if width == 2 else 1)
        return 2 * m * n * n / rate, width * (2 * m * n + n * n) / BANDWIDTH, START

    @property
    def speed_up(self) -> float:
        """How many times faster the product is in 16 bits."""
        wide, low = (max(t[0], t[1]) + t[2] for t in (self.times(4), self.times(2)))
        return wide / low

    def draw(self) -> tuple[str, str]:
        """Draw the bars, and say what limits each product."""
        words = []
        for name, width in (("FP32", 4), ("16 bits", 2)):
            times = self.times(width)
            limit = ("arithmetic", "memory", "the start")[times.index(max(times))]
            words.append(
                f"{name}: arithmetic {_micro(times[0])}, memory {_micro(times[1])}, start "
                f"{_micro(times[2])}, limited by {limit}"
            )
        sentence = (
            f"A product of {self.rows.value:,} rows with a layer {self.size.value:,} wide, 16-bit "
            f"units {self.gain.value}× as fast: it takes 1/{self.speed_up:.2f} of the time. "
            f"{'; '.join(words)}. This is a model machine."
        )
        return self._bars(sentence), sentence

    def _bars(self, description: str) -> str:
        both = {"FP32": self.times(4), "16 bits": self.times(2)}
        longest = max(map(max, both.values()))
        drawing = Drawing()
        y = 66
        drawing.text(20, 24, f"{self.speed_up:.2f}× as fast", more=BOLD)
        for name, times in both.items():
            drawing.text(20, y - 8, name, more=BOLD)
            for what, seconds in zip(
                ("arithmetic", "memory", "start"), times, strict=True
            ):
                length = max(1.0, seconds / longest * 380)
                bound = seconds == max(times)
                drawing.text(180, y + 15, what, "end")
                drawing.box(190, y, length, 20, BAD if bound else FAINT)
                drawing.text(
                    196 + length, y + 15, _micro(seconds) + " (the limit)" * bound
                )
                y += 26
            y += 36
        return drawing.svg(description, width=760, height=270)


def _micro(seconds: float) -> str:
    return f"{1e6 * seconds:,.3g} µs" if seconds < 1e-3 else f"{1e3 * seconds:,.3g} ms"
