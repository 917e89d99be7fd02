#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""under_profile.py PROFILE COMMAND...: runs COMMAND under the seccomp profile PROFILE, a JSON file of Docker or Podman,
as they would in a container with the bounding set of this process. If the variable profile_reader is containerd, PROFILE is read as
containerd reads the profiles of Kubernetes: what the specification of OCI does not have is ignored. Needs libseccomp's module for
Python, and no privilege."""
import errno
import json
import os
import platform
import re
import sys

import seccomp

ARCHES = {"x86_64": ("amd64", "SCMP_ARCH_X86_64"), "aarch64": ("arm64", "SCMP_ARCH_AARCH64")}
# Numbers in linux/capability.h of the capabilities that the profiles name.
CAPS = {"CAP_DAC_READ_SEARCH": 2, "CAP_SYS_MODULE": 16, "CAP_SYS_RAWIO": 17, "CAP_SYS_CHROOT": 18, "CAP_SYS_PTRACE": 19,
        "CAP_SYS_PACCT": 20, "CAP_SYS_ADMIN": 21, "CAP_SYS_BOOT": 22, "CAP_SYS_NICE": 23, "CAP_SYS_TIME": 25,
        "CAP_SYS_TTY_CONFIG": 26, "CAP_AUDIT_WRITE": 29, "CAP_SYSLOG": 34, "CAP_PERFMON": 38, "CAP_BPF": 39}
COMPARISONS = {"SCMP_CMP_NE": seccomp.NE, "SCMP_CMP_LT": seccomp.LT, "SCMP_CMP_LE": seccomp.LE, "SCMP_CMP_EQ": seccomp.EQ,
               "SCMP_CMP_GE": seccomp.GE, "SCMP_CMP_GT": seccomp.GT, "SCMP_CMP_MASKED_EQ": seccomp.MASKED_EQ}


def own_caps():
    with open("/proc/self/status", encoding="ascii") as status:
        bits = int(re.search(r"^CapBnd:\s*(\w+)", status.read(), re.M).group(1), 16)
    return {name for name, number in CAPS.items() if bits >> number & 1}


def version(text):
    return [int(number) for number in re.findall(r"\d+", text)[:2]]


def applies(rule, arch, caps):
    """Whether a rule holds for this processor, kernel and these capabilities."""
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    if "arches" in includes and arch not in includes["arches"] or arch in excludes.get("arches", []):
        return False
    if not set(includes.get("caps", [])) <= caps or set(excludes.get("caps", [])) & caps:
        return False
    return version(platform.release()) >= version(includes.get("minKernel", "0.0"))


def action_of(kind, error):
    if kind == "SCMP_ACT_ALLOW":
        return seccomp.ALLOW
    if kind == "SCMP_ACT_ERRNO":
        return seccomp.ERRNO(errno.EPERM if error is None else error)
    raise SystemExit(f"under_profile.py: no such action here: {kind}")


def conditions(arguments):
    """Lists of conditions of which one list must hold: what names one argument twice means either of them."""
    made = []
    for each in arguments or []:
        values = [each["value"]] + ([each.get("valueTwo", 0)] if each["op"] == "SCMP_CMP_MASKED_EQ" else [])
        made.append(seccomp.Arg(each["index"], COMPARISONS[each["op"]], *values))
    indices = [each["index"] for each in arguments or []]
    return [[each] for each in made] if len(set(indices)) < len(indices) else [made]


def as_containerd_reads(profile):
    """Without the conditions of rules, and without Docker's map of architectures."""
    fields = ("names", "action", "errnoRet", "args")
    rules = [{field: rule[field] for field in fields if field in rule} for rule in profile["syscalls"]]
    kept = {field: profile[field] for field in ("defaultAction", "defaultErrnoRet", "architectures") if field in profile}
    return dict(kept, syscalls=rules)


def load(profile):
    arch, own = ARCHES[platform.machine()]
    if os.environ.get("profile_reader") == "containerd":
        profile = as_containerd_reads(profile)
    caps = own_caps()
    default = profile["defaultAction"], profile.get("defaultErrnoRet")
    made = seccomp.SyscallFilter(action_of(*default))
    for family in profile.get("archMap", []):
        if family["architecture"] == own:
            for other in family["subArchitectures"]:
                made.add_arch(getattr(seccomp.Arch, other.removeprefix("SCMP_ARCH_")))
    for name in profile.get("architectures", []):
        if name != own:
            made.add_arch(getattr(seccomp.Arch, name.removeprefix("SCMP_ARCH_")))
    for rule in profile["syscalls"]:
        action = rule["action"], rule.get("errnoRet")
        if not applies(rule, arch, caps) or action == default:
            continue
        # Names that this libseccomp does not know are left out, as by container runtimes.
        for name in (name for name in rule["names"] if seccomp.resolve_syscall(seccomp.Arch(), name) != -1):
            for each in conditions(rule.get("args")):
                made.add_rule(action_of(*action), name, *each)
    made.load()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        load(json.load(file))
    os.execvp(sys.argv[2], sys.argv[2:])
