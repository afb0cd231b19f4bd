"""How to run a product: the schedule and its numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tilewright.runtime.errors import bad

ORDERS = ("m", "n")


@dataclass(frozen=True, order=True)
class Plan:
    """One way to run a product. Prints as one line, which :meth:`parse` reads back.

    Args:
        schedule: name of a file in ``gemm/schedules``.
        block_m, block_n, block_k: the tile of C that a program holds, and the slice of k that it takes at a time.
        group_m: tiles that are taken along one dimension before the next step along the other; 1 is row-major.
        num_warps: warps of a program.
        num_stages: slices of k in flight.
        split_k: programs that share one tile's k.
        order: the dimension that ``group_m`` counts along, "m" or "n".
        swap: compute C^T = B^T A^T, so that B takes A's side of the hardware. Blocks stay those of m and n.
    """

    schedule: str
    block_m: int
    block_n: int
    block_k: int
    group_m: int = 8
    num_warps: int = 4
    num_stages: int = 3
    split_k: int = 1
    order: str = "m"
    swap: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("schedule", "order", "swap"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise bad("Plan", field.name, repr(value), "an integer of 1 or more")
        for name in ("block_m", "block_n", "block_k"):
            value = getattr(self, name)
            if value & (value - 1):
                raise bad("Plan", name, value, "a power of two")
        if self.num_warps & (self.num_warps - 1) or self.num_warps > 32:
            raise bad("Plan", "num_warps", self.num_warps, "a power of two up to 32")
        if self.order not in ORDERS:
            raise bad("Plan", "order", repr(self.order), "'m' or 'n'")
        if not isinstance(self.swap, bool):
            raise bad("Plan", "swap", repr(self.swap), "True or False")

    def __str__(self) -> str:
        order = "" if self.order == "m" else f" order={self.order}"
        swap = " swap=yes" if self.swap else ""
        return (
            f"{self.schedule} {self.block_m}x{self.block_n}x{self.block_k} group={self.group_m} "
            f"warps={self.num_warps} stages={self.num_stages} split={self.split_k}{order}{swap}"
        )

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Read the line that ``str(plan)`` makes; ``ValueError`` names what is wrong with another one."""
        words = text.split()
        form = "'SCHEDULE MxNxK [group=G] [warps=W] [stages=S] [split=K] [order=m|n] [swap=yes|no]'"
        try:
            schedule, blocks, *options = words
            block_m, block_n, block_k = (int(x) for x in blocks.split("x"))
            given = dict(option.split("=") for option in options)
            names = {"group": "group_m", "warps": "num_warps", "stages": "num_stages", "split": "split_k"}
            order, swap = given.pop("order", "m"), {"yes": True, "no": False}[given.pop("swap", "no")]
            numbers = {names[key]: int(value) for key, value in given.items()}
        except (ValueError, KeyError):
            raise bad("Plan.parse", "text", repr(text), f"of the form {form}") from None
        return cls(schedule, block_m, block_n, block_k, order=order, swap=swap, **numbers)
