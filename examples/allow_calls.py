#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""allow_calls.py [--kubernetes amd64|arm64] PROFILE CALL...: prints a seccomp profile that allows further system calls.

PROFILE is Docker's default.json or Podman's seccomp.json. Docker and Podman take the result as --security-opt seccomp=FILE. With
--kubernetes, the result is for the kubelet's seccomp folder of nodes with this processor, as a seccompProfile of type Localhost.
containerd ignores the conditions of rules in Docker's profile, so that calls for administrators would be allowed to every container:
here the conditions are decided for a container with the capabilities that containers have by default."""
import argparse
import json

ARCHES = {"amd64": "SCMP_ARCH_X86_64", "arm64": "SCMP_ARCH_AARCH64"}
CAPS = {"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE",
        "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT"}


def allow(profile, calls):
    # The first of two rules for one call would apply: Podman's profile names the calls that it refuses.
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in calls]
    profile["syscalls"] = [rule for rule in profile["syscalls"] if rule["names"]]
    profile["syscalls"].append({"names": sorted(calls), "action": "SCMP_ACT_ALLOW"})


def holds(rule, arch):
    """Whether a rule is for such a container. Its kernel is newer than any that a rule names."""
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    if arch in (excludes.get("arches") or []) or CAPS & set(excludes.get("caps") or []):
        return False
    return arch in (includes.get("arches") or [arch]) and set(includes.get("caps") or []) <= CAPS


def decide(profile, arch):
    """The profile with the fields that OCI's specification has."""
    own = ARCHES[arch]
    others = [name for each in profile["archMap"] if each["architecture"] == own for name in each["subArchitectures"] or []]
    fields = ("names", "action", "errnoRet", "args")
    rules = [{field: rule[field] for field in fields if rule.get(field)} for rule in profile["syscalls"] if holds(rule, arch)]
    decided = {field: profile[field] for field in ("defaultAction", "defaultErrnoRet") if field in profile}
    return dict(decided, architectures=[own, *others], syscalls=rules)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--kubernetes", choices=sorted(ARCHES))
    parser.add_argument("profile")
    parser.add_argument("calls", nargs="+")
    options = parser.parse_args()
    with open(options.profile, encoding="utf-8") as source:
        profile = json.load(source)
    allow(profile, options.calls)
    print(json.dumps(decide(profile, options.kubernetes) if options.kubernetes else profile, indent=2))


if __name__ == "__main__":
    main()
