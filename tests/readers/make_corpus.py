#!/usr/bin/env python3
"""Makes the first files of tests/readers/corpus: valid ones of every kind, and malformed ones written by hand.

  python3 tests/readers/make_corpus.py [FOLDER]

Files of torch are written where Python has torch, others with the standard library and libxxhash. What libFuzzer found
lies beside them, under names that begin with "found_", and stays.
"""

import base64
import ctypes
import io
import json
import pathlib
import re
import struct
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "corpus"
INT64_MAX = 2**63 - 1


def put(target, name, data):
    path = ROOT / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)


def xxh3(data):
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_64bits.restype = ctypes.c_uint64
    library.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return "%016x" % library.XXH3_64bits(data, len(data))


def compact(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


# --- JSON


def strict_json():
    texts = {
        "numbers.json": "[0, -1, 1.5, 1e300, 9223372036854775807, 18446744073709551615, -9223372036854775808, 0.1e-5]",
        "object.json": '{"a": {"b": [true, false, null, "text"]}, "": "\\u20ac \\n"}',
        "key_twice.json": '{"a": 1, "a": 2}',
        "key_twice_escaped.json": '{"a": 1, "\\u0061": 2}',
        "nested_16.json": "[" * 16 + "]" * 16,
        "nested_17.json": "[" * 17 + "]" * 17,
        "nested_deep.json": "[" * 5000,
        "number_too_large.json": "[1e400]",
        "zero_byte.json": "[1]\0",
        "lone_surrogate.json": '["\\ud800"]',
        "not_utf8.json": b'["\xff\xfe"]',
        "two_values.json": "[1] [2]",
    }
    for name, text in texts.items():
        put("strict_json", name, text)


def hugging_face_index():
    def index(weight_map, metadata=None):
        return json.dumps({"metadata": metadata or {"total_size": 24}, "weight_map": weight_map})

    files = {
        "two_files.json": index({"a.weight": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}),
        "parent_folder.json": index({"a": "../model.safetensors"}),
        "absolute_path.json": index({"a": "/etc/passwd"}),
        "name_with_zero.json": index({"a\0b": "x\0y"}),
        "dots.json": index({"a": ".."}),
        "negative_size.json": index({"a": "b"}, {"total_size": -1}),
        "size_beyond_int64.json": index({"a": "b"}, {"total_size": 2**63}),
        "weight_map_is_list.json": '{"weight_map": ["a"]}',
        "weights_file_name.txt": "model-00001-of-00002.safetensors",
    }
    for name, text in files.items():
        put("hugging_face_index", name, text)


# --- safetensors


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, str) else json.dumps(header)
    raw = text.encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_header():
    two = {"__metadata__": {"format": "pt"}, "a": tensor("F32", [2, 3], 0, 24), "b": tensor("BF16", [2], 24, 28)}
    big = 2**62
    files = {
        "two_tensors": safetensors(two, bytes(range(28))),
        "no_tensors": safetensors({}),
        "every_dtype": safetensors(
            {
                d: tensor(d, [1], at, at + n)
                for d, n, at in [("F64", 8, 0), ("I64", 8, 8), ("U64", 8, 16), ("C64", 8, 24), ("F32", 4, 32), ("I32", 4, 36)]
                + [("U32", 4, 40), ("F16", 2, 44), ("BF16", 2, 46), ("I16", 2, 48), ("U16", 2, 50), ("I8", 1, 52)]
                + [("U8", 1, 53), ("BOOL", 1, 54), ("F8_E4M3", 1, 55), ("F8_E5M2", 1, 56), ("F8_E8M0", 1, 57)]
            },
            bytes(58),
        ),
        "empty_dims": safetensors({"a": tensor("F32", [0, 3], 0, 0), "b": tensor("U8", [], 0, 1)}, b"x"),
        "overlap": safetensors({"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 2, 6)}, bytes(6)),
        "hole": safetensors({"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 4, 6)}, bytes(6)),
        "length_huge": safetensors(two, length=2**64 - 1),
        "length_beyond_file": safetensors(two, length=10**6),
        "sizes_multiply_to_0": safetensors({"a": tensor("U8", [big, 4, big], 0, 0)}),
        "sizes_overflow": safetensors({"a": tensor("F64", [2**60, 2], 0, 8)}, bytes(8)),
        "empty_and_huge": safetensors({"a": tensor("U8", [0, big, 1], 0, 0)}),
        "many_dims": safetensors({"a": tensor("U8", [1] * 65, 0, 1)}, b"x"),
        "name_twice": safetensors('{"a": %s, "a": %s}' % ((compact(tensor("U8", [1], 0, 1)),) * 2), b"x"),
        "name_with_zero": safetensors({"a\0b": tensor("U8", [1], 0, 1)}, b"x"),
        "nested_metadata": safetensors({"__metadata__": {"a": {"b": "c"}}}),
        "fourbit": safetensors({"a": tensor("F4", [2], 0, 1)}, b"x"),
    }
    for name, data in files.items():
        put("safetensors_header", name + ".safetensors", data)


# --- sharded checkpoints

ID = "0123456789abcdef"
FILE = ID + "-rank-00000.safetensors"


def part(name, dtype, shape, data, offsets, sums=None):
    sums = sums or "".join(xxh3(data[at : at + 2**20]) for at in range(0, len(data), 2**20))
    info = compact({name: {"saved_offsets": offsets}})
    metadata = {"DCP_SHARDING_INFO": info, "DCP_VERSION": "1.0", "dtensor_xxh3_64_of_1048576": sums, "format": "pt"}
    return safetensors(compact({"__metadata__": metadata, name: tensor(dtype, shape, 0, len(data))}), data)


def part_file():
    data = struct.pack("<6f", *range(6))
    put("part_file", "float", part("w", "F32", [2, 3], data, [2, 0]))
    put("part_file", "bool", part("mask", "BOOL", [3], b"\0\1\1", [0]))
    put("part_file", "bool_of_2", part("mask", "BOOL", [3], b"\0\1\2", [0]))
    put("part_file", "scalar", part("step", "I64", [], bytes(8), []))
    put("part_file", "without_elements", part("w", "F32", [0, 3], b"", [0, 0]))
    put("part_file", "wrong_sum", part("w", "F32", [2, 3], data, [0, 0], sums="0" * 16))
    put("part_file", "sum_of_other_length", part("w", "F32", [2, 3], data, [0, 0], sums="0" * 15))
    put("part_file", "without_sums", safetensors({"w": tensor("F32", [2, 3], 0, 24)}, data))


def manifest(tensors, files=None, settings=None, values=None, **other):
    inner = {
        "id": ID,
        "files": files or {FILE: {"bytes": 400, "header_sum": "0123456789abcdef"}},
        "tensors": tensors,
        "settings": settings or {},
        "values": values or {},
    }
    whole = {"format": "dtensor checkpoint", "version": 1, "checksum": xxh3(compact(inner).encode()), "checkpoint": inner}
    return json.dumps({**whole, **other}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def box(offsets, sizes, file=FILE):
    return {"file": file, "offsets": offsets, "sizes": sizes}


def tiled(shape, boxes, dtype="F32", **other):
    return {"dtype": dtype, "shape": shape, "boxes": boxes, **other}


def checkpoint_manifest():
    halves = [box([0, 0], [2, 3]), box([2, 0], [2, 3])]
    good = tiled([4, 3], halves, layout="S(0)R @ mesh(dp=2, tp=2)")
    values = {"lr": 0.5, "name": "run", "step": 7, "ok": True, "loss": {"double": "nan"}, "none": {"double": "-inf"}}
    files = {
        "two_boxes": manifest({"w": good, "step": tiled([], [box([], [])], "I64")}, values=values, settings={"n": 3}),
        "nothing": manifest({}),
        "without_elements": manifest({"e": tiled([0, 3], [])}),
        "overlap": manifest({"w": tiled([4, 3], [box([0, 0], [3, 3]), box([2, 0], [2, 3])])}),
        "hole": manifest({"w": tiled([4, 3], [box([0, 0], [2, 3])])}),
        "beyond": manifest({"w": tiled([4], [box([INT64_MAX], [INT64_MAX])])}),
        "negative": manifest({"w": tiled([4], [box([-1], [5])])}),
        "shape_of_fractions": manifest({"w": tiled([1.5], [box([0], [1])])}),
        "shape_beyond_int64": manifest({"w": tiled([1e300], [box([0], [1])])}),
        "shape_unsigned": manifest({"w": tiled([2**64 - 1], [])}),
        "bytes_negative": manifest({}, {FILE: {"bytes": -1, "header_sum": "0" * 16}}),
        "bytes_beyond_int64": manifest({}, {FILE: {"bytes": 1e300, "header_sum": "0" * 16}}),
        "value_beyond_int64": manifest({}, values={"n": 2**64 - 1}),
        "sizes_overflow": manifest({"w": tiled([2**62, 2**62], [])}),
        "file_is_path": manifest({}, {"../x.safetensors": {"bytes": 1, "header_sum": "0" * 16}}),
        "file_with_zero": manifest({}, {"a\0.safetensors": {"bytes": 1, "header_sum": "0" * 16}}),
        "other_version": manifest({}, version=2),
        "version_beyond_int64": manifest({}, version=1e300),
        "wrong_checksum": manifest({}, checksum="0" * 16),
        "key_twice": manifest({}).replace('"version": 1', '"version": 1, "version": 1'),
        "nested": "[" * 100 + "\n",
    }
    for name, text in files.items():
        put("checkpoint_manifest", name + ".json", text)


# --- torch's files


def stored(records):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records:
            archive.writestr(zipfile.ZipInfo("archive/" + name), data)
    return raw.getvalue()


def text_op(text):
    raw = text.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def int_op(n):
    return b"\x8a\x08" + struct.pack("<q", n)


def tensor_ops(key, sizes, strides, offset=0, declared=6, storage=b"FloatStorage"):
    """The pickle of a tensor of record data/`key`."""
    identity = b"(" + text_op("storage") + b"ctorch\n" + storage + b"\n" + text_op(key) + text_op("cpu") + int_op(declared)
    lists = b"".join(b"(" + b"".join(map(int_op, values)) + b"t" for values in (sizes, strides))
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + identity
        + b"tQ"
        + int_op(offset)
        + lists
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


def state(*pairs):
    return b"\x80\x02}(" + b"".join(text_op(name) + ops for name, ops in pairs) + b"u."


DATA = struct.pack("<6f", *range(6))


def pickles():
    deep = b"\x80\x02" + b"]" * 2000 + b"a" * 1999 + b"."
    # Each list holds the one before it twice.
    dag = b"\x80\x02]q\0" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(40)) + b"."
    return {
        "tensor": state(("w", tensor_ops("0", [2, 3], [3, 1])), ("b", tensor_ops("0", [3], [1], 3))),
        "many_kinds": b"\x80\x02}(" + text_op("n") + b"K\x07" + text_op("x") + b"G" + struct.pack(">d", 1.5)
        + text_op("l") + b"](K\1M\2\0J\3\0\0\0\x88\x89Ne" + text_op("t") + b"K\1K\2\x86" + text_op("o") + b")u.",
        "list_in_itself": b"\x80\x02]q\0h\0a.",
        "dict_in_itself": b"\x80\x02}q\0" + text_op("a") + b"h\0s.",
        "nested_2000": deep,
        "unfolds": dag,
        "beyond_storage": state(("w", tensor_ops("0", [2, 3], [3, 1], 4))),
        "negative_offset": state(("w", tensor_ops("0", [2], [1], -1))),
        "negative_stride": state(("w", tensor_ops("0", [2], [-1], 1))),
        "one_element_many_times": state(("w", tensor_ops("0", [2**40], [0]))),
        "sizes_overflow": state(("w", tensor_ops("0", [2**62, 4], [0, 0]))),
        "empty_and_huge": state(("w", tensor_ops("0", [0, 2**62, 2**62], [1, 1, 1]))),
        "strides_overflow": state(("w", tensor_ops("0", [3, 2], [2**62, 1]))),
        "declared_size_wrong": state(("w", tensor_ops("0", [2], [1], declared=7))),
        "no_such_record": state(("w", tensor_ops("9", [2], [1]))),
        "name_twice": state(("w", tensor_ops("0", [2], [1])), ("w", tensor_ops("0", [2], [1]))),
        "name_with_zero": state(("w\0x", tensor_ops("0", [2], [1]))),
        "bool_tensor": state(("w", tensor_ops("0", [24], [1], declared=24, storage=b"BoolStorage"))),
        "calls_system": b"\x80\x02cos\nsystem\n(" + text_op("true") + b"tR.",
        "marks": b"\x80\x02" + b"(" * 100 + b"t" * 50 + b".",
        "text_too_long": b"\x80\x02X\xff\xff\xff\xffabc.",
        "text_beyond_int64": b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.",
        "memo_missing": b"\x80\x02h\x05.",
        "long_of_255_bytes": b"\x80\x02\x8a\xff" + b"\1" * 255 + b".",
    }


def objects(attributes):
    """The pickle of a TorchScript module."""
    return b"\x80\x02c__torch__\nModule\n)\x81}(" + attributes + b"ub."


def torch_files():
    for name, pickle in pickles().items():
        put("pickle_machine", name + ".pkl", pickle)
        put("torch_file", name + ".pt", stored([("data.pkl", pickle), ("byteorder", "little"), ("data/0", DATA)]))
    training = text_op("training") + b"\x88"
    nested = text_op("inner") + b"c__torch__\nInner\n)\x81}(" + training + b"ub"
    lists = text_op("sizes") + b"ctorch.jit._pickle\nbuild_intlist\n](K\1K\2etR".replace(b"](", b"(](", 1)
    tuples = text_op("pair") + b"K\1" + text_op("x") + b"\x86" + text_op("d") + b"}(" + text_op("k") + b"K\1u"
    weight = text_op("w") + tensor_ops("0", [2, 3], [3, 1])
    twice = training * 2
    itself = b"\x80\x02c__torch__\nModule\n)\x81q\0}(" + text_op("me") + b"h\0ub."
    archives = {
        "module": objects(training + weight + nested),
        "lists": objects(lists + tuples),
        "attribute_twice": objects(twice),
        "object_in_itself": itself,
        "state_is_list": b"\x80\x02c__torch__\nModule\n)\x81](K\1eb.",
        "attribute_empty_name": objects(text_op("") + b"K\1"),
    }
    for name, pickle in archives.items():
        put("pickle_machine", "archive_" + name + ".pkl", pickle)
        records = [("data.pkl", pickle), ("constants.pkl", b"\x80\x02)."), ("data/0", DATA), ("code/__torch__.py", "x")]
        put("torch_file", "archive_" + name + ".pt", stored(records))
    put("torch_file", "big_endian.pt", stored([("data.pkl", pickles()["tensor"]), ("byteorder", "big"), ("data/0", DATA)]))
    written = (HERE.parent / "checkpoint" / "python_files.h").read_text()
    for name, body in re.findall(r"const char\* k(\w+) =((?:\s*\"[^\"]*\")+);", written):
        put("torch_file", "torch_save_" + name + ".pt", base64.b64decode("".join(re.findall(r'"([^"]*)"', body))))
    try:
        import torch
    except ImportError:
        return
    raw = io.BytesIO()
    tensors = {"f8": torch.ones(3).to(torch.float8_e5m2), "c": torch.ones(2, dtype=torch.complex64), "u": torch.ones(2).to(torch.uint16)}
    torch.save({"tensors": tensors, "list": [torch.ones(1), 1, 2.5, None, "x"]}, raw)
    put("torch_file", "torch_save_dtypes.pt", raw.getvalue())
    raw = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 1)), raw)
    put("torch_file", "torch_jit_save.pt", raw.getvalue())


def zip_file():
    good = stored([("data.pkl", b"\x80\x02N."), ("data/0", DATA), ("data/1", b"")])
    end = good.rindex(b"PK\5\6")
    compressed = io.BytesIO()
    with zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 10000)
    folders = io.BytesIO()
    with zipfile.ZipFile(folders, "w") as archive:
        archive.writestr("a/data.pkl", b"x")
        archive.writestr("b/data.pkl", b"y")
    wide = io.BytesIO()
    with zipfile.ZipFile(wide, "w") as archive, archive.open("archive/data.pkl", "w", force_zip64=True) as record:
        record.write(b"\x80\x02N.")

    def patched(at, value):
        return good[:at] + value + good[at + len(value) :]

    first, second = [m.start() for m in re.finditer(b"PK\x01\x02", good)][:2]
    locator = b"PK\6\7" + struct.pack("<IQI", 0, end, 1)
    end64 = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 3, 3, end - first, first)
    # Three names of one large record: together more than the file.
    large = stored([("a", b"x" * 4000), ("b", b""), ("c", b"")])
    entries = [m.start() for m in re.finditer(b"PK\x01\x02", large)]
    for at in entries[1:]:
        for begin, end_of in ((16, 28), (42, 46)):  # checksum and sizes, offset
            large = large[: at + begin] + large[entries[0] + begin : entries[0] + end_of] + large[at + end_of :]
    files = {
        "three_records": good,
        "one_record_three_times": large,
        "comment": patched(end + 20, b"\x05\0") + b"hello",
        "zip64": good[:end] + end64 + locator + good[end:],
        "zip64_outside": good[:end] + b"PK\6\7" + struct.pack("<IQI", 0, 2**64 - 1, 1) + good[end:],
        "zip64_sizes": wide.getvalue(),
        "compressed": compressed.getvalue(),
        "two_folders": folders.getvalue(),
        "overlap": patched(second + 42, good[first + 42 : first + 46]),
        "count_huge": patched(end + 8, b"\xff\xff\xff\xff"),
        "directory_beyond": patched(end + 16, b"\xf0\xff\xff\xff"),
        "size_huge": patched(first + 20, b"\xff" * 8),
        "offset_huge": patched(first + 42, b"\xff" * 4),
        "name_long": patched(first + 28, b"\xff\xff"),
        "end_alone": good[end:],
        "empty": b"",
    }
    for name, data in files.items():
        put("zip_file", name + ".zip", data)


