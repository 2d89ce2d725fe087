"""Every head over context length: on plain text, when asked, ahead, and what was tried."""

from undilute.diagnosis.diagnose import diagnose
from undilute.diagnosis.heads import Head, Heads
from undilute.diagnosis.kinds import Thresholds
from undilute.diagnosis.result import Diagnosis

__all__ = ["Diagnosis", "Head", "Heads", "Thresholds", "diagnose"]
