#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""check_spack.py TREE: Spack's recipe asks for the versions that configure asks for, and gives configure only options
that it has. Spack itself is not needed: what the recipe calls is written down."""
import contextlib
import re
import sys
import types

FILE = "packages/spack/package.py"
# Libraries that have another name in configure than in Spack.
OTHER_NAMES = {"cli11": "CLI11", "nlohmann-json": "nlohmann_json"}


def run(path):
    """The class Erdma, and (directive, arguments) of each that it has."""
    calls = []

    def directive(name):
        return lambda *arguments, **more: calls.append((name, arguments)) or contextlib.nullcontext()

    package = types.ModuleType("spack.package")
    for name in ["conflicts", "depends_on", "license", "maintainers", "variant", "version", "when"]:
        setattr(package, name, directive(name))
    build_system = types.ModuleType("spack_repo.builtin.build_systems.autotools")
    build_system.AutotoolsPackage = object
    sys.modules.update({"spack.package": package, build_system.__name__: build_system})
    for parent in ["spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"]:
        sys.modules[parent] = types.ModuleType(parent)
    found = {}
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), found)
    return found["Erdma"], calls


def main(tree):
    with open(f"{tree}/prov/erdma/configure.m4", encoding="utf-8") as file:
        configure = file.read()
    recipe, calls = run(f"{tree}/{FILE}")
    faults = []
    asked = dict(call[1][0].rstrip(":").split("@") for call in calls if call[0] == "depends_on" and "@" in call[1][0])
    modules = " ".join(re.findall(r"PKG_CHECK_MODULES\(\[\w+\], \[(.*?)\]", configure))
    for name in ["libfabric", "libsodium", "cli11", "fmt", "nlohmann-json"]:
        here = re.search(rf"\b{OTHER_NAMES.get(name, name)} >= ([\d.]+)", modules)
        if not here or here[1] != asked.get(name):
            faults.append(f"{name} {asked.get(name)}, and configure says {here and here[1]}")
    for option in recipe().configure_args():
        name = re.sub(r"^--(?:with|without|enable|disable)-|=.*", "", option)
        if not re.search(rf"AC_ARG_(?:WITH|ENABLE)\(\[{name}\]", configure):
            faults.append(f"configure has no {option}")
    for fault in faults:
        print(f"{FILE}: {fault}")
    return bool(faults)


sys.exit(main(sys.argv[1]))
