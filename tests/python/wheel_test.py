"""//:dist's wheel, installed by pip into a folder of its own: `import dtensor_torch` needs no environment variable, and names the
fault with another torch."""

import glob
import os
import subprocess
import sys
import tempfile
import zipfile

SITE, LIBRARY = os.environ["PYTHONPATH"], os.environ["DTENSOR_LIBRARY"]
WHEEL = glob.glob("dist/dtensor_torch-*-linux_x86_64.whl")[0]

if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
    print("SKIPPED: there is no pip\n[dtensor] 0 passed, 0 failed, 1 skipped")
    sys.exit()

LOADED = """
import dtensor_torch, torch
assert torch.ops.dtensor.num_meshes() == 0
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "libdtensor" in line or "libabsl" in line}), sep="\\n")
"""
count = {True: 0, False: 0}


def check(name, good, said):
    count[bool(good)] += 1
    if not good:
        print(f"FAILED: {name}\n{said}")


def python(code, *path, library=None):
    env = {key: value for key, value in os.environ.items() if key != "DTENSOR_LIBRARY"}
    env["PYTHONPATH"] = os.pathsep.join(path)
    if library:
        env["DTENSOR_LIBRARY"] = library
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=env, capture_output=True, text=True, check=False)


with zipfile.ZipFile(WHEEL) as archive:
    entries = archive.infolist()
    check("its bytes are the same each time", entries == sorted(entries, key=lambda entry: entry.filename) and
          {entry.date_time[0] for entry in entries} == {1980}, entries)

with tempfile.TemporaryDirectory() as work:
    target, other = os.path.join(work, "target"), os.path.join(work, "other")
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target",
                           target, WHEEL], capture_output=True, text=True, check=False)
    check("pip installs the wheel", done.returncode == 0, done.stderr)

    done = python(LOADED, target, SITE)
    loaded = done.stdout.split()
    here = [path for path in loaded if path.startswith(target + "/dtensor_torch/lib")]
    check("it loads the library beside it", target + "/dtensor_torch/libdtensor.so" in loaded, done)
    check("and that its own Abseil", len(here) > 10 and here == loaded, done)

    done = python(LOADED, target, SITE, library=LIBRARY)
    check("DTENSOR_LIBRARY wins", os.path.realpath(LIBRARY) in map(os.path.realpath, done.stdout.split()), done)

    os.mkdir(other)
    with open(os.path.join(other, "torch.py"), "w", encoding="utf-8") as f:
        f.write("__version__ = '2.10.1+cpu'\n")  # nothing else of it is needed to refuse it
    done = python("import dtensor_torch", target, other)
    last = done.stderr.splitlines()[-1]
    check("another torch is refused", done.returncode == 1 and last.startswith("ImportError: ") and
          "was built with LibTorch 2." in last and "torch 2.10.1+cpu" in last and "pip install 'torch==2." in last, done)

print(f"[dtensor] {count[True]} passed, {count[False]} failed, 0 skipped")
sys.exit(bool(count[False]))
