"""The exercises on real mixed precision: bytes of a layer, and what limits its speed."""

import numpy as np

import mplab.lessons.solutions as solutions
from mplab.course.exercises.exercise import Exercise, known


def _sum_of_both(n: float, peak32: float, peak16: float, bandwidth: float) -> float:
    def time(peak: float, width: float) -> float:
        return 2 * n**3 / peak + 3 * n * n * width / bandwidth

    return time(peak32, 4) / time(peak16, 2)


_PRODUCTS = (
    (1024.0, 1e12, 8e12, 1e15),
    (64.0, 1e12, 8e12, 1e9),
    (96.0, 2e12, 16e12, 1e11),
    (96.0, 1.6e12, 3.2e12, 1e11),
    (4096.0, 1e13, 1e13, 1e12),
    (480.0, 1e13, 1.6e14, 1e12),
    (256.0, 1e13, 1.6e14, 1e12),  # arithmetic limits FP32, memory the other
)

_STEPS = tuple(
    tuple(map(np.array, case))
    for case in (
        ([1.0], [8.0]),
        ([0.5, 0.5], [8.0, 1.0]),
        ([0.25, 0.75], [4.0, 1.0]),
        ([0.2, 0.3, 0.4, 0.1], [1.0, 4.0, 4.0, 0.5]),
        ([0.0, 1.0], [16.0, 1.0]),
    )
)

EXERCISES: dict[str, Exercise] = {
    "extra_bytes": Exercise(
        answer=2_031_616,
        reason="Input in 16 bits instead of 32, and a 16-bit copy of all weights beside them.",
        misconceptions=known(
            (
                -65_536,
                "The activations shrink by that much, but the weights get a low copy.",
            ),
            (2_097_152, "That is the copy; the activations shrink meanwhile."),
            (-2_162_688, "The FP32 weights stay; the 16-bit copy comes beside them."),
        ),
    ),
    "speed_up": Exercise(
        answer=solutions.speed_up,
        reason="Each time is the longer of arithmetic and memory; divide FP32's by the other.",
        argument="n, peak32, peak16, bandwidth",
        cases=_PRODUCTS,
        tolerance=1e-9,
        misconceptions=known(
            (
                lambda n, peak32, peak16, bandwidth: peak16 / peak32,
                "That holds where arithmetic is the limit in both formats.",
            ),
            (
                _sum_of_both,
                "Arithmetic and memory work at the same time: the longer of the two counts.",
            ),
            (
                lambda *given: 1 / solutions.speed_up(*given),
                "The ratio is upside down: FP32's time over the other.",
            ),
        ),
    ),
    "step_speed_up": Exercise(
        answer=solutions.step_speed_up,
        reason="Add up what each part takes after its speed-up; divide the old time, 1, by that.",
        argument="shares, factors",
        cases=_STEPS,
        tolerance=1e-12,
        misconceptions=known(
            (
                lambda shares, factors: float(np.sum(shares * factors)),
                "A mean of speed-ups forgets that slow parts fill the time; add times.",
            ),
            (
                lambda shares, factors: float(np.max(factors)),
                "Only one part is that much faster; the others take as long as before.",
            ),
            (
                lambda shares, factors: 1 / solutions.step_speed_up(shares, factors),
                "That is the new time; the speed-up is the old time divided by it.",
            ),
        ),
    ),
    "claims": Exercise(
        answer=[1 / (0.4 + 0.6 / 16), 18 / 16, 16.0],
        reason="The other 40 percent stay; 2 bytes more beside 16; 16 bits against 1.",
        tolerance=0.01,
        misconceptions=known(
            (
                [16.0, 0.5, 32.0],
                "Those are the article's: of the products alone, of what is kept for the "
                "backward pass, and beside FP32.",
            ),
            (
                [1 / (0.4 + 0.6 / 16), 0.5, 16.0],
                "Parameters, gradients and both moments stay in FP32; the copy comes on top.",
            ),
            (
                [1 / (0.4 + 0.6 / 16), 18 / 16, 32.0],
                "That is beside FP32; BF16 has 16 bits.",
            ),
        ),
    ),
}
