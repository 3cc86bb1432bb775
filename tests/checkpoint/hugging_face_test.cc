// Hugging Face's layout: split and put together again, read by name, every difference between index and files refused.
#include "checkpoint/hugging_face.h"

#include <sys/stat.h>
#include <torch/nn.h>

#include <fstream>

#include "checkpoint/serialize.h"
#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/checkpoint/safetensors_files.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"

namespace dtensor {
namespace {

namespace nn = torch::nn;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;
using torch::Tensor;

const char* const kIndex = "model.safetensors.index.json";

bool exists(const std::string& path) { return std::ifstream(path).good(); }

// Three files: a and b (8 bytes each), big (40), c and none (8 and 0).
NamedTensors three_files() {
  return {{"a", torch::arange(2, torch::kFloat)},
          {"b", torch::arange(8, torch::kByte)},
          {"big", torch::arange(5)},
          {"c", torch::ones({}, torch::kDouble)},
          {"none", torch::ones({0, 3})}};
}

void check_same(const NamedTensors& a, const NamedTensors& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, t] : a) {
    CAPTURE(name);
    CHECK(b.at(name).dtype() == t.dtype());
    CHECK(torch::equal(b.at(name), t));
  }
}

std::string index_of(const std::string& weight_map, const std::string& metadata = "{}") {
  return R"({"metadata":)" + metadata + R"(,"weight_map":)" + weight_map + "}";
}

}  // namespace

TEST_CASE("hugging_face: files of limited size and their index") {
  const TempFolder folder;
  const NamedTensors tensors = three_files();
  const std::string path = folder / "model";
  save_hugging_face(tensors, path, 16);
  CHECK(read_file(path + "/" + kIndex) == R"({
  "metadata": {
    "total_size": 64
  },
  "weight_map": {
    "a": "model-00001-of-00003.safetensors",
    "b": "model-00001-of-00003.safetensors",
    "big": "model-00002-of-00003.safetensors",
    "c": "model-00003-of-00003.safetensors",
    "none": "model-00003-of-00003.safetensors"
  }
}
)");
  CHECK(load_safetensors(path + "/model-00002-of-00003.safetensors").size() == 1);
  for (const std::string& p : {path, path + "/", path + "/" + kIndex}) {
    const HuggingFaceFolder weights(p);
    CHECK(weights.files().size() == 3);
    CHECK(weights.names() == std::vector<std::string>{"a", "b", "big", "c", "none"});
    CHECK(weights.contains("b"));
    CHECK_FALSE(weights.contains("d"));
    CHECK(torch::equal(weights.tensor("big"), tensors.at("big")));
    CHECK(weights.file_of("big").path() == path + "/model-00002-of-00003.safetensors");
    CHECK(weights.file_of("c").header().metadata.at("format") == "pt");
    CHECK_THROWS_WITH(weights.tensor("d"), Catch::Contains(path) && Catch::Contains("no tensor 'd', but 5 others"));
    check_same(weights.tensors(), tensors);
  }
}

TEST_CASE("hugging_face: a single file needs no index, and replaces several") {
  const TempFolder folder;
  const std::string path = folder / "model";
  write_file((save_hugging_face(three_files(), path, 1), path + "/config.json"), "{}");
  CHECK(HuggingFaceFolder(path).files().size() == 5);
  write_file(path + "/model-1-of-2.safetensors", "mine");

  const NamedTensors other{{"w", torch::ones({3})}};
  save_hugging_face(other, path);
  CHECK(exists(path + "/model.safetensors"));
  CHECK_FALSE(exists(path + "/" + kIndex));
  CHECK_FALSE(exists(path + "/model-00001-of-00005.safetensors"));
  CHECK(exists(path + "/config.json"));
  CHECK(exists(path + "/model-1-of-2.safetensors"));
  check_same(HuggingFaceFolder(path).tensors(), other);
  check_same(HuggingFaceFolder(path + "/model.safetensors").tensors(), other);

  save_hugging_face(three_files(), path, 40);
  CHECK_FALSE(exists(path + "/model.safetensors"));
  check_same(HuggingFaceFolder(path).tensors(), three_files());
  save_hugging_face({}, path);
  CHECK(HuggingFaceFolder(path).names().empty());
}

