#!/usr/bin/env python3
"""Makes what is given to others of the installed library: ./bazelw build //:dist

  dtensor-VERSION-libtorch-X.Y.tar.gz               what //:install writes, below a folder of that name
  dtensor_torch-VERSION-py3-none-linux_x86_64.whl   Python's `import dtensor_torch`, which brings the library

The same sources and tools make the same bytes: files are sorted, and their times are fixed.
"""

import argparse
import base64
import gzip
import hashlib
import io
import os
import tarfile
import tempfile
import zipfile

import install

METADATA = """Metadata-Version: 2.1
Name: dtensor_torch
Version: {VERSION}
Summary: Distributed tensors for LibTorch {TORCH}, from Python
License: BSD-3-Clause
Requires-Python: >=3.9
Requires-Dist: torch =={TORCH}.*
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: dtensor\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n"


def files_below(folder):
    return sorted(os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder) for name in names)


def archive(prefix, out, names):
    name = "dtensor-{VERSION}-libtorch-{TORCH}".format(**names)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in files_below(prefix):
            member = tarfile.TarInfo(f"{name}/{path}")
            member.size = os.path.getsize(os.path.join(prefix, path))
            member.mode = os.stat(os.path.join(prefix, path)).st_mode & 0o777
            with open(os.path.join(prefix, path), "rb") as f:
                tar.addfile(member, f)
    with open(os.path.join(out, name + ".tar.gz"), "wb") as f:
        f.write(gzip.compress(data.getvalue(), mtime=0))


def wheel(prefix, out, names):
    """A package of the module and what it loads, in the format of PEP 427."""
    info = "dtensor_torch-{VERSION}.dist-info/".format(**names)
    files = {
        "dtensor_torch/__init__.py": install.read_bytes(os.path.join(prefix, "share/dtensor/python/dtensor_torch.py")),
        info + "METADATA": METADATA.format(**names).encode(),
        info + "WHEEL": WHEEL.encode(),
    }
    for path in files_below(prefix):
        folder, name = os.path.split(path)
        if folder == "lib" and name != "libdtensor_sharded.so":
            files["dtensor_torch/" + name] = install.read_bytes(os.path.join(prefix, path))
        elif folder == "share/doc/dtensor" and name != "CHANGELOG.md":
            files[info + name] = install.read_bytes(os.path.join(prefix, path))
    record = info + "RECORD"
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    files[record] = "".join(sorted(lines) + [f"{record},,\n"]).encode()
    target = "dtensor_torch-{VERSION}-py3-none-linux_x86_64.whl".format(**names)
    with zipfile.ZipFile(os.path.join(out, target), "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name)  # of 1980
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if ".so" in name else 0o100644) << 16
            file.writestr(entry, data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in "--root", "--out":
        parser.add_argument(flag, required=True)
    parser.add_argument("--libraries", required=True, nargs="+")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    with tempfile.TemporaryDirectory() as prefix:
        names, _ = install.install(options.root, options.libraries, prefix)
        archive(prefix, options.out, names)
        wheel(prefix, options.out, names)


if __name__ == "__main__":
    main()
