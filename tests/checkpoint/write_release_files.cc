// write_release_files FOLDER: into FOLDER/libtorch-X.Y.Z, where release_files_test looks for them.
#include <sys/stat.h>

#include <cstdio>
#include <string>

#include "dtensor/version.h"
#include "tests/checkpoint/release_files.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: write_release_files FOLDER\n", stderr);
    return 2;
  }
  const std::string folder = std::string(argv[1]) + "/libtorch-" + dtensor::libtorch_version();
  if (::mkdir(folder.c_str(), 0755) != 0) {
    std::perror(folder.c_str());
    return 1;
  }
  dtensor::testing::write_release_files(folder);
  std::printf("%s\n", folder.c_str());
}
