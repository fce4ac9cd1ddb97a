# SPDX-License-Identifier: Apache-2.0
"""The safetensors format as its description says it, and the tensors of test_make_tensors.c: what
`ckptctl export` and `import` are checked against. Shares no code with them."""

import json
import os
import struct

import numpy as np

np.seterr(all="ignore")  # infinities and NaNs of every kind are what this is about

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1,
         "F8_E5M2FNUZ": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4,
         "C64": 8, "F64": 8, "I64": 8, "U64": 8, "C128": 16}
ORDER = list(SIZES)[:-1]  # of the format's own list: its writer puts the last ones first


def elements(shape):
    n = 1
    for extent in shape:
        n *= extent
    return n


def read(path):
    """{name: (dtype, shape, bytes)} in the order of the bytes, metadata, where the data starts."""
    with open(path, "rb") as f:
        whole = f.read()
    (n,) = struct.unpack("<Q", whole[:8])
    assert n <= 100_000_000 and 8 + n <= len(whole)
    text, data = whole[8:8 + n].decode("utf-8"), whole[8 + n:]
    assert text.startswith("{") and text == text.rstrip(" ") + " " * (len(text) - len(text.rstrip(" ")))

    def no_duplicates(pairs):
        assert len({k for k, _ in pairs}) == len(pairs)
        return dict(pairs)

    header = json.loads(text, object_pairs_hook=no_duplicates)
    metadata = header.pop("__metadata__", None)
    assert metadata is None or all(isinstance(v, str) for v in metadata.values())
    tensors, end = {}, 0
    for name, t in sorted(header.items(), key=lambda i: i[1]["data_offsets"]):
        begin, stop = t["data_offsets"]
        assert set(t) == {"dtype", "shape", "data_offsets"} and begin == end, name
        assert stop - begin == elements(t["shape"]) * SIZES[t["dtype"]], name
        tensors[name] = (t["dtype"], t["shape"], data[begin:stop])
        end = stop
    assert end == len(data)
    return tensors, metadata, 8 + n


def write(path, tensors, metadata=None, pad=8, lead=0):
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = b" " * lead + json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % pad)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, raw in tensors.values():
            f.write(raw)


def read_sharded(folder):
    """All tensors of a folder with an index, by it; each file has what the index says it has."""
    with open(os.path.join(folder, "model.safetensors.index.json")) as f:
        index = json.load(f)
    tensors, files = {}, {}
    for name in sorted(set(index["weight_map"].values())):
        files[name] = read(os.path.join(folder, name))[0]
        assert not set(files[name]) & set(tensors)
        assert all(index["weight_map"][t] == name for t in files[name])
        tensors.update(files[name])
    assert set(tensors) == set(index["weight_map"])
    assert index["metadata"]["total_size"] == sum(len(t[2]) for t in tensors.values())
    return tensors, files


def in_order(tensors):
    keys = [(-ORDER.index(t[0]), name.encode()) for name, t in tensors.items()]
    return keys == sorted(keys)


# ---- The formula of test_checkpoint.c

def mix(x):
    x = x ^ (x >> np.uint64(30))
    x = x * np.uint64(0xbf58476d1ce4e5b9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94d049bb133111eb)
    return x ^ (x >> np.uint64(31))


def content(name, dtype, shape):
    seed, size, n = 1469598103934665603, SIZES[dtype], elements(shape)
    for byte in name.encode():
        seed = (seed ^ byte) * 1099511628211 % 2**64
    index = np.arange(n, dtype=np.uint64)
    v = mix(np.uint64(seed) + index)
    w = mix(v)
    v = np.where(index // np.uint64(4096) % np.uint64(2) == 1, v & np.uint64(0xff), v)
    both = np.stack([v, w], 1).astype("<u8").view(np.uint8).reshape(n, 16)
    return both[:, :size].tobytes()


def types(c128=False):
    all_of_them = {"every." + d.lower(): (d, [7, 33]) for d in SIZES if c128 or d != "C128"}
    all_of_them.update({"big": ("F32", [300, 1000]), "five": ("U8", [2, 3, 4, 5, 6]),
                        "flat": ("F64", [10, 103]), "replicated": ("BF16", [64]),
                        "empty": ("F16", [0, 5]), "few": ("I64", [2, 9]), "scalar": ("I64", []),
                        "\u00e9t\u00e9 \"\\/": ("U16", [64])})
    return {k: (d, s, content(k, d, s)) for k, (d, s) in all_of_them.items()}


# ---- Floats

FLOATS = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}


def to_f64(dtype, raw):
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype("<f8")
    return np.frombuffer(raw, FLOATS[dtype]).astype("<f8")


def round_to_bf16(wide):
    """From f64 bits by integers: one rounding, to nearest, ties to even. Values are u16."""
    out = np.empty(len(wide), "<u2")
    for i, v in enumerate(wide):
        if np.isnan(v):
            out[i] = 0x7fc0
            continue
        sign, a = (0x8000 if np.signbit(v) else 0), abs(float(v))
        # the two neighbours among bf16 by search over their order, which is that of the bits
        lo, hi = 0, 0x7f80
        value = lambda b: float(np.array([b << 16], "<u4").view("<f4")[0]) if b < 0x7f80 else 2.0**128
        while hi - lo > 1:
            mid = (lo + hi) // 2
            lo, hi = (mid, hi) if value(mid) <= a else (lo, mid)
        if a >= value(hi):
            lo = hi
        down, up = a - value(lo), value(hi) - a
        out[i] = sign | (lo if down < up or (down == up and lo % 2 == 0) else hi)
    return out


