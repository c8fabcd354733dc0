"""Widgets that answer one question each."""

from mplab.numbers.installation import needs

needs("mplab.explorers", "torch", "matplotlib", "ipywidgets", "anywidget")

from mplab.explorers._accumulator_race import AccumulatorRace
from mplab.explorers._amax_history import AmaxHistory
from mplab.explorers._clinic import Clinic
from mplab.explorers._error_budget import ErrorBudget
from mplab.explorers._explorer import Explorer
from mplab.explorers._four_bit_block import FourBitBlock
from mplab.explorers._freezing_cup import FreezingCup
from mplab.explorers._matrix_step import MatrixStep
from mplab.explorers._number_line import NumberLine
from mplab.explorers._policy_explorer import PolicyExplorer
from mplab.explorers._range_map import RangeMap
from mplab.explorers._refiner import Refiner
from mplab.explorers._rounding_lab import RoundingLab
from mplab.explorers._scaler_timeline import ScalerTimeline
from mplab.explorers._slice_sums import SliceSums
from mplab.explorers._speed_up import SpeedUp
from mplab.explorers._split_row import SplitRow
from mplab.explorers._training_theatre import TrainingTheatre
from mplab.explorers._update_stagnation import UpdateStagnation
from mplab.explorers.bit_explorer import BitExplorer

__all__ = [
    "AccumulatorRace",
    "AmaxHistory",
    "BitExplorer",
    "Clinic",
    "ErrorBudget",
    "Explorer",
    "FourBitBlock",
    "FreezingCup",
    "MatrixStep",
    "NumberLine",
    "PolicyExplorer",
    "RangeMap",
    "Refiner",
    "RoundingLab",
    "ScalerTimeline",
    "SliceSums",
    "SpeedUp",
    "SplitRow",
    "TrainingTheatre",
    "UpdateStagnation",
]
