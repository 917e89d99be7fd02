#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""allow_calls.py PROFILE CALL...: prints a seccomp profile that allows further system calls.

PROFILE is Docker's default.json or Podman's seccomp.json. Use the result with Docker and Podman as --security-opt seccomp=FILE, with
Kubernetes in the kubelet's seccomp folder, as a seccompProfile of type Localhost."""
import json
import sys


def main(path, *calls):
    with open(path, encoding="utf-8") as source:
        profile = json.load(source)
    # The first of two rules for one call would apply: Podman's profile names the calls that it refuses.
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in calls]
    profile["syscalls"] = [rule for rule in profile["syscalls"] if rule["names"]]
    profile["syscalls"].append({"names": sorted(calls), "action": "SCMP_ACT_ALLOW"})
    json.dump(profile, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
