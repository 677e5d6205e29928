#!/usr/bin/env python3
"""Makes the PTX of each kernel in this folder with NVRTC 12.0.140, which needs no GPU and no toolkit.

    python3 cuda/kernels/make-ptx.py            # fetches the pinned wheel with pip into a temporary folder
    python3 cuda/kernels/make-ptx.py WHEEL      # uses this one

NVRTC of CUDA 12.0 writes PTX ISA 8.0, which every driver from 525 on accepts. A later one would not do. Two runs give
the same bytes. The first line of the PTX names its source by CRC-32; a test refuses PTX whose source has changed.
"""

import ctypes
import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile
import zlib

PACKAGE = "nvidia-cuda-nvrtc-cu12==12.0.140"
WHEEL_SHA256 = "8e94e991d85c422de4da87bdc7472fdc1364367bd4aace7000b559cd33122071"
OPTIONS = [b"--gpu-architecture=compute_75", b"--std=c++17"]


def wheel(folder: pathlib.Path) -> pathlib.Path:
    if len(sys.argv) > 1:
        return pathlib.Path(sys.argv[1])
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--platform", "manylinux1_x86_64", "--dest", str(folder), PACKAGE]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def nvrtc(folder: pathlib.Path) -> ctypes.CDLL:
    archive = wheel(folder)
    if hashlib.sha256(archive.read_bytes()).hexdigest() != WHEEL_SHA256:
        sys.exit(f"{archive} has the wrong sha256; fetch {PACKAGE} again")
    zipfile.ZipFile(archive).extractall(folder)
    libraries = folder / "nvidia/cuda_nvrtc/lib"
    # The compiler opens this one by its name, so it must be there already.
    ctypes.CDLL(str(libraries / "libnvrtc-builtins.so.12.0"), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(libraries / "libnvrtc.so.12"))


def ptx_of(library: ctypes.CDLL, source: pathlib.Path) -> str:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text = source.read_bytes()
    library.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None)
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    failed = library.nvrtcCompileProgram(program, len(OPTIONS), options)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    if failed:
        sys.exit(f"{source} does not compile:\n{log.value.decode()}")
    library.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    library.nvrtcGetPTX(program, ptx)
    return f"// made from {source.name} crc32 {zlib.crc32(text):08x} by NVRTC 12.0.140\n{ptx.value.decode()}"


def main() -> None:
    here = pathlib.Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        library = nvrtc(pathlib.Path(folder))
        for source in sorted(here.glob("*.cu")):
            source.with_suffix(".ptx").write_text(ptx_of(library, source))
            print(source.with_suffix(".ptx"))


main()
