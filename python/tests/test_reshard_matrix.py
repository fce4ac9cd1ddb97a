#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every layout to every other: each is saved once by all its ranks, then loaded under all of them,
half from memory and half from disk, and compared byte for byte.

What a rank holds is computed here, with arrays of element numbers in numpy: cut, put one behind the
other and cut again as the frameworks do it with the values themselves. Nothing of the project's
arithmetic is used; what `ckptctl layout` says is compared with it too. Needs numpy.

Prints "ok NAME" for each layout and for the matrix; exits 1 if anything differs."""

import fcntl
import json
import os
import re
import sys
import time

import numpy as np

from harness import ctl, run_with_ckptd

import ckpt
from ckpt._tensors import DTYPES, ITEMSIZE

PAIRS_MIN = 400
GUARD = 8          # bytes between shards that no load may write
SEED = 20250101

# ---- Tensors: of 0 to 5 dimensions, of every dtype, with and without elements ----

SHORT = {"bool": "bool", "uint8": "u8", "int8": "i8", "uint16": "u16", "int16": "i16",
         "uint32": "u32", "int32": "i32", "uint64": "u64", "int64": "i64", "float16": "f16",
         "bfloat16": "bf16", "float32": "f32", "float64": "f64", "float8_e4m3fn": "f8_e4m3",
         "float8_e5m2": "f8_e5m2", "float8_e4m3fnuz": "f8_e4m3fnuz",
         "float8_e5m2fnuz": "f8_e5m2fnuz", "float8_e8m0fnu": "f8_e8m0", "complex64": "c64",
         "complex128": "c128"}
LAYERS, EXPERTS, HEADS, KV = 5, 16, 8, 2


class Tensor:
    def __init__(self, name, dtype, shape, form=None):
        """form: how a moment's name is made of its parameter's; None: a parameter."""
        self.base, self.form, self.dtype, self.shape = name, form, dtype, tuple(shape)
        self.name = form.replace("NAME", name) if form else name
        self.itemsize = ITEMSIZE[DTYPES[dtype]]
        self.n = int(np.prod(shape, dtype=np.int64)) if shape else 1
        random = np.random.default_rng([SEED, *self.name.encode()])
        self.bytes = random.integers(0, 256, (self.n, self.itemsize), np.uint8)


def make_tensors():
    names = list(SHORT)
    out = []

    def add(name, shape, *forms, dtype=None):
        out.append(Tensor(name, dtype or names[len(out) % len(names)], shape))
        for form in forms:
            out.append(Tensor(name, "float32", shape, form))
    add("model.embed_tokens.weight", (51, 6), "adam.m.NAME")
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        add(at + "input_layernorm.weight", (6,), "adam.m.NAME")
        add(at + "self_attn.qkv_proj.weight", (24, 6), "adam.m.NAME", "adam.v.NAME")
        add(at + "self_attn.o_proj.weight", (6, 16))
        add(at + "mlp.gate_up_proj.weight", (20, 6), "NAME.exp_avg")
        add(at + "mlp.down_proj.weight", (6, 10), "adam.m.NAME")
    for e in range(EXPERTS):
        add(f"model.layers.1.mlp.experts.{e}.up_proj.weight", (5, 3),
            *(["adam.v.NAME"] if e % 3 == 0 else []))
    add("model.layers.2.mlp.experts.gate_up_proj", (EXPERTS, 3, 10), "NAME.exp_avg_sq")
    add("model.layers.2.mlp.experts.down_proj", (EXPERTS, 5, 3), dtype="bfloat16")
    add("model.norm.weight", (6,))
    add("lm_head.weight", (51, 6))
    out.append(Tensor("lm_head.weight", "int64", (), "NAME.step"))
    add("model.layers.0.scale", (), dtype="float64")
    add("model.layers.3.nothing", (0, 4))
    add("embedding.word_embeddings.weight", (37, 4), "optimizer.state.exp_avg.NAME")
    for i in (0, LAYERS - 1):
        at = f"decoder.layers.{i}."
        add(at + "self_attention.linear_qkv.weight", (24, 5), "optimizer.state.exp_avg.NAME")
        add(at + "mlp.linear_fc1.weight", (18, 4), "optimizer.state.exp_avg.NAME")
        add(at + "mlp.linear_fc2.weight", (4, 9), "optimizer.state.exp_avg.NAME")
    add("h.0.attn.c_attn.weight", (4, 24), "NAME.exp_avg")
    add("h.3.mlp.c_fc.weight", (4, 7))
    for dtype in names:
        add("misc." + dtype, (7, 5), dtype=dtype)
    add("vision.position", (3, 4, 2, 2))
    add("vision.patch", (5, 2, 3, 2, 4), "adam.m.NAME", dtype="complex128")
    add("empty.a", (0,))
    add("empty.b", (3, 0, 2), "adam.m.NAME")
    add("tiny", (1,))
    assert {t.dtype for t in out} == set(DTYPES) == set(SHORT)
    assert {len(t.shape) for t in out} == set(range(6))
    return out


TENSORS = make_tensors()

# ---- Cutting index arrays: the oracle ----


def even(a, n, i):
    return np.array_split(a, n)[i]


def chunk(a, n, i):
    each = -(-len(a) // n)
    return a[each * i:each * (i + 1)]


def floor(a, n, i):
    return a[len(a) * i // n:len(a) * (i + 1) // n]


def heads(a, units, n, i):
    if units >= n:
        return even(a.reshape(units, -1), n, i).reshape(-1)
    return a.reshape(units, -1)[i * units // n]


def qkv(a, n, i, told):
    if not told:
        return np.concatenate([even(part, n, i) for part in np.split(a, 3)])
    row = len(a) // (HEADS + 2 * KV)
    q, k, v = np.split(a, [HEADS * row, (HEADS + KV) * row])
    return np.concatenate([heads(q, HEADS, n, i), heads(k, KV, n, i), heads(v, KV, n, i)])


def halves(a, n, i):
    return np.concatenate([even(part, n, i) for part in np.split(a, 2)])


def padded(a, multiple, n, i):
    """Rows of a vocabulary that is filled up to a multiple; what was filled in belongs to nobody."""
    whole = np.concatenate([a, np.full(-len(a) % multiple, -1)])
    mine = np.split(whole, n)[i]
    return mine[mine >= 0]


FAMILIES = {"hf": r"model\.|lm_head", "megatron": r"decoder\.|embedding\.", "gpt2": r"h\.|lm_head"}


class Named:
    """One of the named layouts, from its numbers."""

    def __init__(self, spec, family=None, tp=1, pp=1, dp=1, cp=1, ep=1, etp=None, rep=1, shard=None,
                 unit=None, told=False, swiglu=False, tied=False, stages=None, vpp=1,
                 order="tp cp ep dp pp"):
        self.spec = spec
        self.family, self.tp, self.pp, self.dp, self.cp, self.ep = family, tp, pp, dp, cp, ep
        self.etp = tp if etp is None else etp
        self.rep, self.shard, self.unit, self.told = rep, shard, unit, told
        self.swiglu, self.tied, self.stages, self.vpp = swiglu, tied, stages, vpp
        self.edp = tp * cp * dp // (ep * self.etp)
        self.world = tp * cp * dp * pp * rep
        dense = {"tp": tp, "cp": cp, "ep": 1, "dp": dp * rep, "pp": pp}
        expert = {"tp": self.etp, "cp": 1, "ep": ep, "dp": self.edp * rep, "pp": pp}
        # Rank numbers as an array with one dimension for each axis, the slowest first.
        self.meshes = [np.arange(self.world).reshape([sizes[a] for a in reversed(order.split())])
                       for sizes in (dense, expert)]
        self.axes = list(reversed(order.split()))

    def at(self, rank):
        """Coordinates of a rank on both meshes."""
        out = []
        for mesh, inner in zip(self.meshes, (self.dp, self.edp)):
            where = dict(zip(self.axes, (int(x[0]) for x in np.nonzero(mesh == rank))))
            where["dp"] %= inner  # replicas are behind one another
            out.append(where)
        return out

    def knows(self, base):
        """Whose rules hold for the name."""
        if self.family:
            return re.match(FAMILIES[self.family], base) is not None
        return any(re.match(f, base) for f in FAMILIES.values())

    def placed(self, t, dense, expert):
        layer = re.search(r"\blayers\.(\d+)\.", t.base)
        if not layer and self.family in (None, "gpt2"):
            layer = re.match(r"h\.(\d+)\.", t.base)
        if layer and self.family == "gpt2" and "layers" in t.base:
            layer = None
        if layer and self.pp > 1:
            piece = [i for i, s in enumerate(self.pieces()) if int(layer[1]) in s][0]
            if piece % self.pp != dense["pp"]:
                return False
        elif self.pp > 1 and self.knows(t.base):
            first = re.search(r"embed", t.base) is not None
            last = re.search(r"lm_head|model\.norm", t.base) is not None
            stages = ([0] if first else []) + ([self.pp - 1] if last or first and self.tied else [])
            if stages and dense["pp"] not in stages:
                return False
        number = re.search(r"experts\.(\d+)\.", t.base)
        if number and self.ep > 1 and self.family in (None, "hf"):
            return int(number[1]) in even(np.arange(EXPERTS), self.ep, expert["ep"])
        return True

    def pieces(self):
        if self.stages:
            return np.split(np.arange(LAYERS), np.cumsum(self.stages)[:-1])
        return np.array_split(np.arange(LAYERS), self.pp * self.vpp)

    def cut(self, t, dense, expert):
        """The numbers along each dimension that the rank has of it."""
        ix = [np.arange(n) for n in t.shape]
        if not ix:
            return ix
        name = t.base if self.knows(t.base) else ""
        n, i = self.tp, dense["tp"]
        ne, ie = self.etp, expert["tp"]
        if re.search(r"experts\.\d+\.up_proj", name):
            ix[0] = even(ix[0], ne, ie)
        elif name.endswith("experts.gate_up_proj"):
            ix[0], ix[2] = even(ix[0], self.ep, expert["ep"]), halves(ix[2], ne, ie)
        elif name.endswith("experts.down_proj"):
            ix[0], ix[1] = even(ix[0], self.ep, expert["ep"]), even(ix[1], ne, ie)
        elif re.search(r"embed_tokens|lm_head", name):
            ix[0] = even(ix[0], n, i)
        elif "word_embeddings" in name:
            ix[0] = padded(ix[0], 128 * n, n, i)
        elif "qkv_proj" in name:
            ix[0] = qkv(ix[0], n, i, self.told)
        elif "c_attn" in name:
            ix[1] = qkv(ix[1], n, i, self.told)
        elif "linear_qkv" in name:
            ix[0] = heads(ix[0], KV, n, i) if self.told else even(ix[0], n, i)
        elif "gate_up_proj" in name or self.swiglu and "linear_fc1" in name:
            ix[0] = halves(ix[0], n, i)
        elif "linear_fc1" in name:
            ix[0] = even(ix[0], n, i)
        elif re.search(r"o_proj|down_proj|linear_fc2|c_fc", name):
            ix[1] = even(ix[1], n, i)
        if self.shard == "fsdp2":
            ix[0] = chunk(ix[0], *self.data_part(t, dense, expert))
        return ix

    def is_expert(self, t):
        return self.family in (None, "hf") and "experts" in t.base

    def data_part(self, t, dense, expert):
        """How many ranks share what tensor, pipeline and expert parallelism left, and which."""
        if self.is_expert(t):
            return self.edp, expert["dp"]
        return self.dp * self.cp, dense["dp"] * self.cp + dense["cp"]

    def unit_of(self, t):
        """None: it is whole. Else a key: tensors with the same one are cut together."""
        flat = {"zero1": t.form, "zero2": t.form, "zero3": True, "fsdp1": True}.get(self.shard)
        if not flat or not t.shape:
            return None
        unit = self.unit or {"zero3": "tensor", "fsdp1": "layer"}.get(self.shard, "all")
        key = (self.is_expert(t), t.form, t.dtype)
        if unit == "tensor":
            return key + (t.name,)
        pattern = {"hf": r"(.*\blayers\.\d+)\.", "gpt2": r"(h\.\d+)\.",
                   None: r"(.*\blayers\.\d+|h\.\d+)\."}
        layer = re.match(pattern[self.family], t.base) if unit == "layer" else None
        return key + ((layer[1],) if layer else ())

    def multiple(self, n):
        """Of what the length of a unit is made a multiple."""
        if self.shard not in ("zero1", "zero2") or self.unit == "tensor":
            return n
        return int(np.lcm(n, 128)) if self.family == "megatron" else 2 * n

    def own(self, unit, held, n, i):
        """Which of each tensor's elements (by their places in what the rank has) are its own: the
        unit is laid out as one array of (tensor, place), filled up, and split."""
        columns = [np.zeros((0, 2), np.int64)]
        used = 0
        distributed = self.family == "megatron" and self.shard == "zero1" and self.unit is None
        for k in reversed(unit) if distributed else unit:
            size = int(np.prod([len(x) for x in held[k]], dtype=np.int64))
            if distributed and size:
                columns.append(np.full((-used % 64, 2), -1))
                used += len(columns[-1])
            columns.append(np.stack([np.full(size, k), np.arange(size)], 1))
            used += size
        columns.append(np.full((-used % self.multiple(n), 2), -1))
        mine = np.split(np.concatenate(columns), n)[i]
        return {k: mine[mine[:, 0] == k, 1] for k in unit}

    def shards(self, rank):
        """For each tensor its shards: (offset, shape, start, stop), flat if it is not the whole
        box."""
        dense, expert = self.at(rank)
        held, units = {}, {}
        for k, t in enumerate(TENSORS):
            if self.placed(t, dense, expert):
                held[k] = self.cut(t, dense, expert)
                units.setdefault(self.unit_of(t), []).append(k)
        own = {}
        for key, unit in units.items():
            if key is not None:
                own.update(self.own(unit, held, *self.data_part(TENSORS[unit[0]], dense, expert)))
        return {k: boxes(TENSORS[k], ix, own.get(k)) for k, ix in held.items()}


class Odd(Named):
    """The layout of a file: cuts that no framework makes."""

    FILE = {
        "layout": 1, "mesh": [["a", 2], ["b", 3]], "more_meshes": [[["c", 6]]],
        "places": [{"axis": "a", "number": ["*layers.#.*"], "sizes": [1, 4], "last": "misc.*"}],
        "flat": {"over": "b", "of": "moments", "how": "floor"},
        "rules": [
            {"match": "vision.patch", "cut": [{"dim": 2, "over": "b", "how": "floor"},
                                              {"dim": 4, "over": "a", "parts": [1, 3]}],
             "flat": False},
            {"match": "vision.*", "cut": {"dim": 1, "over": "c", "how": "chunk"}},
            {"match": ["model.embed*", "lm_head*"], "of": "parameters",
             "cut": [{"dim": 0, "over": ["b", "a"]}]}],
    }

    def __init__(self, path):
        super().__init__(path, dp=6)
        with open(path, "w") as f:
            json.dump(self.FILE, f)

    def shards(self, rank):
        a, b = rank // 3, rank % 3
        out = {}
        for k, t in enumerate(TENSORS):
            ix = [np.arange(n) for n in t.shape]
            layer = re.search(r"\blayers\.(\d+)\.", t.base)
            if layer and (int(layer[1]) > 0) != a or t.base.startswith("misc.") and a != 1:
                continue
            own = None
            size = t.n
            if t.base == "vision.patch":
                ix[2] = floor(ix[2], 3, b)
                ix[4] = np.concatenate([even(p, 2, a) for p in np.split(ix[4], [1])])
            elif t.base.startswith("vision."):
                ix[1] = chunk(ix[1], 6, rank)
            elif re.match(r"model\.embed|lm_head", t.base) and not t.form:
                ix[0] = even(ix[0], 6, b * 2 + a)
            if t.form and t.shape and t.base != "vision.patch":
                own = floor(np.arange(size), 3, b)
            out[k] = boxes(t, ix, own)
        return out


def runs(a):
    """(first, count) of each run of consecutive numbers; of none, one that is empty."""
    if not len(a):
        return [(0, 0)]
    starts = np.concatenate([[0], np.nonzero(np.diff(a) != 1)[0] + 1, [len(a)]])
    return [(int(a[x]), int(y - x)) for x, y in zip(starts[:-1], starts[1:])]


def boxes(t, ix, own):
    """What the rank has of t, as boxes or flat ranges of boxes. own: which places of it (rising), or
    None for all."""
    place = np.arange(int(np.prod([len(x) for x in ix], dtype=np.int64))).reshape(
        [len(x) for x in ix])
    out = []
    lists = [runs(x) for x in ix]
    for which in np.ndindex(*[len(x) for x in lists]):
        box = [x[w] for x, w in zip(lists, which)]
        inside = tuple(slice(sum(n for _, n in x[:w]), sum(n for _, n in x[:w + 1]))
                       for x, w in zip(lists, which))
        places = place[inside].reshape(-1)
        mine = np.nonzero(np.isin(places, own))[0] if own is not None else np.arange(len(places))
        if len(mine) == 0 and t.n:
            continue
        start, stop = (int(mine[0]), int(mine[-1]) + 1) if len(mine) else (0, 0)
        assert len(mine) == stop - start
        out.append((tuple(x for x, _ in box), tuple(n for _, n in box), start, stop))
    return out[:1] if t.n == 0 else out


def layouts(folder):
    both = dict(told=True)
    return [
        Named("ddp=1"),
        Named("ddp=2", dp=2),
        Named("zero1=4", dp=4, shard="zero1"),
        Named("zero1=3", dp=3, shard="zero1"),
        Named("zero2=2,unit=tensor", dp=2, shard="zero2", unit="tensor"),
        Named("zero3=3", dp=3, shard="zero3"),
        Named("fsdp1=4", dp=4, shard="fsdp1"),
        Named("fsdp1=3,unit=all", dp=3, shard="fsdp1", unit="all"),
        Named("fsdp2=4", dp=4, shard="fsdp2"),
        Named("fsdp2=2,replicate=2", dp=2, rep=2, shard="fsdp2"),
        Named("tp=8,heads=8,kv=2", tp=8, **both),
        Named("tp=2,heads=8,kv=2", tp=2, **both),
        Named("tp=4,pp=2,dp=2,heads=8,kv=2", tp=4, pp=2, dp=2, **both),
        Named("tp=2,pp=4,dp=4", tp=2, pp=4, dp=4),
        Named("hf:ep=16", "hf", ep=16, dp=16),
        Named("hf:ep=8", "hf", ep=8, dp=8),
        Named("hf:tp=2,ep=2,etp=1,dp=2,fsdp2", "hf", tp=2, ep=2, etp=1, dp=2, shard="fsdp2"),
        Named("megatron:tp=3,dp=2,zero=1,swiglu", "megatron", tp=3, dp=2, shard="zero1",
              swiglu=True),
        Named("pp=2,vpp=2,tied", pp=2, vpp=2, tied=True),
        Named("hf:pp=2,stages=2:3,fsdp1=2", "hf", pp=2, dp=2, shard="fsdp1", stages=[2, 3]),
        Named("hf:tp=2,dp=2,zero=3,order=dp-tp", "hf", tp=2, dp=2, shard="zero3",
              order="dp tp pp cp ep"),
        Named("tp=2,cp=2,ep=2,dp=2,zero=1", tp=2, cp=2, ep=2, dp=2, shard="zero1"),
        Named("gpt2:tp=3", "gpt2", tp=3),
        Odd(os.path.join(folder, "odd.json")),
    ]


# ---- Against what ckptctl says ----


def ask(layout, listed):
    out, _ = ctl("layout", layout.spec, listed, "--json")
    return json.loads(out)


def compare(layout, told):
    """The shards of every rank are those of the oracle, in any order."""
    assert told["world"] == layout.world and len(told["tensors"]) == len(TENSORS)
    said = {}
    for k, (t, o) in enumerate(zip(TENSORS, told["tensors"])):
        assert (o["name"], o["dtype"], tuple(o["shape"])) == (t.name, SHORT[t.dtype], t.shape)
        for p in o["pieces"]:
            n = int(np.prod(p["shape"], dtype=np.int64))
            said.setdefault(p["rank"], {}).setdefault(k, []).append(
                (tuple(p["offset"]), tuple(p["shape"]), p.get("start", 0), p.get("stop", n)))
            assert p["bytes"] == (p.get("stop", n) - p.get("start", 0)) * t.itemsize
    for rank in range(layout.world):
        ours = {k: sorted(v) for k, v in layout.shards(rank).items() if v}
        theirs = {k: sorted(v) for k, v in said.get(rank, {}).items()}
        for k in sorted(set(ours) | set(theirs)):
            assert ours.get(k) == theirs.get(k), (
                f"{layout.spec}, rank {rank}, {TENSORS[k].name} {TENSORS[k].shape}: "
                f"{theirs.get(k)} instead of {ours.get(k)}")


# ---- Ranks ----


class Rank:
    """The memory of one rank: its shards one behind the other, with guards between them."""

    def __init__(self, layout, rank):
        self.rank, self.world, self.declared = rank, layout.world, []
        parts, at = [], 0
        for k, shards in sorted(layout.shards(rank).items()):
            t = TENSORS[k]
            if not shards:  # an empty part is declared by those who hold it
                shards = [((0,) * len(t.shape), (0,) * len(t.shape), 0, 0)]
            for offset, shape, start, stop in shards:
                inside = tuple(slice(o, o + n) for o, n in zip(offset, shape))
                whole = t.bytes.reshape(t.shape + (t.itemsize,))[inside].reshape(-1, t.itemsize)
                self.declared.append((t, offset, shape, start, stop, len(whole), at))
                parts += [whole[start:stop].reshape(-1), np.full(GUARD, 0xAA, np.uint8)]
                at += len(parts[-2]) + GUARD
        self.image = np.concatenate(parts)

    def open(self, job, run, image):
        c = ckpt.open(job, self.rank, self.world, run_id=run)
        base = image.ctypes.data
        for t, offset, shape, start, stop, n, at in self.declared:
            if stop - start == n:
                c.declare(t.name, (base + at, t.dtype, shape), t.shape, offset)
            else:
                c.declare_flat(t.name, (base + at, t.dtype, (stop - start,)), t.shape, start, stop,
                               offset, shape)
        return c

    def blank(self):
        """As before a load: guards, and other bytes than those that are to come."""
        image = ~self.image
        for t, offset, shape, start, stop, n, at in self.declared:
            after = at + (stop - start) * t.itemsize
            image[after:after + GUARD] = 0xAA
        return image

    def difference(self, image):
        """None, or a sentence about the first byte that is not right."""
        wrong = np.nonzero(image != self.image)[0]
        if not len(wrong):
            return None
        t, offset, shape, start, stop, n, at = [d for d in self.declared if d[6] <= wrong[0]][-1]
        return (f"rank {self.rank}: {len(wrong)} bytes differ, the first of '{t.name}' {t.shape}, "
                f"elements {start} to {stop} of {shape} at {offset}")


def save(job, ranks):
    handles = [r.open(job, "save", r.image) for r in ranks]
    for c in handles:  # a rank may save when all are there
        c.prepare()
    saves = [c.save(1, wait_credit=True) for c in handles]
    assert all(saves), saves
    assert all(s.wait(ckpt.DURABLE) for s in saves)
    for c in handles:
        c.close()


def load(job, run, ranks, tier):
    """Sentences about what is wrong. Strict: all have declared when the first one loads, so
    whatever is stored must be wanted by one of them."""
    wrong = []
    images = [r.blank() for r in ranks]
    handles = [r.open(job, run, image) for r, image in zip(ranks, images)]
    for r, image, c in zip(ranks, images, handles):
        try:
            got = c.load(step=1)
        except ckpt.CkptError as e:
            wrong.append(f"rank {r.rank}: {e}")
            continue
        wrong += got.problems
        if got.tier != tier and r.image.size > GUARD * len(r.declared):
            wrong.append(f"rank {r.rank}: from {got.tier}, not {tier}")
        difference = r.difference(image)
        if difference:
            wrong.append(difference)
    for c in handles:
        c.close()
    return wrong


def load_all(all_layouts, ranks, tier):
    """Of the pairs those for this tier; how many, and whether all were right."""
    pairs, good = 0, True
    for i, a in enumerate(all_layouts):
        for j, b in enumerate(all_layouts):
            if (i + j) % 2 != (tier == "disk"):
                continue
            wrong = load(f"from-{i}", f"to-{j}", ranks[j], tier)
            if wrong:
                print(f"not ok pair.{a.spec}->{b.spec} from {tier}: {wrong[0]}", flush=True)
                good = False
            pairs += 1
    return pairs, good


def forget(d):
    """ckptd starts again without its memory, and nothing of its files is in the page cache."""
    d.kill()
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)  # not while a test counts what is read
            f.write("3")
    except OSError:
        pass  # not root: read from the page cache, still by way of the files
    d.start()


def run(d):
    all_layouts = layouts(d.dir)
    listed = os.path.join(d.dir, "tensors.json")
    with open(listed, "w") as f:
        json.dump([{"name": t.name, "dtype": SHORT[t.dtype], "shape": t.shape} for t in TENSORS], f)
    started = time.monotonic()
    for a in all_layouts:
        compare(a, ask(a, listed))
        print(f"ok layout.{os.path.basename(a.spec)}", flush=True)
    ranks = [[Rank(a, r) for r in range(a.world)] for a in all_layouts]
    said = time.monotonic()
    for i, r in enumerate(ranks):
        save(f"from-{i}", r)
    saved = time.monotonic()
    pairs, good = load_all(all_layouts, ranks, "memory")
    forget(d)
    more, good_too = load_all(all_layouts, ranks, "disk")
    print(f"{pairs + more} pairs of layouts, {sum(map(len, ranks))} ranks, {len(TENSORS)} tensors; "
          f"{pairs} pairs from memory, {more} from disk; layouts {said - started:.1f} s, saves "
          f"{saved - said:.1f} s, loads {time.monotonic() - saved:.1f} s")
    assert pairs + more >= PAIRS_MIN, f"fewer than {PAIRS_MIN} pairs"
    assert good and good_too, "not all are right"


if __name__ == "__main__":
    sys.exit(run_with_ckptd({"reshard-matrix": run}))
