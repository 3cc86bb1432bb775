"""unpack.py WHEELS_DIR DEST cpu|full: unpacks what the build uses of each wheel, deleting the wheel after it."""

import os
import re
import sys
import zipfile

CPU_LIBS = re.compile(r"torch/lib/(libc10|libtorch_cpu|libgomp[^/]*)\.so[^/]*$")
# Not needed to link, nor to `import torch` (which insists on bin/torch_shm_manager and torchgen).
UNUSED = re.compile(r"torch/bin/(?!torch_shm_manager)|torch/(test|share)/|functorch/|torch/lib/[^/]*/")


def wanted(name, full):
    if name.startswith("nvidia/"):
        return name.startswith("nvidia/nccl/include/") or ("/lib/" in name and ".so" in os.path.basename(name))
    if name.startswith("torch/include/"):
        return True
    if full:
        return not UNUSED.match(name)
    return CPU_LIBS.match(name) or re.match(r"torch-[^/]*\.dist-info/.*LICENSE", name)


def main():
    wheels, dest, kind = sys.argv[1:]
    for wheel in sorted(os.listdir(wheels)):
        path = os.path.join(wheels, wheel)
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if wanted(name, kind == "full"):
                    archive.extract(name, dest)
        os.remove(path)


main()