def cast(dtype, raw, to):
    """Bytes of a float tensor as another dtype, and how many finite values became infinite."""
    wide = to_f64(dtype, raw)
    if to == "BF16":
        bits = round_to_bf16(wide)
        back = to_f64("BF16", bits.tobytes())
        narrow = bits.tobytes()
    else:
        narrow = wide.astype(FLOATS[to])
        back, narrow = narrow.astype("<f8"), narrow.tobytes()
    return narrow, int((np.isinf(back) & np.isfinite(wide)).sum())


def same_numbers(dtype, a, b):
    """Equal bits, but that a NaN may be any NaN."""
    nan_a, nan_b = np.isnan(to_f64(dtype, a)), np.isnan(to_f64(dtype, b))
    bits = np.dtype("<u%d" % SIZES[dtype])
    x, y = np.frombuffer(a, bits), np.frombuffer(b, bits)
    return len(a) == len(b) and (nan_a == nan_b).all() and (x[~nan_a] == y[~nan_a]).all()


# ---- Differences, as numpy and Python's integers have them

def eight_bits(dtype):
    """All values of an 8-bit float."""
    exponent, mantissa, bias, kind = {"F8_E4M3": (4, 3, 7, "fn"), "F8_E5M2": (5, 2, 15, "ieee"),
                                      "F8_E4M3FNUZ": (4, 3, 8, "fnuz"), "F8_E5M2FNUZ": (5, 2, 16, "fnuz"),
                                      "F8_E8M0": (8, 0, 127, "e8m0")}[dtype]
    out = []
    for b in range(256):
        if kind == "e8m0":
            out.append(np.nan if b == 255 else 2.0 ** (b - bias))
            continue
        sign, e, m = -1.0 if b & 128 else 1.0, (b >> mantissa) & (2**exponent - 1), b & (2**mantissa - 1)
        if kind == "ieee" and e == 2**exponent - 1:
            out.append(np.nan if m else sign * np.inf)
        elif (kind == "fn" and b & 127 == 127) or (kind == "fnuz" and b == 128):
            out.append(np.nan)
        else:
            out.append(sign * (m * 2.0 ** (1 - bias - mantissa) if e == 0
                               else (1 + m / 2**mantissa) * 2.0 ** (e - bias)))
    return np.array(out)


def parts(dtype, raw):
    """Real parts as an array of f64, or of Python's integers."""
    if dtype in ("C64", "C128"):
        return np.frombuffer(raw, "<f4" if dtype == "C64" else "<f8").astype("<f8")
    if dtype.startswith("F8"):
        return eight_bits(dtype)[np.frombuffer(raw, "u1")]
    if dtype == "BOOL":
        dtype = "U8"
    if dtype[0] in "UI":
        return np.frombuffer(raw, "<%s%d" % (dtype[0].lower(), SIZES[dtype])).astype(object)
    return to_f64(dtype, raw)


def difference(a, b):
    """What `ckptctl diff --json` says of two tensors (dtype, shape, bytes), but for the name."""
    (dtype_a, shape_a, raw_a), (dtype_b, shape_b, raw_b) = a, b
    out = {"dtype_a": dtype_a.lower(), "dtype_b": dtype_b.lower(), "shape_a": list(shape_a),
           "shape_b": list(shape_b)}
    out["compared"] = list(shape_a) == list(shape_b) and (dtype_a[0] == "C") == (dtype_b[0] == "C")
    if not out["compared"]:
        return out
    x, y = parts(dtype_a, raw_a), parts(dtype_b, raw_b)
    exact = x.dtype == object and y.dtype == object
    if not exact:
        x, y = x.astype("<f8"), y.astype("<f8")
    n, per = elements(shape_a), 2 if dtype_a[0] == "C" else 1
    if dtype_a == dtype_b:
        size = SIZES[dtype_a] // per
        differ = (np.frombuffer(raw_a, "u1").reshape(n * per, size) !=
                  np.frombuffer(raw_b, "u1").reshape(n * per, size)).any(axis=1)
    elif exact:
        differ = np.array([p != q for p, q in zip(x, y)], bool)
    else:
        differ = (x != y) & ~(np.isnan(x) & np.isnan(y))
    changed = differ.reshape(n, per).any(axis=1)
    x, y = x[differ], y[differ]
    out.update(elements=n, changed=int(changed.sum()), fraction=float(changed.sum() / n) if n else 0.0,
               nans=0, infinite=0, max_abs=0 if exact else 0.0, max_rel=0.0, first=None)
    if changed.any():
        out["first"] = [int(i) for i in np.unravel_index(int(changed.argmax()), tuple(shape_a))]
    if exact:
        for p, q in zip(x, y):
            out["max_abs"] = max(out["max_abs"], abs(p - q))
            out["max_rel"] = max(out["max_rel"], float(abs(p - q)) / float(max(abs(p), abs(q))))
        return out
    out["nans"] = int((np.isnan(x) != np.isnan(y)).sum())
    numbers = ~np.isnan(x) & ~np.isnan(y) & (x != y)
    x, y = x[numbers], y[numbers]
    error = np.abs(x - y)
    out["infinite"] = int(np.isinf(error).sum())
    finite = np.isfinite(error)
    if finite.any():
        out["max_abs"] = float(error[finite].max())
        out["max_rel"] = float((error / np.maximum(np.abs(x), np.abs(y)))[finite].max())
    return out
