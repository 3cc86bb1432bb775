#include "processes/launch/job_place.h"

namespace dtensor {

std::string to_string(Launcher launcher) {
  switch (launcher) {
    case Launcher::kOptions:
      return "LaunchOptions";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "Open MPI";
    case Launcher::kMpich:
      return "MPICH";
    case Launcher::kSlurm:
      return "Slurm";
    case Launcher::kNone:
      return "none";
  }
  return "?";
}

}  // namespace dtensor
