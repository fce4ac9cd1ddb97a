# SPDX-License-Identifier: Apache-2.0
"""libckpt as ctypes sees it: one declaration per function of ckpt.h, nothing more."""

import ctypes as C
import os

P = C.POINTER
u64, i64, u8 = C.c_uint64, C.c_int64, C.c_uint8

FOREVER = -1
DEFAULT_TIMEOUT = -2
LATEST = (1 << 64) - 1
FROM_ENV = -1
EXISTING = 1
TRAINS = 2
OWN_STATE = 4
HOST = -1

FLAT, TRAINED = 1, 2
WAIT_CREDIT, FULL_COMPARE = 1, 2
LENIENT, RESUME = 1, 2

EINVAL, EBADF, ESTATE, EUNAVAILABLE = -22, -9, -1015, -1004
ENOTFOUND = -1014
NDIM_MAX = 8
DTYPE_NAMES = (None, "bool", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "bf16", "f32",
               "f64", "f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e8m0", "c64", "c128")

SKIPPED, RECONNECTED, NOTHING, PARTIAL, FELL_BACK, NOTED = 1, 2, 4, 8, 16, 32
EEPOCH, ESUPERSEDED, EABORTED, EMISMATCH = -1003, -1005, -1006, -1008
ETIMEDOUT = -1013


