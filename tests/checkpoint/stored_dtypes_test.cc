// Every dtype that can be saved can be loaded again, by us and by torch; the others are refused by name.
#include "checkpoint/formats/stored_dtypes.h"

#include <ATen/ops/_empty_affine_quantized.h>
#include <torch/nn.h>
#include <torch/serialize.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "checkpoint/serialize.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"
#include "tests/testing/error_text.h"

namespace dtensor {
using namespace internal;

namespace {

using testing::TempFolder;

std::vector<at::ScalarType> all_dtypes() {
  std::vector<at::ScalarType> dtypes;
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    if (can_be_stored(dtype)) dtypes.push_back(dtype);
  }
  return dtypes;
}

// With bytes that differ.
at::Tensor some(at::ScalarType dtype) {
  const at::Tensor t = at::empty({2, 3}, dtype);
  auto* bytes = static_cast<uint8_t*>(t.mutable_data_ptr());
  for (size_t i = 0; i < t.nbytes(); ++i) bytes[i] = static_cast<uint8_t>(dtype == at::kBool ? i % 2 : i + 1);
  return t;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace

TEST_CASE("stored_dtypes: every dtype is saved and loaded in both formats") {
  const TempFolder folder;
  const std::string path = folder / "f.pt";
  const auto dtypes = all_dtypes();
  CHECK(dtypes.size() == 22);
  for (const auto dtype : dtypes) {
    INFO(dtype);
    const at::Tensor value = some(dtype);
    save(value, path);
    at::Tensor ours, theirs;
    load(ours, path);
    CHECK(same(ours, value));
    torch::load(theirs, path);
    CHECK(same(theirs, value));
    save(NamedTensors{{"a", value}, {"b", at::ones({2})}}, path);
    const NamedTensors named = load_tensors(path);
    CHECK(same(named.at("a"), value));
    CHECK(same(named.at("b"), at::ones({2})));
  }
}

TEST_CASE("stored_dtypes: dtypes that cannot be loaded are not saved") {
  const TempFolder folder;
  const std::string path = folder / "f.pt";
  const at::Tensor quantized = at::_empty_affine_quantized({2}, at::kQInt8, 0.1, 0);
  const at::Tensor sparse = at::ones({2}).to_sparse();
  for (const at::Tensor& t : {quantized, sparse}) {
    CHECK_THAT(testing::error_text([&] { save(t, path); }), Catch::Contains("cannot be stored"));
    CHECK_THAT(testing::error_text([&] { save(NamedTensors{{"a", t}}, path); }), Catch::Contains("'a' of dtype"));
    torch::nn::Linear model(1, 1);
    model->register_buffer("odd", t);
    CHECK_THAT(testing::error_text([&] { save(*model, path); }), Catch::Contains("'odd' of dtype"));
  }
  CHECK_THAT(testing::error_text([&] { save(quantized, path); }), Catch::Contains("QInt8"));
  CHECK_THAT(testing::error_text([&] { save(sparse, path); }), Catch::Contains("Sparse"));
  CHECK(!std::ifstream(path).good());
}

}  // namespace dtensor
