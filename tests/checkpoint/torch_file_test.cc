// Malicious or damaged files: an error, quickly, and no code of the file runs.
#include "checkpoint/formats/torch_file.h"

#include <sys/stat.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/script.h>
#include <torch/serialize.h>

#include <chrono>

#include "checkpoint/serialize.h"
#include "tests/checkpoint/torch_zip.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::error_text;
using testing::read_file;
using testing::TempFolder;
using testing::torch_zip;

void write_bytes(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string little_endian(uint64_t v, int bytes) {
  std::string s;
  for (int i = 0; i < bytes; ++i, v >>= 8) s += static_cast<char>(v);
  return s;
}

std::string text(const std::string& s) { return "X" + little_endian(s.size(), 4) + s; }
std::string number(int64_t v) { return "\x8a\x08" + little_endian(static_cast<uint64_t>(v), 8); }
std::string tuple_of(const std::vector<int64_t>& values) {
  std::string s = "(";
  for (int64_t v : values) s += number(v);
  return s + "t";
}
// A float tensor on record "data/0", which is said to have `declared` elements.
std::string tensor(int64_t declared, int64_t offset, const std::vector<int64_t>& sizes,
                   const std::vector<int64_t>& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" + text("0") +
         text("cpu") + number(declared) + "tQ" + number(offset) + tuple_of(sizes) + tuple_of(strides) +
         "\x89"
         "NtR";
}

// What reading a file with this pickle and a record of four floats says; "" if it can be read.
std::string error_of(const std::string& pickle, bool archive = false) {
  const TempFolder folder;
  std::vector<testing::ZipRecord> records{{"data.pkl", "\x80\x02" + pickle + "."}, {"data/0", std::string(16, '\0')}};
  if (archive) records.push_back({"constants.pkl", "\x80\x02)."});
  write_bytes(folder / "f.pt", torch_zip(records));
  const auto start = std::chrono::steady_clock::now();
  const std::string error = error_text([&] { load_tensors(folder / "f.pt"); });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  if (!error.empty()) CHECK_THAT(error, Catch::Contains("f.pt"));
  return error;
}

// An archive of a TorchScript module whose class has `code`, and a tensor "w".
std::string script_archive(const std::string& code) {
  torch::jit::Module m("__torch__.Evil");
  m.register_parameter("w", torch::ones({2}), /*is_buffer=*/false);
  m.define(code);
  std::ostringstream bytes;
  m.save(bytes);
  return bytes.str();
}

torch::nn::Linear small_model() { return torch::nn::Linear(2, 1); }

std::unique_ptr<torch::optim::Optimizer> trained_optimizer(torch::nn::Linear& model) {
  auto optimizer = std::make_unique<torch::optim::Adam>(model->parameters(), torch::optim::AdamOptions(0.1));
  model(torch::ones({1, 2})).sum().backward();
  optimizer->step();
  return optimizer;
}

}  // namespace

TEST_CASE("torch_file: the contents of archives, without their code") {
  const TempFolder folder;
  auto model = small_model();
  torch::save(model, folder / "m.pt");
  const auto tensors = load_tensors(folder / "m.pt");
  CHECK(tensors.size() == 2);
  CHECK(torch::equal(tensors.at("weight"), model->weight));
  auto other = small_model();
  load(*other, folder / "m.pt");
  CHECK(torch::equal(other->weight, model->weight));
  // Lists, options without a value, undefined tensors: what optimizers hold.
  torch::optim::LBFGS lbfgs(model->parameters(), torch::optim::LBFGSOptions(0.1).history_size(2)),
      fresh(other->parameters());
  for (int i = 0; i < 3; ++i) {
    lbfgs.step([&] {
      lbfgs.zero_grad();
      auto loss = model(torch::ones({1, 2})).pow(2).sum();
      loss.backward();
      return loss;
    });
  }
  torch::save(lbfgs, folder / "o.pt");
  load(fresh, folder / "o.pt");
  const auto& a = static_cast<torch::optim::LBFGSParamState&>(*lbfgs.state().begin()->second);
  const auto& b = static_cast<torch::optim::LBFGSParamState&>(*fresh.state().begin()->second);
  CHECK(a == b);
  torch::optim::RMSprop rms(model->parameters(), 0.1), fresh_rms(other->parameters(), 0.5);
  rms.step();
  torch::save(rms, folder / "rms.pt");
  load(fresh_rms, folder / "rms.pt");
  const auto* state =
      static_cast<torch::optim::RMSpropParamState*>(fresh_rms.state().at(other->weight.unsafeGetTensorImpl()).get());
  CHECK(state->step() == 1);
  CHECK(!state->momentum_buffer().defined());
  CHECK(static_cast<torch::optim::RMSpropOptions&>(fresh_rms.param_groups()[0].options()).lr() == 0.1);
}

