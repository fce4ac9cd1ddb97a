# SPDX-License-Identifier: Apache-2.0
"""ckpt.torch113: torch.distributed.checkpoint of Debian 12's torch 1.13.1 under Python 3.11.

    import ckpt.torch113, ckpt.torch as ck

    dcp = ckpt.torch113.patch()    # before torch.distributed._shard is imported by anything else
    dcp.save_state_dict(state, ck.Writer("run7", step))

torch.distributed._shard does not import there, because an unhashable dataclass is the default value
of dataclass fields. It is given a hash while it imports. Importing this module needs no torch."""

import dataclasses
from typing import Any


def patch() -> Any:
    """The module torch.distributed._shard.checkpoint."""
    before = dataclasses._get_field

    def get_field(cls, name, kind, kw):
        default = getattr(cls, name, dataclasses.MISSING)
        if isinstance(default, dataclasses.Field):
            default = default.default
        of = default.__class__
        if (dataclasses.is_dataclass(default) and not isinstance(default, type) and
                of.__hash__ is None and of.__module__.startswith("torch.")):
            of.__hash__ = object.__hash__
        return before(cls, name, kind, kw)

    dataclasses._get_field = get_field
    try:
        import torch.distributed._shard.checkpoint as dcp
    finally:
        dataclasses._get_field = before
    return dcp