def text(what: str, value, errors: str = "strict") -> bytes:
    """Text as libckpt takes it: UTF-8 that ends at its first NUL, so one inside would cut it."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a {type(value).__name__}, not a str")
    value = str.__str__(value)  # a subclass may encode itself as something else
    if "\0" in value:
        raise ValueError(f"{what} {value!r} has a NUL in it, which no name can have")
    try:
        return value.encode("utf-8", errors)
    except UnicodeEncodeError:
        raise ValueError(f"{what} {value!r} cannot be written as UTF-8: it has half of a surrogate "
                         "pair in it") from None


class Options(C.Structure):
    _fields_ = [("size", C.c_size_t), ("run_id", C.c_char_p), ("socket", C.c_char_p),
                ("token", C.c_char_p), ("connect_timeout_ms", i64), ("timeout_ms", i64),
                ("flags", C.c_uint), ("interrupted", C.c_void_p), ("interrupted_arg", C.c_void_p)]


class Tensor(C.Structure):
    _fields_ = [("size", C.c_size_t), ("name", C.c_char_p), ("dtype", C.c_int), ("ndim", C.c_int),
                ("global_shape", P(u64)), ("offset", P(u64)), ("shape", P(u64)),
                ("start", u64), ("stop", u64), ("flags", C.c_uint)]


class Binding(C.Structure):
    _fields_ = [("ptr", C.c_void_p), ("device", C.c_int), ("dtype", C.c_uint16),
                ("ndim", C.c_uint16), ("bytes", u64), ("strides", P(i64))]


class Blob(C.Structure):
    _fields_ = [("name", C.c_char_p), ("data", C.c_void_p), ("bytes", u64)]


class SaveArgs(C.Structure):
    _fields_ = [("size", C.c_size_t), ("step", u64), ("tensors", P(Binding)),
                ("n_tensors", C.c_size_t), ("blobs", P(Blob)), ("n_blobs", C.c_size_t),
                ("timeout_ms", i64), ("flags", C.c_uint)]


class Info(C.Structure):
    _fields_ = [("step", u64), ("bytes", u64), ("attempt", u8 * 16), ("epoch", u64),
                ("time_ns", u64), ("memory", C.c_int), ("disk", C.c_int), ("pinned", C.c_int),
                ("latest", C.c_int), ("world", C.c_int)]


class LoadArgs(C.Structure):
    _fields_ = [("size", C.c_size_t), ("step", u64), ("tensors", P(Binding)),
                ("n_tensors", C.c_size_t), ("timeout_ms", i64), ("flags", C.c_uint),
                ("unused", C.c_uint), ("min_trust", C.c_uint)]


class Loaded(C.Structure):
    _fields_ = [("size", C.c_size_t), ("step", u64), ("attempt", u8 * 16), ("tier", C.c_int),
                ("bytes", u64), ("bytes_read", u64), ("fell_back_from", u64)]


class Stats(C.Structure):
    _fields_ = [("size", C.c_size_t), ("saves", u64), ("skipped", u64), ("failed", u64),
                ("reconnects", u64), ("last_stall_ns", u64), ("last_bytes", u64),
                ("skipped_by", u64 * 16), ("skip_step", u64), ("skip_reason", C.c_int),
                ("skip_rank", C.c_int), ("uncommitted", u64), ("uncommitted_from", u64),
                ("sealed_step", u64), ("failed_step", u64)]


# Words of enum ckpt_skip_reason.
SKIP_REASONS = ("none", "caller", "slots", "passed", "opening", "memory", "absent", "unprepared",
                "not-loaded", "full", "behind", "failed", "refused", "pending", "left")


METRICS_MAX = 8
BEAT_LOSS, BEAT_GRAD_NORM, BEAT_TOKENS, BEAT_METRIC = 1, 2, 4, 0x100  # of metric i: BEAT_METRIC << i
PHASES = ("step", "data", "sync", "optimize", "checkpoint", "load", "evaluate", "compile", "idle", "other")


class Beat(C.Structure):
    _fields_ = [("size", C.c_size_t), ("step", u64), ("flags", C.c_uint), ("tokens", u64),
                ("loss", C.c_double), ("grad_norm", C.c_double), ("metrics", C.c_double * METRICS_MAX)]


class StoredShard(C.Structure):
    _fields_ = [("size", C.c_size_t), ("rank", C.c_int), ("name", C.c_char_p), ("dtype", C.c_int),
                ("ndim", C.c_int), ("global_shape", u64 * NDIM_MAX), ("offset", u64 * NDIM_MAX),
                ("shape", u64 * NDIM_MAX), ("start", u64), ("stop", u64), ("flags", C.c_uint),
                ("bytes", u64)]


class StoredBlob(C.Structure):
    _fields_ = [("rank", C.c_int), ("name", C.c_char_p), ("data", C.c_void_p), ("bytes", u64)]


class ReadArgs(C.Structure):
    _fields_ = [("size", C.c_size_t), ("wants", P(Tensor)), ("tensors", P(Binding)),
                ("n_tensors", C.c_size_t), ("blobs", P(StoredBlob)), ("n_blobs", C.c_size_t),
                ("timeout_ms", i64), ("flags", C.c_uint)]


_FUNCTIONS = {
    "ckpt_open": (C.c_int, [C.c_char_p, C.c_int, C.c_int, P(Options), P(C.c_void_p)]),
    "ckpt_abandon": (None, [C.c_void_p]),
    "ckpt_close": (None, [C.c_void_p]),
    "ckpt_rank": (C.c_int, [C.c_void_p]),
    "ckpt_world": (C.c_int, [C.c_void_p]),
    "ckpt_note": (C.c_char_p, [C.c_void_p]),
    "ckpt_declare": (C.c_int, [C.c_void_p, P(Tensor)]),
    "ckpt_prepare": (C.c_int, [C.c_void_p, u64]),
    "ckpt_save": (C.c_int, [C.c_void_p, P(SaveArgs)]),
    "ckpt_save_begin": (C.c_int, [C.c_void_p, P(SaveArgs)]),
    "ckpt_save_fence": (C.c_int, [C.c_void_p, C.c_uint]),
    "ckpt_wait": (C.c_int, [C.c_void_p, u64, C.c_int, i64, P(u64)]),
    "ckpt_list": (C.c_int, [C.c_void_p, P(Info), C.c_size_t]),
    "ckpt_load": (C.c_int, [C.c_void_p, P(LoadArgs), P(Loaded)]),
    "ckpt_problem": (C.c_char_p, [C.c_void_p, C.c_size_t]),
    "ckpt_blob_at": (C.c_int, [C.c_void_p, C.c_size_t, P(Blob)]),
    "ckpt_skip": (C.c_int, [C.c_void_p, u64, C.c_char_p]),
    "ckpt_stored_open": (C.c_int, [C.c_void_p, u64, i64, P(C.c_void_p)]),
    "ckpt_stored_close": (None, [C.c_void_p]),
    "ckpt_stored_info": (C.c_int, [C.c_void_p, P(Info)]),
    "ckpt_stored_shard_at": (C.c_int, [C.c_void_p, u64, P(StoredShard)]),
    "ckpt_stored_blob_at": (C.c_int, [C.c_void_p, u64, P(StoredBlob)]),
    "ckpt_stored_read": (C.c_int, [C.c_void_p, P(ReadArgs), P(Loaded)]),
    "ckpt_beat": (C.c_int, [C.c_void_p, P(Beat)]),
    "ckpt_metric": (C.c_int, [C.c_void_p, C.c_char_p]),
    "ckpt_phase_begin": (C.c_int, [C.c_void_p, C.c_int, C.c_char_p, i64]),
    "ckpt_phase_end": (C.c_int, [C.c_void_p]),
    "ckpt_role": (C.c_int, [C.c_void_p, C.c_char_p]),
    "ckpt_should_save": (C.c_int, [C.c_void_p, u64]),
    "ckpt_fd": (C.c_int, [C.c_void_p]),
    "ckpt_pump": (C.c_int, [C.c_void_p]),
    "ckpt_last_error": (C.c_char_p, [P(C.c_int)]),
    "ckpt_strerror": (C.c_char_p, [C.c_int]),
    "ckpt_version": (C.c_char_p, []),
    "ckpt_stats": (C.c_int, [C.c_void_p, P(Stats)]),
}

# Those that may wait, so that a signal handler may have raised meanwhile.
WAITING = ("ckpt_open", "ckpt_abandon", "ckpt_close", "ckpt_prepare", "ckpt_save", "ckpt_save_begin",
           "ckpt_save_fence", "ckpt_wait", "ckpt_list", "ckpt_load", "ckpt_skip", "ckpt_stored_open",
           "ckpt_stored_read")


def _load():
    # Empty is as good as not set; CDLL would take it for this very program.
    name = os.environ.get("CKPT_LIBRARY") or "libckpt.so.0"
    try:
        # Foreign calls release the interpreter's lock: other threads run on during a save.
        lib = C.CDLL(name)
    except OSError as e:
        raise ImportError(f"libckpt cannot be loaded: {e}; install it, or name the file in "
                          "CKPT_LIBRARY") from None
    for function, (result, arguments) in _FUNCTIONS.items():
        f = getattr(lib, function, None)
        if f is None:
            raise ImportError(f"'{name}' is not libckpt, or an older one: it has no {function}(); "
                              "name the right file in CKPT_LIBRARY")
        f.restype, f.argtypes = result, arguments
    return lib


lib = _load()