TEST_CASE("torch_file: code in an archive does not run") {
  const TempFolder folder;
  // torch::jit::load would run it.
  const std::string path = folder / "evil.pt";
  write_bytes(path, script_archive("def __getstate__(self):\n  return (self.w, 1)\n"
                                   "def __setstate__(self, state: Tuple[Tensor, int]):\n"
                                   "  assert False, 'code of the file runs'\n  self.w = state[0]\n"));
  CHECK_THAT(error_text([&] { torch::jit::load(path); }), Catch::Contains("code of the file runs"));
  CHECK(torch::equal(load_tensors(path).at("0"), torch::ones({2})));
  auto model = small_model();
  CHECK_THAT(error_text([&] { load(*model, path); }),
             Catch::Contains("__torch__.Evil") && Catch::Contains("evil.pt") && Catch::Contains("which is not run"));
  const auto optimizer = trained_optimizer(model);
  CHECK_THAT(error_text([&] { load(*optimizer, path); }), Catch::Contains("which is not run"));
  // Nor does its forward, which does not stand in the way.
  write_bytes(path, script_archive("def forward(self, x: Tensor) -> Tensor:\n  return x + self.w\n"));
  CHECK(torch::equal(load_tensors(path).at("w"), torch::ones({2})));
  // Of Python's functions none but those that make tensors.
  CHECK_THAT(error_of("cposix\nsystem\n(" + text("true") + "tR"), Catch::Contains("made by posix.system"));
  CHECK_THAT(error_of("cposix\nsystem\n(" + text("true") + "tR", /*archive=*/true), Catch::Contains("posix.system"));
  CHECK_THAT(error_of("cposix\nThing\n)\x81}b"), Catch::Contains("class posix.Thing"));
  CHECK_THAT(error_of("cposix\nThing\n)\x81}b", /*archive=*/true), Catch::Contains("class posix.Thing"));
  CHECK_THAT(error_of("c__torch__\nThing\n)\x81}b"), Catch::Contains("class __torch__.Thing"));
}

TEST_CASE("torch_file: tensors beyond their storage are errors") {
  const int64_t most = std::numeric_limits<int64_t>::max();
  CHECK(error_of(tensor(4, 0, {2, 2}, {2, 1})).empty());
  CHECK(error_of(tensor(4, 3, {1, 5}, {7, 0})).empty());
  CHECK(error_of(tensor(4, 4, {0, 5}, {1, 1})).empty());
  CHECK(error_of(tensor(4, 0, {}, {})).empty());
  const auto beyond = Catch::Contains("reaches beyond the 4 elements of its storage");
  CHECK_THAT(error_of(tensor(4, 0, {5}, {1})), beyond);
  CHECK_THAT(error_of(tensor(4, 1, {2, 2}, {2, 1})), beyond);
  CHECK_THAT(error_of(tensor(4, 4, {}, {})), beyond);
  CHECK_THAT(error_of(tensor(4, 5, {0}, {1})), beyond);
  CHECK_THAT(error_of(tensor(4, 0, {2}, {most / 2})), beyond);
  const auto damaged = Catch::Contains("damaged: a tensor");
  CHECK_THAT(error_of(tensor(4, -1, {2}, {1})), damaged);
  CHECK_THAT(error_of(tensor(4, 3, {2}, {-1})), damaged);
  CHECK_THAT(error_of(tensor(4, 0, {-2}, {1})), damaged);
  CHECK_THAT(error_of(tensor(4, 0, {3}, {most})), damaged);
  CHECK_THAT(error_of(tensor(4, most, {2}, {1})), damaged);
  CHECK_THAT(error_of(tensor(4, 0, {most, most}, {0, 0})), damaged);
  CHECK_THAT(error_of(tensor(4, 0, {most, most, 0}, {0, 0, 1})), damaged);
  CHECK_THAT(error_of(tensor(4, 0, {2}, {1, 1})), damaged);
  CHECK_THAT(error_of(tensor(4, 0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1))), damaged);
  for (const int64_t declared : {int64_t{3}, int64_t{5}, int64_t{-4}, most})
    CHECK_THAT(error_of(tensor(declared, 0, {1}, {1})), Catch::Contains("has 16 bytes, not"));
}

