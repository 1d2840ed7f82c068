"""The constants of gen/pd_abi_pkg.sv, read from the file so that they are typed once."""

import re
from pathlib import Path

RTL = Path(__file__).resolve().parents[2]


def _value(text):
    text = text.strip()
    match = re.fullmatch(r"(?:\d*'h)([0-9a-fA-F_]+)", text)
    return int(match[1].replace("_", ""), 16) if match else int(text, 0)


_SOURCE = (RTL / "gen" / "pd_abi_pkg.sv").read_text()
for _name, _text in re.findall(r"localparam int unsigned (\w+) = ([^;]+);", _SOURCE):
    globals()[_name] = _value(_text)


class Command:
    """One SQ or CQ entry."""

    FIELDS = ("request_type", "status", "cid", "data_len", "src_addr", "dst_addr", "conn_id", "table_id", "reserved",
              "entry_seq")

    def __init__(self, **fields):
        for name in self.FIELDS:
            setattr(self, name, fields.get(name, 0))

    @staticmethod
    def _place(name):
        return globals()[f"CMD_{name.upper()}_LSB"], globals()[f"CMD_{name.upper()}_BITS"]

    def pack(self):
        word = 0
        for name in self.FIELDS:
            lsb, bits = self._place(name)
            word |= (getattr(self, name) & ((1 << bits) - 1)) << lsb
        return word.to_bytes(globals()["CMD_BYTES"], "little")

    @classmethod
    def unpack(cls, data):
        word = int.from_bytes(data, "little")
        return cls(**{name: word >> lsb & ((1 << bits) - 1)
                      for name in cls.FIELDS for lsb, bits in [cls._place(name)]})
