#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""allow_calls.py PROFILE CALL...: a seccomp profile of Docker with further system calls allowed, on standard output.

PROFILE is Docker's default.json. Docker: --security-opt seccomp=FILE. Kubernetes: below the kubelet's seccomp
folder, as a seccompProfile of type Localhost."""
import json
import sys


def main(path, *calls):
    with open(path, encoding="utf-8") as source:
        profile = json.load(source)
    profile["syscalls"].append({"names": sorted(calls), "action": "SCMP_ACT_ALLOW"})
    json.dump(profile, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
