// Safetensors files: values there and back, views of the mapping, layouts gathered one at a time, errors that leave the
// older file.
#include "checkpoint/safetensors.h"

#include <torch/nn.h>

#include <cstdlib>
#include <cstring>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/checkpoint/safetensors_files.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"

namespace dtensor {
namespace {

using testing::read_file;
using testing::safetensors_bytes;
using testing::TempFolder;
using testing::write_file;
using torch::Tensor;

const DeviceMesh& mesh() {
  static const DeviceMesh m(World::local(4), {2, 2}, {"dp", "tp"});
  return m;
}

std::string raw(const Tensor& t) {
  const Tensor c = t.contiguous();
  return {static_cast<const char*>(c.const_data_ptr()), c.nbytes()};
}

// Bit for bit, also for dtypes that no operator compares.
void check_same(const Tensor& a, const Tensor& b) {
  CHECK(a.dtype() == b.dtype());
  CHECK(a.sizes() == b.sizes());
  CHECK(raw(a) == raw(b));
}

}  // namespace

TEST_CASE("safetensors: values of every dtype and shape are saved and loaded bit for bit") {
  const TempFolder folder;
  NamedTensors tensors;
  for (const auto dtype : {torch::kBool, torch::kByte, torch::kChar, torch::kUInt16, torch::kShort, torch::kUInt32,
                           torch::kInt, torch::kUInt64, torch::kLong, torch::kHalf, torch::kBFloat16, torch::kFloat,
                           torch::kDouble, torch::kComplexFloat, torch::kFloat8_e4m3fn, torch::kFloat8_e5m2,
                           torch::kFloat8_e4m3fnuz, torch::kFloat8_e5m2fnuz, torch::kFloat8_e8m0fnu}) {
    const int64_t size = static_cast<int64_t>(c10::elementSize(dtype));
    Tensor bytes = torch::randint(0, dtype == torch::kBool ? 2 : 256, {3, 5 * size}, torch::kByte);
    tensors[c10::toString(dtype)] = bytes.view(dtype);
    tensors[std::string("0-d ") + c10::toString(dtype)] = bytes.view(dtype)[1][2];
    tensors[std::string("empty ") + c10::toString(dtype)] = bytes.view(dtype).narrow(1, 0, 0);
  }
  save_safetensors(tensors, folder / "t", {});
  const NamedTensors back = load_safetensors(folder / "t");
  REQUIRE(back.size() == tensors.size());
  const SafetensorsFile file(folder / "t");
  CHECK(file.header().metadata.empty());
  for (const auto& [name, t] : tensors) {
    CAPTURE(name);
    check_same(back.at(name), t);
    check_same(file.tensor(name), t);
    CHECK(file.bytes(name) == raw(t));
    CHECK(reinterpret_cast<uintptr_t>(file.bytes(name).data()) % t.element_size() == 0);
  }
  save_safetensors({}, folder / "t");
  CHECK(load_safetensors(folder / "t").empty());
}

TEST_CASE("safetensors: the bytes of a file") {
  const TempFolder folder;
  save_safetensors({{"w", torch::tensor({{1, 2}, {3, 4}}, torch::kByte).t()}, {"s", torch::tensor(1.5F)}},
                   folder / "t");
  CHECK(read_file(folder / "t") ==
        safetensors_bytes(R"({"__metadata__":{"format":"pt"},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                          R"("w":{"dtype":"U8","shape":[2,2],"data_offsets":[4,8]}}      )",
                          std::string("\0\0\xc0\x3f\1\3\2\4", 8)));
}