TEST_CASE("torch_file: values that contain themselves, deep ones, and small ones that expand") {
  CHECK_THAT(error_of("]q\x01h\x01"
                      "a"),
             Catch::Contains("more than 1000 deep, or themselves"));
  CHECK_THAT(error_of("}q\x01" + text("a") + "h\x01s"), Catch::Contains("or themselves"));
  CHECK_THAT(error_of("c__torch__\nM\n)\x81q\x01}" + text("a") +
                          "h\x01"
                          "sb",
                      /*archive=*/true),
             Catch::Contains("or themselves"));
  std::string deep, wide = "]";
  for (int i = 0; i < 100'000; ++i) deep += "]";
  for (int i = 1; i < 100'000; ++i) deep += "a";
  CHECK_THAT(error_of(deep), Catch::Contains("more than 1000 deep"));
  std::string fine;
  for (int i = 0; i < 900; ++i) fine += "]";
  for (int i = 1; i < 900; ++i) fine += "a";
  CHECK(error_of(fine).empty());
  // Each list holds the one before ten times: 10^20 values in 400 bytes.
  std::string unfolding = "]q\x01";
  for (int i = 0; i < 20; ++i) {
    unfolding += "](";
    for (int j = 0; j < 10; ++j) unfolding += "h\x01";
    unfolding += "eq\x01";
  }
  CHECK_THAT(error_of(unfolding), Catch::Contains("unfolds to more than 10"));  // few, as it is small
  // A name that grows with every step: 2^20 tensors with names of up to 20 million letters.
  std::string names = tensor(4, 0, {1}, {1}) + "q\x01";
  for (int i = 0; i < 20; ++i)
    names += "}(" + text(std::string(1'000'000, 'a')) + "h\x01" + text(std::string(1'000'000, 'b')) + "h\x01uq\x01";
  CHECK_THAT(error_of(names), Catch::Contains("its names have more than"));
  CHECK_THAT(error_of(std::string(11'000'000, 'N')), Catch::Contains("more than 10000000 values"));
  CHECK_THAT(error_of("}(" + text("a.b") + tensor(4, 0, {1}, {1}) + text("a") + "}" + text("b") +
                      tensor(4, 0, {1}, {1}) + "su"),
             Catch::Contains("two tensors 'a.b'"));
  // In archives an object that is its own attribute.
  const TempFolder folder;
  write_bytes(folder / "m.pt", torch_zip({{"data.pkl",
                                           "\x80\x02"
                                           "c__torch__\nM\n)\x81q\x01}" +
                                               text("a") + "h\x01sb."},
                                          {"constants.pkl", "\x80\x02)."}}));
  auto model = small_model();
  CHECK_THAT(error_text([&] { load(*model, folder / "m.pt"); }), Catch::Contains("contain") && Catch::Contains("m.pt"));
}

TEST_CASE("torch_file: two parameters with one state") {
  const TempFolder folder;
  const std::string path = folder / "o.pt";
  auto p = torch::ones({2}).requires_grad_(), q = torch::ones({2}).requires_grad_();
  p.mutable_grad() = q.mutable_grad() = torch::ones({2});
  torch::optim::Adam twice(std::vector<torch::Tensor>{p, p}, 0.1), both(std::vector<torch::Tensor>{p, q}, 0.1);
  twice.step();
  both.step();
  torch::save(twice, path);
  CHECK_THAT(error_text([&] { load(both, path); }), Catch::Contains("two parameters have one state"));
  CHECK(both.state().size() == 2);
  CHECK_NOTHROW(both.step());
}

TEST_CASE("torch_file: records that are compressed, missing, or overlap") {
  const TempFolder folder;
  const std::string path = folder / "f.pt", dict = "\x80\x02}" + text("a") + tensor(4, 0, {4}, {1}) + "s.";
  const auto error = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    return error_text([&] { load_tensors(path); });
  };
  CHECK(error(torch_zip({{"data.pkl", dict}, {"data/0", std::string(16, 'x')}})).empty());
  // 0.1 MB that inflate to 100 MB.
  CHECK_THAT(error(torch_zip({{"data.pkl", dict}, {"data/0", std::string(100'000'000, '\0'), true}})),
             Catch::Contains("'data/0' is compressed") && Catch::Contains(path));
  CHECK_THAT(error(torch_zip({{"data.pkl", std::string(1'000'000, 'N'), true}})), Catch::Contains("is compressed"));
  CHECK(
      error(torch_zip({{"data.pkl", dict}, {"data/0", std::string(16, 'x')}, {"code/x", std::string(5000, 'x'), true}}))
          .empty());  // as TorchScript's code is
  CHECK_THAT(error(torch_zip({{"data.pkl", dict}})), Catch::Contains("'data/0' is missing"));
  CHECK_THAT(error(torch_zip({{"data/0", std::string(16, 'x')}})), Catch::Contains("'data.pkl' is missing"));
  CHECK_THAT(error(torch_zip({{"data.pkl", dict}, {"data/0", std::string(16, 'x')}, {"byteorder", "big"}})),
             Catch::Contains("big-endian"));
  // Two entries of the list for the same bytes.
  std::string twice =
      torch_zip({{"data.pkl", dict}, {"data/0", std::string(16, 'x')}, {"data/1", std::string(16, 'y')}});
  const auto offset_of = [&](const std::string& name) { return twice.rfind("archive/" + name) - 4; };
  twice.replace(offset_of("data/1"), 4, twice.substr(offset_of("data/0"), 4));
  CHECK_THAT(error(twice), Catch::Contains("overlap"));
  CHECK_THAT(error(""), Catch::Contains("no zip archive"));
  CHECK_THAT(error(std::string(100, 'P')), Catch::Contains("no zip archive"));
  CHECK_THAT(error_text([&] { load_tensors(folder / ""); }), Catch::Contains("no regular file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(error_text([&] { load_tensors(folder / "pipe"); }), Catch::Contains("no regular file"));
}

}  // namespace dtensor
