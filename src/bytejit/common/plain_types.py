"""Types of Python whose values are constants: immutable, compared by value, without attributes of the program's."""

from __future__ import annotations

import datetime
import sys

JSON_TYPES = (bool, int, float, str, type(None))  # those that a text of JSON has
PLAIN_TYPES = (*JSON_TYPES, complex, bytes, type(Ellipsis))
DATES = (datetime.date, datetime.time, datetime.datetime, datetime.timedelta)
# values that may be another one in each call, and are passed on as they are: `OpenVar`
OPEN_TYPES = frozenset((int, bytes, complex, *DATES))
ZONED = frozenset((datetime.datetime, datetime.time))  # may have a time zone, an object of a class of the program's


def has_plain_zone(obj: datetime.datetime | datetime.time) -> bool:
    """Whether a time has no time zone, or one that runs no code of the program's when it is asked."""
    cls = type(obj.tzinfo)
    return cls in (type(None), datetime.timezone) or cls is getattr(sys.modules.get("zoneinfo"), "ZoneInfo", None)
