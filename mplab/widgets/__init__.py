"""Explorers: each answers one question, by slider or keyboard, in a picture and in words."""

from mplab.widgets.accumulator_race import AccumulatorRace
from mplab.widgets.amax_history import AmaxHistory
from mplab.widgets.bit_explorer import BitExplorer
from mplab.widgets.clinic import Clinic
from mplab.widgets.explorer import Explorer
from mplab.widgets.matrix_step import MatrixStep
from mplab.widgets.number_line import NumberLine
from mplab.widgets.policy_explorer import PolicyExplorer
from mplab.widgets.range_map import RangeMap
from mplab.widgets.rounding_lab import RoundingLab
from mplab.widgets.scaler_timeline import ScalerTimeline
from mplab.widgets.speed_up import SpeedUp
from mplab.widgets.training_theatre import TrainingTheatre
from mplab.widgets.update_stagnation import UpdateStagnation

__all__ = [
    "AccumulatorRace",
    "AmaxHistory",
    "BitExplorer",
    "Clinic",
    "Explorer",
    "MatrixStep",
    "NumberLine",
    "PolicyExplorer",
    "RangeMap",
    "RoundingLab",
    "ScalerTimeline",
    "SpeedUp",
    "TrainingTheatre",
    "UpdateStagnation",
]