# --- texts


def placements():
    texts = ["R", "S(0)", "S(-1)R", "_S(0, 2)S(0)", "P(sum)P(avg)", "P(max)P(sum)", "MaskP(sum, [10, 23], 0)", "R, S(1) P"]
    texts += ["S(9223372036854775807)", "S(-9223372036854775808)", "_S(1, -9223372036854775808)", "_S(0, 0)", "MaskP(sum, [], 0)"]
    texts += ["S(0)Q", "R,", "S(99999999999999999999)", "", "S(0", "MaskP(min, [1", "\n\tR\0R", "P(prod)"]
    for i, text in enumerate(texts):
        put("placements", "%02d.txt" % i, b"\3" + text.encode())


def launch_environment():
    torchrun = {"RANK": 2, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "10.0.0.7"}
    torchrun.update({"MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "job7", "TORCHELASTIC_RESTART_COUNT": 1})
    torchrun.update({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_ERROR_FILE": "/tmp/e", "DTENSOR_TIMEOUT": 2.5})
    mpi = {"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": 1}
    mpi.update({"OMPI_COMM_WORLD_LOCAL_SIZE": 1, "PMIX_NAMESPACE": "x"})
    mpi["OMPI_MCA_orte_hnp_uri"] = "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911;tcp6://[fe80::1,2620::2]:43370"
    mpich = {"PMI_RANK": 0, "PMI_SIZE": 2, "MPI_LOCALRANKID": 0, "MPI_LOCALNRANKS": 2, "launcher process": "1234 5678"}
    slurm = {"SLURM_PROCID": 3, "SLURM_NTASKS": 4, "SLURM_LOCALID": 0, "SLURM_STEP_ID": 0, "SLURM_JOB_ID": 77}
    slurm.update({"SLURM_NODEID": 1, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_STEP_NODELIST": "node[003-005,9],x"})
    cases = {
        "torchrun": torchrun,
        "open_mpi": mpi,
        "mpich": mpich,
        "slurm": slurm,
        "slurm_nodes_negative": {**slurm, "SLURM_STEP_TASKS_PER_NODE": "1(x-9223372036854775808)"},
        "slurm_unclosed": {**slurm, "SLURM_STEP_TASKS_PER_NODE": "2(x", "SLURM_STEP_NODELIST": "node[003"},
        "file_store": {"RANK": 0, "WORLD_SIZE": 2, "DTENSOR_STORE": "file:///tmp/x"},
        "tcp_store_ipv6": {"RANK": 0, "WORLD_SIZE": 2, "DTENSOR_STORE": "tcp://[::1]:1"},
        "tcp_store_without_port": {"RANK": 0, "WORLD_SIZE": 2, "DTENSOR_STORE": "tcp://a:"},
        "rank_negative": {"RANK": -1, "WORLD_SIZE": 2},
        "rank_huge": {"RANK": 10**30, "WORLD_SIZE": 10**30},
        "timeout_nan": {"DTENSOR_TIMEOUT": "nan"},
        "timeout_huge": {"DTENSOR_TIMEOUT": "1e400"},
    }
    for name, variables in cases.items():
        put("launch_environment", name + ".txt", "".join("%s=%s\n" % pair for pair in variables.items()))


def dump(rank, sequence=1, ranks="[0, 1]", **entry):
    call = {
        "pg_id": 0, "process_group": ["0-1", "tp"], "collective_seq_id": sequence, "time_created_ns": 10 + int(rank),
        "state": "completed", "retired": True, "collective": "all_reduce", "mesh_dims": "tp", "tensor": "f32[8](P)",
        "dtype": "Float", "bytes": 64, "cause": {"op": "aten::mm", "argument": "", "module_path": "m", "implicit": True},
        **entry,
    }
    group = {"name": "0-1", "desc": "tp", "ranks": ranks, "pg_id": 0}
    status = {"0": {"last_enqueued_collective": sequence}}
    return {"version": "2.10", "rank": rank, "pg_config": {"0-1": group}, "pg_status": status, "entries": [call]}


def flight_dump():
    def two(a, b):
        return json.dumps(a) + "\0" + json.dumps(b)

    torch_entry = {"collective": None, "profiling_name": "nccl:all_reduce", "input_sizes": [[2, 3]], "input_dtypes": ["Float"]}
    of_torch = dump(0, **torch_entry)
    del of_torch["entries"][0]["collective"]
    deep = json.dumps(of_torch).replace("[[2, 3]]", "[" * 30000 + "]" * 30000)
    in_process = dump(0)
    in_process["pg_config"]["0-1"]["in_process"] = True
    files = {
        "agree": two(dump(0), dump(1)),
        "part": two(dump(0), dump(1, collective="all_gather")),
        "behind": two(dump(0, 3, state="started"), dump(1, 2)),
        "one_rank_twice": two(dump(0), dump(0)),
        "in_process": two(in_process, in_process),
        "of_torch": json.dumps(of_torch),
        "of_torch_nested": deep,
        "no_entries": '{"version": "2.4", "rank": 0, "pg_config": {}}',
        "rank_huge": json.dumps(dump(0, ranks="[0, 9223372036854775807, -9223372036854775808]")),
        "sequence_huge": two(dump(0, 2**63 - 1), dump(1, -(2**63))),
        "number_beyond_int64": json.dumps(dump(2**64 - 1, 2**64 - 1)),
        "ranks_many_times": two(dump(0, ranks="[" + "0," * 2000 + "0]"), dump(1)),
        "numbers_as_texts": json.dumps(dump("1", "3")),
        "not_json": "{",
        "nested": "[" * 20000,
    }
    for name, text in files.items():
        put("flight_dump", name + ".json", text)


def cost_model():
    link = {"latency": 6.6e-6, "hop_latency": 6e-7, "bandwidth": 8.77e10}
    level = {name: link for name in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute")}
    files = {
        "whole": json.dumps({"ranks_per_node": 8, "copy_bandwidth": 1e12, "uses_staging_buffers": True, "within_node": level, "between_nodes": level}),
        "empty": "{}",
        "zero": '{"copy_bandwidth": 0}',
        "negative": '{"ranks_per_node": -1}',
        "ranks_beyond_int64": '{"ranks_per_node": 18446744073709551615}',
        "infinite": '{"copy_bandwidth": 1e400}',
        "tiny": json.dumps({"within_node": {"all_reduce": {"latency": 5e-324, "hop_latency": 5e-324, "bandwidth": 1.7e308}}}),
        "huge": json.dumps({"between_nodes": {"all_reduce": {"latency": 1e308, "hop_latency": 1e308, "bandwidth": 1e-300}}}),
        "unknown_field": '{"a\\nb": 1}',
        "nested": '{"uses_staging_buffers": ' + "[" * 3000 + "]" * 3000 + "}",
        "no_object": "[1]",
    }
    for name, text in files.items():
        put("cost_model", name + ".json", text)


def program_flags():
    texts = {
        0: ["dp=4,tp=8", "dp=0", "a=1,a=2", "=1", "dp=1048577", "dp=9223372036854775807,tp=2"],
        1: ["0-3,8,10", "3-1", "0-1048575", "-1", "1-2-3", "0,0", "0-1048575," * 40 + "0", "99999999999999999999"],
        2: ["4096,4096", "", "0,5", "1099511627776,1099511627776", "-1", "1,,2"],
        3: ["bf16", "float32", "torch.float32", ""],
        4: ["2GiB", "1.5MB", "4096", "0", "1e5", "..", "9" * 400, "4.6TiB", "0.0000001B"],
    }
    for kind, values in texts.items():
        for i, value in enumerate(values):
            name = ["mesh", "ranks", "sizes", "dtype", "bytes"][kind]
            put("program_flags", "%s_%d.txt" % (name, i), bytes([kind]) + value.encode())


if __name__ == "__main__":
    for make in (strict_json, hugging_face_index, safetensors_header, part_file, checkpoint_manifest, torch_files, zip_file):
        make()
    for make in (placements, launch_environment, flight_dump, cost_model, program_flags):
        make()
