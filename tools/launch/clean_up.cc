#include "tools/launch/clean_up.h"

#include <dirent.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "tools/launch/output.h"

namespace dtensor::launch {

void stop_children() {
  for (bool any = true; any;) {
    any = false;
    const std::string file = "/proc/self/task/" + std::to_string(getpid()) + "/children";
    FILE* children = fopen(file.c_str(), "r");
    if (children == nullptr) return;
    for (int pid = 0; fscanf(children, "%d", &pid) == 1;) {
      any = true;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);  // its own children come here then
    }
    fclose(children);
  }
}

void remove_folder(const std::string& folder) {
  if (DIR* dir = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(dir)) unlink((folder + "/" + entry->d_name).c_str());
    closedir(dir);
  }
  rmdir(folder.c_str());
}

void die(const std::string& what) {
  Output err(2);
  err.add("launch: " + what + ": " + strerror(errno) + "\n");
  err.write_some();
  _exit(1);
}

}  // namespace dtensor::launch
