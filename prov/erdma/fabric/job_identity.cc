#include "fabric/job_identity.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

namespace erdma::fabric {
namespace {

struct Launcher {
  const char* name;
  const char* sign;  ///< a variable that no other launcher sets
  const char *rank, *ranks, *local_rank;
  /// Has the same value in all processes of a run, and another one in other runs. Processes that
  /// another launcher than Slurm starts may belong to several steps of Slurm, or to none.
  const char* run;
};

/// Slurm comes last: processes that another launcher starts in a Slurm allocation inherit the
/// SLURM_PROCID of the batch script.
constexpr Launcher kLaunchers[] = {
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_NAMESPACE"},
    {"torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"},
    {"mpich", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_JOBID"},
    {"pmix", "PMIX_RANK", "PMIX_RANK", "", "", "PMIX_NAMESPACE"},
    {"slurm", "SLURM_PROCID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID"},
};

/// Empty if the variable is not set, or has no name.
const char* text_in(const char* variable) noexcept {
  const char* const text = *variable ? std::getenv(variable) : nullptr;
  return text ? text : "";
}

uint64_t number_in(const char* variable) noexcept {
  const char* const text = text_in(variable);
  const char* const end = text + std::strlen(text);
  uint32_t number = 0;
  const auto [read, error] = std::from_chars(text, end, number);
  return error == std::errc{} && read == end ? number : UINT64_MAX;
}

/// The number of the allocation comes first, since users know it. Slurm's own PMI and PMIx name a
/// run by allocation and step already.
std::string job_of(std::string run) {
  constexpr std::string_view kSlurmPmix = "slurm.pmix.";
  const std::string allocation = text_in("SLURM_JOB_ID");
  if (run.starts_with(kSlurmPmix)) run.erase(0, kSlurmPmix.size());
  if (allocation.empty() || run.starts_with(allocation + ".")) return run;
  return run.empty() ? allocation : allocation + "." + run;
}

}  // namespace

JobIdentity read_job_identity() {
  JobIdentity identity;
  std::string run;
  for (const Launcher& launcher : kLaunchers) {
    if (!std::getenv(launcher.sign)) continue;
    identity.rank = number_in(launcher.rank);
    identity.ranks = number_in(launcher.ranks);
    identity.local_rank = number_in(launcher.local_rank);
    identity.launcher = launcher.name;
    run = text_in(launcher.run);
    break;
  }
  identity.job = job_of(std::move(run));
  return identity;
}

}  // namespace erdma::fabric
