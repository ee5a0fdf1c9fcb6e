"""What the numbers and strings of a result may be at most: a file may be anybody's, and we compute with it."""

from typing import Annotated, Literal

from pydantic import Field

MAX_STRING = 2**17
"""Characters of a string; Linux allows an argument or an environment variable no more."""

Count = Annotated[int, Field(ge=0, le=2**64 - 1)]
Positive = Annotated[int, Field(ge=1, le=2**64 - 1)]
NonNegative = Annotated[float, Field(ge=0)]
Measured = Annotated[float, Field(ge=0, le=1e15)]
"""A time, rate or size. The bound is beyond anything that is measured, and within what can be squared and summed."""
Names = Annotated[list[str], Field(fail_fast=True)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Place = Annotated[str, Field(pattern=r"^[\w./-]+:[0-9]{1,9} \S+$", max_length=400)]
"""File, line and function."""
Phase = Literal["setup", "step", "window", "teardown"]
