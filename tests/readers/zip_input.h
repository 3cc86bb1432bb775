// The records of a zip file as a simple reader finds them, for targets and mutators.
#pragma once

#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace dtensor::testing {

// Names that stand behind a record's signature, without their first folder: candidates for ZipFile::has().
inline std::set<std::string> zip_names(const std::string& file) {
  std::set<std::string> names;
  const auto add = [&](const std::string& signature, size_t length_at, size_t name_at) {
    for (size_t at = file.find(signature); at != file.npos; at = file.find(signature, at + 1)) {
      uint16_t length = 0;
      if (at + name_at > file.size()) return;
      std::memcpy(&length, file.data() + at + length_at, sizeof length);
      const std::string name = file.substr(at + name_at, length);
      names.insert(name);
      names.insert(name.substr(name.find('/') + 1));
    }
  };
  add("PK\1\2", 28, 46);
  add("PK\3\4", 26, 30);
  return names;
}

}  // namespace dtensor::testing