TEST_CASE("hugging_face: an error keeps the older weights") {
  const TempFolder folder;
  const std::string path = folder / "model";
  save_hugging_face(three_files(), path, 16);
  const DeviceMesh nobody(World::abstract(4), {4}, {"tp"});
  NamedTensors without_values = three_files();
  without_values["z"] = zeros({40}, nobody, {Shard(0)});
  CHECK_THROWS_AS(save_hugging_face(without_values, path, 16), c10::NotImplementedError);
  check_same(HuggingFaceFolder(path).tensors(), three_files());
  CHECK_FALSE(exists(path + "/model-00001-of-00004.safetensors"));
  CHECK_THROWS_AS(save_hugging_face({{"c", torch::ones({1}, torch::kComplexDouble)}}, path), c10::TypeError);
  CHECK_THROWS_AS(save_hugging_face({}, path, 0), c10::ValueError);
  CHECK_THROWS_WITH(save_hugging_face({}, folder / "no/folder"),
                    Catch::Contains("no/folder' cannot be made: No such file"));
  ::mkdir((folder / "other").c_str(), 0700);
  ::mkdir((folder / "other/model.safetensors").c_str(), 0700);
  CHECK_THROWS_WITH(save_hugging_face({}, folder / "other"), Catch::Contains("other/model.safetensors'"));
  check_same(HuggingFaceFolder(path).tensors(), three_files());
}

TEST_CASE("hugging_face: a difference between index and files names both") {
  const TempFolder folder;
  const std::string path = folder / "model", one = path + "/one", two = path + "/two", index = path + "/" + kIndex;
  ::mkdir(path.c_str(), 0700);
  save_safetensors({{"a", torch::ones({2})}, {"b", torch::ones({2})}}, one);
  save_safetensors({{"c", torch::ones({2})}}, two);
  const auto refused = [&](const std::string& text, const std::vector<std::string>& words) {
    CAPTURE(text);
    write_file(index, text);
    for (const std::string& word : words) CHECK_THROWS_WITH(HuggingFaceFolder(path), Catch::Contains(word));
    CHECK_THROWS_AS(HuggingFaceFolder(path), c10::Error);
  };
  const std::string all = R"({"a":"one","b":"one","c":"two"})";
  write_file(index, index_of(all, R"({"total_size":24})"));
  CHECK(HuggingFaceFolder(path).names().size() == 3);
  write_file(index, R"({"weight_map":)" + all + R"(,"more":[1]})");
  CHECK(HuggingFaceFolder(path).names().size() == 3);
  write_file(index, index_of(all, R"({"total_parameters":6})"));
  CHECK(HuggingFaceFolder(path).names().size() == 3);

  refused(index_of(R"({"a":"one","b":"one","c":"one"})"), {index, one, "'c'", "does not hold it"});
  refused(index_of(R"({"a":"one","b":"one","c":"two","d":"two"})"), {index, two, "'d'", "does not hold it"});
  refused(index_of(R"({"a":"one","c":"two"})"), {index, one, "'b'", "does not name"});
  refused(index_of(R"({"a":"one","b":"one","c":"three"})"), {index, path + "/three", "'c'", "there is no such file"});
  refused(index_of(all, R"({"total_size":25})"), {index, "25 bytes", "hold 24"});
  save_safetensors({{"c", torch::ones({2})}, {"a", torch::zeros({2})}}, two);
  refused(index_of(all), {index, one, two, "'a'"});
  write_file(two, "torn");
  refused(index_of(all), {two, "4 bytes, too few"});
}

TEST_CASE("hugging_face: an invalid index, or one that leads out of its folder") {
  const TempFolder folder;
  const std::string path = folder / "model", index = path + "/" + kIndex;
  ::mkdir(path.c_str(), 0700);
  save_safetensors({{"a", torch::ones({2})}}, folder / "outside");
  const auto refused = [&](const std::string& text, const std::string& words) {
    CAPTURE(text);
    write_file(index, text);
    CHECK_THROWS_WITH(HuggingFaceFolder(path), Catch::Contains("'" + index + "'") && Catch::Contains(words));
  };
  const std::vector<std::string> outside{"../outside", folder / "outside", "", ".", "..", "a/b", "a\\u0000"};
  for (const std::string& file : outside) {
    refused(index_of(R"({"a":")" + file + R"("})"), "no name of a file beside the index");
  }
  refused(index_of(R"({"a":1})"), "no file for 'a'");
  refused(index_of("[]"), "no weight_map");
  refused("{}", "no weight_map");
  refused(index_of(R"({"a":"x","a":"y"})"), "key 'a' twice");
  refused(R"({"weight_map":{},"weight_map":{}})", "key 'weight_map' twice");
  refused(index_of("{}", "[]"), "metadata is no object");
  refused(index_of("{}", R"({"total_size":-1})"), "total_size is no number");
  refused(index_of("{}", R"({"total_size":1e3})"), "total_size is no number");
  refused(index_of("{}", R"({"total_size":9223372036854775808})"), "total_size is no number");
  refused("{", "no JSON at byte");
  refused("", "no JSON at byte");
  refused("torn", "no JSON at byte");
  refused(R"({"weight_map":{},"metadata":{"x":1e400}})", "a number beyond");
  refused(index_of("{}") + "x", "no JSON at byte");
  refused(index_of("{}") + std::string(1, '\0') + "x", "a byte of zeros");
  refused(R"({"weight_map":)" + std::string(1'000'000, '['), "more than 16 levels");
  std::string many = R"({"weight_map":[0)";
  for (int i = 0; i < 4'000'000; ++i) many += ",0";
  refused(many + "]}", "more than 4000000 values");
}