TEST_CASE("safetensors: views, conjugates and tied tensors are written by value") {
  const TempFolder folder;
  const Tensor base = torch::arange(6, torch::kFloat).view({2, 3});
  const Tensor complex = torch::complex(base, base + 1);
  const Tensor leaf = torch::ones({2}).requires_grad_();
  save_safetensors({{"base", base},
                    {"t", base.t()},
                    {"row", base[1]},
                    {"step", base.view(-1).slice(0, 0, 6, 2)},
                    {"wide", base[0].expand({4, 3})},
                    {"conj", complex.conj()},
                    {"neg", torch::imag(complex.conj())},
                    {"tied", base},
                    {"leaf", leaf},
                    {"none", Tensor()}},
                   folder / "t");
  const NamedTensors back = load_safetensors(folder / "t");
  CHECK(back.size() == 9);
  check_same(back.at("t"), base.t());
  check_same(back.at("row"), base[1]);
  check_same(back.at("step"), torch::tensor({0.F, 2.F, 4.F}));
  check_same(back.at("wide"), base[0].repeat({4, 1}));
  check_same(back.at("conj"), complex.conj().resolve_conj());
  check_same(back.at("neg"), -(base + 1));
  check_same(back.at("tied"), base);
  CHECK_FALSE(back.at("tied").is_alias_of(back.at("base")));
  CHECK_FALSE(back.at("leaf").requires_grad());
}

TEST_CASE("safetensors: a view of the mapping outlives the file, and may be written to") {
  const TempFolder folder;
  save_safetensors({{"w", torch::arange(5000)}}, folder / "t");
  Tensor w;
  {
    const SafetensorsFile file(folder / "t");
    w = file.tensor("w");
    CHECK(w.data_ptr() == static_cast<const void*>(file.bytes("w").data()));
    CHECK(file.contains("w"));
    CHECK_FALSE(file.contains("v"));
  }
  const std::string before = read_file(folder / "t");
  save_safetensors({{"w", torch::zeros(7)}}, folder / "t");  // another file by this name
  CHECK(torch::equal(w, torch::arange(5000)));
  w.add_(1);
  CHECK(torch::equal(w, torch::arange(5000) + 1));
  CHECK(load_safetensors(folder / "t").at("w").numel() == 7);
  CHECK(before.size() > 5000 * 8);
}

TEST_CASE("safetensors: unaligned data") {
  const TempFolder folder;
  const std::string data = raw(torch::tensor({1, 2, 3}, torch::kLong));
  for (const std::string space : {"", " ", "  ", "   ", "    ", "     ", "      ", "       "}) {
    const std::string path =
        write_file(folder / "t", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                                   R"("w":{"dtype":"I64","shape":[3],"data_offsets":[1,25]}})" +
                                                       space,
                                                   "x" + data));
    const Tensor w = SafetensorsFile(path).tensor("w");
    CHECK(reinterpret_cast<uintptr_t>(w.data_ptr()) % 8 == 0);
    CHECK(torch::equal(w, torch::tensor({1, 2, 3})));
  }
}

TEST_CASE("safetensors: bools are 0 or 1") {
  const TempFolder folder;
  const std::string header = R"({"mask":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}})";
  const std::string path = write_file(folder / "t", safetensors_bytes(header, std::string("\1\0\2\1", 4)));
  CHECK_THROWS_WITH(load_safetensors(path),
                    Catch::Contains("'" + path + "'") && Catch::Contains("'mask' is BOOL, but element 2 is 2"));
}

TEST_CASE("safetensors: distributed tensors are gathered, each once and one at a time") {
  const TempFolder folder;
  const Tensor a = torch::randn({5, 3}), b = torch::randn({4});
  const Tensor da = distribute_tensor(a, mesh(), {Shard(0), Shard(1)});
  const NamedTensors tensors{{"a", da},
                             {"tied", da},
                             {"b", distribute_tensor(b, mesh(), {Replicate(), Replicate()})},
                             {"sum", full({3}, 2.0, mesh(), {Partial(), Replicate()})},
                             {"plain", b}};
  CommDebugMode comm;
  save_safetensors(tensors, folder / "t");
  const int64_t all = comm.total();
  CHECK(comm.counts_by_op() == std::map<std::string, int64_t>{{"save", all}});
  CommDebugMode again;
  save_safetensors({{"a", da}, {"sum", tensors.at("sum")}}, folder / "u");
  CHECK(again.total() == all);
  const NamedTensors back = load_safetensors(folder / "t");
  check_same(back.at("a"), a);
  check_same(back.at("tied"), a);
  check_same(back.at("b"), b);
  check_same(back.at("sum"), torch::full({3}, 2.0));
  check_same(back.at("plain"), b);
}

