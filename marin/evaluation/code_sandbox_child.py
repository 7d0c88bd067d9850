"""What the sandbox's process runs: it limits itself, runs the program that it is given, and says how that ended.

It is not imported: `marin.evaluation.code_sandbox` hands its text to a Python without site packages.
"""

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import types

# Computing, reading, sleeping, ending. Numbers are those of the kernel's tables for each machine.
_ALLOWED = {
    "x86_64": (
        *(0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19, 20, 21, 24, 25, 28, 35, 39, 60, 63, 79, 89, 96, 98, 99),
        *(100, 102, 104, 107, 108, 110, 131, 186, 201, 202, 204, 217, 228, 229, 230, 231, 262, 267, 269, 318, 332, 334, 439),
    ),
    "aarch64": (
        *(17, 48, 57, 61, 62, 63, 64, 65, 66, 67, 78, 79, 80, 93, 94, 98, 101, 113, 114, 115, 123, 124, 132, 134, 135, 139),
        *(153, 160, 165, 169, 172, 173, 174, 175, 176, 177, 178, 179, 214, 215, 216, 222, 226, 233, 278, 291, 293, 439),
    ),
}  # fmt: skip
# (number, which argument has the flags) of the calls that open files: allowed for reading.
_OPENING = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND and the bit of O_TMPFILE that no other flag has.
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20000000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # the latter: errno 1, operation not permitted
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
# Landlock's calls have these numbers on every machine; the rights are to read a file and to list a folder.
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT, _LANDLOCK_PATH_BENEATH = 444, 445, 446, 1
_READ_FILE, _READ_FOLDER = 4, 8
# What a Python opens when it imports or draws random numbers, beside its own installation.
_READABLE = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/dev/null",
    "/dev/urandom",
)


def filter_program(machine: str) -> list[tuple[int, int, int, int]]:
    """The classic BPF program, as (code, jump if true, jump if false, operand): allow what is listed, refuse the rest."""
    rules = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), (_RETURN, 0, 0, _REFUSE), (_LOAD, 0, 0, 0)]
    for number in _ALLOWED[machine]:
        rules += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for number, argument in _OPENING[machine]:
        low_half = 16 + 8 * argument
        rules += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, low_half), (_ANY_BIT, 0, 1, _WRITING)]
        rules += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return [*rules, (_RETURN, 0, 0, _REFUSE)]


def confine_reading() -> None:
    """From here on only Python's own files can be opened, where the kernel has Landlock (Linux 5.13); else all as before.

    That also keeps the files of other processes in /proc shut: their environment, memory and pipes.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    both = _READ_FILE | _READ_FOLDER
    handled = ctypes.create_string_buffer(struct.pack("=Q", both), 8)
    rules = libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), handled, ctypes.c_size_t(8), ctypes.c_uint(0))
    if rules < 0:
        return
    for place in (sys.base_prefix, *_READABLE):
        try:
            opened = os.open(place, os.O_PATH)
        except OSError:
            continue
        allowed = both if os.path.isdir(place) else _READ_FILE
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, opened), 12)
        added = libc.syscall(ctypes.c_long(_LANDLOCK_ADD), rules, _LANDLOCK_PATH_BENEATH, rule, ctypes.c_uint(0))
        os.close(opened)
        if added:
            raise OSError(ctypes.get_errno(), f"Landlock's rule for {place}")
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0))):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    if libc.syscall(ctypes.c_long(_LANDLOCK_RESTRICT), rules, ctypes.c_uint(0)):
        raise OSError(ctypes.get_errno(), "Landlock")
    os.close(rules)


def install_filter(machine: str) -> None:
    """From here on this process can do no more than the filter allows, and nothing takes it away."""
    rules = filter_program(machine)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(rules), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_ulong(value) for value in (1, 0, 0, 0)]
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, *words):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), header, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    token, program, seconds = request["token"], request["program"], request["seconds"]
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

    def say(outcome: str, detail: str = "") -> None:
        os.write(channel, json.dumps({"token": token, "outcome": outcome, "detail": detail[:300]}).encode())

    whole = max(1, int(seconds) + 1)
    limits = {"CPU": (whole, whole), "AS": (request["memory_bytes"],) * 2, "FSIZE": (0, 0), "CORE": (0, 0)}
    try:
        import typing  # noqa: F401  most programs need it, and it takes a tenth of the time here

        for name, values in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), values)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        confine_reading()
        install_filter(request["machine"])
    except (OSError, ValueError) as error:
        say("no sandbox", str(error))
        return
    try:
        # Not "__main__": what a reply would do as a program of its own is no part of what is tested. A module that is known, as
        # `dataclass` looks up the names of types, and `pickle` classes, in the one that a class says it is from.
        module = sys.modules["__generated__"] = types.ModuleType("__generated__")
        exec(compile(program, "<generated>", "exec"), module.__dict__)
    except BaseException as error:
        try:
            detail = f"{type(error).__name__}: {error}"
        except BaseException:
            detail = "an error that cannot be shown"
        say("failed", detail)
    else:
        say("passed")


main()
os._exit(0)