TEST_CASE("hugging_face: folders without weights, or with two kinds of them") {
  const TempFolder folder;
  CHECK_THROWS_WITH(HuggingFaceFolder(folder / ""),
                    Catch::Contains("neither model.safetensors nor " + std::string(kIndex)));
  CHECK_THROWS_WITH(HuggingFaceFolder(folder / "none"), Catch::Contains("No such file"));
  save_hugging_face({{"a", torch::ones({2})}}, folder / "");
  write_file(folder / kIndex, index_of(R"({"a":"model.safetensors"})"));
  CHECK_THROWS_WITH(HuggingFaceFolder(folder / ""), Catch::Contains("both model.safetensors and"));
  CHECK(HuggingFaceFolder(folder / kIndex).names().size() == 1);
  CHECK(HuggingFaceFolder(folder / "model.safetensors").names().size() == 1);
}

TEST_CASE("hugging_face: safetensors files are recognised by their content") {
  const TempFolder folder;
  save_hugging_face(three_files(), folder / "several", 16);
  save_hugging_face(three_files(), folder / "single");
  save_safetensors({}, folder / "empty.pt");
  // A header whose length, 123, looks like '{'.
  const std::string header = R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  write_file(folder / "brace", testing::safetensors_bytes(header + std::string(123 - header.size(), ' '), ""));
  ::mkdir((folder / "plain").c_str(), 0700);
  save({{"a", torch::ones({2})}}, folder / "pickle.safetensors");
  write_file(folder / "nothing", "");
  write_file(folder / "short", std::string(8, '\0'));
  write_file(folder / "long", testing::safetensors_bytes("{}", "", 3));
  for (const char* name :
       {"several", "several/model.safetensors.index.json", "several/model-00001-of-00003.safetensors", "single",
        "single/model.safetensors", "empty.pt", "brace"}) {
    CAPTURE(name);
    CHECK(holds_safetensors(folder / name));
    CHECK_NOTHROW(HuggingFaceFolder(folder / name));
  }
  for (const char* name : {"plain", "pickle.safetensors", "nothing", "short", "long", "no such file"}) {
    CAPTURE(name);
    CHECK_FALSE(holds_safetensors(folder / name));
  }
}

TEST_CASE("hugging_face: modules keep their layouts and load their parts without communication") {
  const TempFolder folder;
  const auto make = [] {
    nn::Sequential model(nn::Linear(5, 3), nn::Linear(3, 2));
    model->ptr(1)->register_parameter("tied", model->ptr<nn::LinearImpl>(0)->weight);
    return model;
  };
  auto model = make(), other = make();
  const DeviceMesh grid(World::local(4), {2, 2}, {"dp", "tp"});
  distribute_module(*other, grid, [](const std::string& name, nn::Module& part, const DeviceMesh& mesh) {
    if (name == "1") shard_parameter(part, "weight", mesh, {Shard(1), Shard(0)});
  });
  const Tensor weight = other->named_parameters()["1.weight"];
  NamedTensors values = state_dict(*model);
  REQUIRE(values.erase("1.tied") == 1);  // as others write tied parameters
  save_hugging_face(values, folder / "model", 24);
  save_safetensors(values, folder / "file");
  for (const char* name : {"model", "file"}) {
    CAPTURE(name);
    {
      torch::NoGradGuard no_grad;
      for (auto& p : other->parameters()) p.zero_();
    }
    CommDebugMode comm;
    load(*other, folder / name);
    CHECK(comm.total() == 0);
    CHECK(other->named_parameters()["1.weight"].is_same(weight));
    CHECK(DTensor(weight).placements() == Placements{Shard(1), Shard(0)});
    for (const auto& p : other->named_parameters())
      CHECK(torch::equal(full_tensor(p.value()), state_dict(*model).at(p.key())));
  }
  values.erase("1.bias");
  values["extra"] = torch::ones({1});
  save_safetensors(values, folder / "other");
  CHECK_THROWS_WITH(load(*other, folder / "other"), Catch::Contains("missing '1.bias'; unexpected 'extra'") &&
                                                        Catch::Contains("'" + (folder / "other") + "'"));
  const NamedTensors loaded = load_tensors(folder / "model");
  CHECK(loaded.size() == state_dict(*model).size() - 1);
  check_same(loaded, HuggingFaceFolder(folder / "model").tensors());
}

}  // namespace dtensor