TEST_CASE("safetensors: loaded tensors are plain, also inside a MeshScope") {
  const TempFolder folder;
  save_safetensors({{"a", torch::ones({2, 2})}, {"none", torch::ones({0})}}, folder / "t");
  MeshScope scope(mesh());
  const SafetensorsFile file(folder / "t");
  for (const auto& [name, t] : load_safetensors(folder / "t")) {
    CHECK_FALSE(is_dtensor(t));
    CHECK_FALSE(is_dtensor(file.tensor(name)));
  }
}

TEST_CASE("safetensors: files shared with Python") {
  const TempFolder folder;
  const NamedTensors tensors{{"w", torch::randn({3, 2})},
                             {"half \u00fc\"", torch::randn({5}).to(torch::kBFloat16)},
                             {"mask", torch::ones({1}, torch::kBool)},
                             {"none", torch::ones({0, 2}, torch::kDouble)},
                             {"scalar", torch::tensor(7)}};
  save_safetensors(tensors, folder / "ours", {{"format", "pt"}, {"note", "1\n2"}});
  if (std::system("python3 -c 'import json, struct'") != 0) {
    WARN("skipped: there is no python3");
    return;
  }
  const std::string command = "python3 tests/checkpoint/safetensors_by_hand.py " + (folder / "ours") + " " +
                              (folder / "theirs") + " > " + (folder / "output") + " 2>&1";
  const int status = std::system(command.c_str());
  INFO(read_file(folder / "output"));
  REQUIRE(status == 0);
  const SafetensorsFile theirs(folder / "theirs");
  CHECK(theirs.header().metadata == std::map<std::string, std::string>{{"format", "pt"}, {"note", "1\n2"}});
  REQUIRE(theirs.header().entries.size() == tensors.size());
  CHECK(read_file(folder / "theirs") != read_file(folder / "ours"));
  for (const auto& [name, t] : tensors) {
    CAPTURE(name);
    check_same(theirs.tensor(name), t);
  }
}

TEST_CASE("safetensors: errors leave the older file, and name the tensor") {
  const TempFolder folder;
  const std::string path = folder / "t";
  save_safetensors({{"w", torch::ones({2})}}, path);
  const std::string before = read_file(path);
  const auto fails = [&](const NamedTensors& tensors, const std::string& words) {
    CHECK_THROWS_WITH(save_safetensors(tensors, path), Catch::Contains(words));
    CHECK(read_file(path) == before);
  };
  const DeviceMesh nobody(World::abstract(4), {4}, {"tp"});
  const Tensor sharded = distribute_tensor(torch::ones({4}), mesh(), {Shard(0), Replicate()});
  CommDebugMode comm;
  fails({{"a", sharded}, {"z", torch::ones({1}, torch::kDouble).to(torch::kComplexDouble)}},
        "'z': safetensors files have no ComplexDouble");
  fails({{"z", torch::ones({1}, torch::kFloat).to_sparse()}}, "'z' is sparse");
  fails({{"z", torch::ones({1}, torch::kMeta)}}, "'z' is a meta tensor");
  fails({{"__metadata__", torch::ones({1})}}, "'__metadata__'");
  CHECK(comm.total() == 0);
  CHECK_THROWS_AS(save_safetensors({{"z", zeros({4}, nobody, {Shard(0)})}}, path), c10::NotImplementedError);
  CHECK(read_file(path) == before);
  CHECK_THROWS_WITH(save_safetensors({}, folder / "no/such/folder"), Catch::Contains("no/such/folder"));
  CHECK_THROWS_WITH(load_safetensors(folder / "none"), Catch::Contains("No such file"));
  CHECK_THROWS_WITH(SafetensorsFile(path).tensor("v"),
                    Catch::Contains("'" + path + "'") && Catch::Contains("no tensor 'v', but 1 others, such as 'w'"));
  CHECK_THROWS_AS(SafetensorsFile(path).entry(""), c10::IndexError);
}

}  // namespace dtensor
