#pragma once

#include <cstdint>
#include <string>

namespace erdma::fabric {

/// Which rank of which job this process is, by the variables of whoever started it: Open MPI, MPICH
/// and its kin, torchrun, another launcher that speaks PMIx, Slurm.
struct JobIdentity {
  uint64_t rank = UINT64_MAX;  ///< these three: UINT64_MAX = unknown
  uint64_t ranks = UINT64_MAX;
  uint64_t local_rank = UINT64_MAX;
  std::string launcher;  ///< whose rank it is; empty = nobody's
  std::string job;       ///< the name by which the scheduler or the launcher knows it
};

JobIdentity read_job_identity();

}  // namespace erdma::fabric
