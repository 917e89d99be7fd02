# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
from spack_repo.builtin.build_systems.autotools import AutotoolsPackage

from spack.package import *


class Erdma(AutotoolsPackage):
    """libfabric provider for Alibaba Cloud's eRDMA NICs: it carries the messages of MPI, oneCCL and NCCL through the
    NIC between hosts, and through shared memory inside a host."""

    # In the root of the source tree: spack dev-build erdma@main. For published tarballs, add a version with url and
    # sha256.

    license("BSD-2-Clause OR GPL-2.0-only")

    version("main")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("autoconf", type="build", when="@main")
    depends_on("automake@1.16:", type="build", when="@main")
    depends_on("libtool", type="build", when="@main")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("libfabric@1.17:")
    depends_on("rdma-core@33:")
    depends_on("libsodium@1.0.11:")
    # The program fi_erdma needs only the headers of these.
    depends_on("cli11@2.1:", type="build")
    depends_on("fmt@9:", type="build")
    depends_on("nlohmann-json@3.10:", type="build")

    conflicts("%gcc@:9", msg="C++20 as g++ 10 has it")
    conflicts("platform=darwin", msg="Linux only")
    conflicts("platform=windows", msg="Linux only")

    def configure_args(self):
        # libcuda.so.1 is opened at run time, whatever headers are there.
        return ["--disable-tests", "--without-cuda"]

    def setup_run_environment(self, env):
        env.prepend_path("FI_PROVIDER_PATH", self.prefix.lib.libfabric)
