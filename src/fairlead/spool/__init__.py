"""Records on this machine's disk that a broker, which is away, is to get later.

Whoever appends a record is answered once it is on the disk, and whoever drains the spool confirms
or rejects each. What the records mean is up to others. Start with ``spool``, then ``journal``;
``frames`` has the bytes of the files, ``recovery`` reads what a dead process left.
"""

from fairlead.spool.inspection import SpoolFolder, folders, put_aside, stored
from fairlead.spool.records import Entry, Kind, Record, Rejection, SpoolLimits, SpoolStats
from fairlead.spool.spool import Spool

__all__ = (
    "Entry",
    "Kind",
    "Record",
    "Rejection",
    "Spool",
    "SpoolFolder",
    "SpoolLimits",
    "SpoolStats",
    "folders",
    "put_aside",
    "stored",
)
