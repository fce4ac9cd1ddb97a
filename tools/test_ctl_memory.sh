#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What an import takes of memory: large good files within 64 MiB and 8 times their metadata, and files
# that would take more refused within it, by name. The peak is the kernel's (wait4), above that of a
# ckptctl that does nothing.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
requires /usr/bin/python3 -c ''
measured=yes # a sanitizer takes what it wants
if nm "$build/ckptctl" | grep -q '__[at]san_init'; then measured=no; fi
o=$dir/files
mkdir "$o"

/usr/bin/python3 - "$o/" "$build/ckptctl" "$data" $measured <<'PY' || fail "an import is outside of its bound"
import json, os, struct, subprocess, sys, zipfile

o, ckptctl, data, measured = sys.argv[1:]
FREE, EACH = 64 << 20, 8

# A process begins with the peak of the one that it was forked from: a small one starts ckptctl.
HELPER = """
import os, sys
pid = os.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10)
"""

def peak(arguments):
    """Exit status, what was said, and the most bytes that were resident."""
    done = subprocess.run(["/usr/bin/python3", "-c", HELPER, ckptctl] + arguments, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
    status, rss = done.stdout.split()[-2:]
    return int(status), done.stderr, int(rss)

base = peak(["--version"])[2]
jobs = 0

def check(path, metadata, refused=None):
    global jobs
    jobs += 1
    status, said, rss = peak(["import", path, "--as", "j%d" % jobs, "--data", data, "-q"])
    bound = base + FREE + EACH * metadata
    print("%-24s %9d of metadata, %4d of %4d MiB, exit %d %s" % (
        os.path.basename(path), metadata, rss >> 20, bound >> 20, status, said.strip()))
    assert rss <= bound or measured == "no"
    assert status == (2 if refused else 0)
    assert not refused or (refused in said and os.path.basename(path) in said)
    os.unlink(path)

def archive(name, pickle, records=0):
    path = o + name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", pickle)
        for i in range(records):
            z.writestr("archive/data/%d" % i, b"\0\0\0\0")
        z.writestr("archive/version", "3\n")
        z.fp.flush()
        start = z.fp.tell()
    return path, len(pickle) + os.path.getsize(path) - start

def text(s):
    return b"X" + struct.pack("<I", len(s)) + s.encode()

def number(i):
    return b"M" + struct.pack("<H", i) if i < 65536 else b"J" + struct.pack("<i", i)

TENSOR = (b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n%sX\3\0\0\0cpuK\1tQ"
          b"K\0K\1\x85K\1\x85\x89ccollections\nOrderedDict\n)RtR")

# ---- What a list of a million pieces takes, whatever it is written as

TENSORS = int(os.environ.get("CKPT_TENSORS") or 1000000)

def listed(*arguments, pieces=TENSORS):
    if measured == "no":
        return
    status, said, rss = peak([*arguments, "--data", data])
    print("%-40s %9d pieces, %4d of 200 MiB, exit %d %s" % (
        " ".join(arguments), pieces, rss >> 20, status, said.strip()))
    assert status == 0 and rss <= 200 << 20

# ---- Good ones: a million tensors, many in a dictionary, a vocabulary

n = TENSORS
header = "{" + ",".join('"model.layers.%07d.weight":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}' % (
    i, i, i + 1) for i in range(n)) + "}"
with open(o + "million.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header.encode() + bytes(n))
check(o + "million.safetensors", len(header))
listed("show", "j%d" % jobs, "--json")
listed("show", "j%d" % jobs, "-v")
listed("layout", "megatron:tp=2,dp=2,zero=1", "j%d" % jobs, "-q") # flat units: more memory than others

n, ranks = 15625, 64
header = "{" + ",".join('"model.layers.%05d.weight":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}' % (
    i, ranks, i * ranks, i * ranks + ranks) for i in range(n)) + "}"
with open(o + "wide.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header.encode() + bytes(n * ranks))
check(o + "wide.safetensors", len(header))
listed("layout", "fsdp2=%d" % ranks, "j%d" % jobs, "--json")

n = 20000
check(*archive("many.pt", b"\x80\2}(" + b"".join(
    text("model.%d" % i) + TENSOR % text(str(i)) for i in range(n)) + b"u.", n))

words = b"".join(text("w%06x" % i) + number(i) for i in range(128000))
check(*archive("vocabulary.pt", b"\x80\2}(" + text("weight") + TENSOR % text("0") + text("words") + b"}(" +
               words + b"uu.", 1))
shown = subprocess.run([ckptctl, "show", "j%d" % jobs, "--data", data, "--json"], check=True,
                       stdout=subprocess.PIPE).stdout
assert [b["name"] for b in json.loads(shown)["files"]["ranks"][0]["blobs"]] == ["words"]

# ---- Others: much of little

def hostile(name, size, unit, before=b"(", after=b"t.", refused="bytes of metadata may take"):
    path, metadata = archive(name, b"\x80\4" + before + unit * (size // len(unit)) + after)
    check(path, metadata, refused)

hostile("lists.pt", 3 << 20, b"]")
hostile("dictionaries.pt", 30 << 20, b"}")
hostile("appended.pt", 3 << 20, b"]Na", refused="no tensor in it")
hostile("in_lists.pt", 30 << 20, b"](N]]e")
hostile("texts.pt", 30 << 20, b"\x8c\0")
hostile("tuples.pt", 3 << 20, b"\x85", b")", b".", "nested deeper")
hostile("memo.pt", 30 << 20, b"\x94", b"N", b".", "None, not a dictionary")
# One list, saved again for each of its names.
shared = b"](" + b"J\0\0\1\0" * 20000 + b"eq\0" + b"0}("
check(*archive("shared.pt", b"\x80\2" + shared + text("t") + TENSOR % text("0") + b"".join(
    text("n%d" % i) + b"h\0" for i in range(5000)) + b"u.", 1), refused="of metadata may take")
# A name of 900 bytes before each of many.
check(*archive("names.pt", b"\x80\2}(" + text("t") + TENSOR % text("0") + text("x" * 900) + b"](}" + b"J\0\0\1\0" * 100000 +
               b"eu.", 1), refused="of metadata may take")
# Directories that say to have more records than there are bytes.
path, metadata = archive("records.pt", b"\x80\2}.")
with open(path, "r+b") as f:
    f.seek(-22 + 8, 2)
    f.write(struct.pack("<HHI", 65535, 65535, 65535 * 46))
check(path, 65535 * 46, refused="damaged")
header = b'{"__metadata__":{"a":"' + b"\\n" * 40000000 + b'"}}'
with open(o + "escapes.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header)
check(o + "escapes.safetensors", len(header))
PY
