#pragma once

#include <cstdint>
#include <string>

namespace erdma::fabric {

/// The rank and job of this process, from the environment variables of its launcher: Open MPI,
/// MPICH and its derivatives, torchrun, other launchers with PMIx, Slurm.
struct JobIdentity {
  // UINT64_MAX = unknown.
  uint64_t rank = UINT64_MAX;
  uint64_t ranks = UINT64_MAX;
  uint64_t local_rank = UINT64_MAX;
  std::string launcher;  ///< the launcher that set the rank; empty = none is known
  /// The number of the allocation of Slurm, and the name of the run if its launcher names it:
  /// "88121.0" is a step of Slurm, "88121.NAME" what another launcher runs there. Runs of launchers
  /// that do not name them have the same job. Empty if nothing is known.
  std::string job;
};

JobIdentity read_job_identity();

}  // namespace erdma::fabric
