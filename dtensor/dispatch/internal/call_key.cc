#include "dtensor/dispatch/internal/call_key.h"

#include <c10/core/DefaultDtype.h>

#include <bit>

namespace dtensor::internal {
namespace {

enum Tag : uint64_t { kNone = 1, kBool, kInt, kDouble, kComplex, kString, kDevice, kIntList, kList, kOther };

// Appends the type of `v` and, unless `type_only`, its contents; lists element by element. Of values that cannot be
// encoded (generators, custom objects) only the type counts.
void append_static(CacheKey& key, const c10::IValue& v, bool type_only) {
  if (v.isNone()) {
    key.push_back(kNone);
  } else if (v.isBool()) {
    key.push_back(kBool);
    if (!type_only) key.push_back(v.toBool());
  } else if (v.isInt()) {
    key.push_back(kInt);
    if (!type_only) key.push_back(static_cast<uint64_t>(v.toInt()));
  } else if (v.isDouble()) {
    key.push_back(kDouble);
    if (!type_only) key.push_back(std::bit_cast<uint64_t>(v.toDouble()));
  } else if (v.isComplexDouble()) {
    key.push_back(kComplex);
    if (!type_only) {
      key.push_back(std::bit_cast<uint64_t>(v.toComplexDouble().real()));
      key.push_back(std::bit_cast<uint64_t>(v.toComplexDouble().imag()));
    }
  } else if (v.isString()) {
    key.push_back(kString);
    if (!type_only) append_text(key, v.toStringRef());
  } else if (v.isDevice()) {
    key.push_back(kDevice);
    if (!type_only)
      key.push_back(static_cast<uint64_t>(v.toDevice().type()) << 8 | static_cast<uint8_t>(v.toDevice().index()));
  } else if (v.isIntList()) {
    key.push_back(kIntList);
    const auto list = v.toIntList();
    key.push_back(list.size());
    if (!type_only) {
      for (int64_t x : list) key.push_back(static_cast<uint64_t>(x));
    }
  } else if (v.isList()) {
    key.push_back(kList);
    const auto list = v.toListRef();
    key.push_back(list.size());
    for (const auto& x : list) append_static(key, x, type_only);
  } else {
    key.push_back(kOther);
  }
}

// Appends the class of a number whose value is otherwise irrelevant: whether it is finite, and for a divisor whether it
// is 0.
void append_class(CacheKey& key, const c10::IValue& value, bool divisor) {
  NumberClass number = number_class(value);
  if (number == NumberClass::kZero && !divisor) number = NumberClass::kOrdinary;
  key.push_back(static_cast<uint64_t>(number));
}

}  // namespace

void begin_key(CacheKey& key, const OpInfo& info, const OpInfo::Resolved& resolved, const CallContext& context) {
  key.push_back(reinterpret_cast<uintptr_t>(&info));
  key.push_back(resolved.generation);
  key.push_back(
      static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));  // what integers divided by integers become
  context.append_to_key(key);
}

void append_ints(CacheKey& key, c10::ArrayRef<int64_t> ints) {
  key.push_back(kIntList);
  key.push_back(ints.size());
  for (const int64_t x : ints) key.push_back(static_cast<uint64_t>(x));
}

void append_argument(CacheKey& key, const OpInfo::Resolved& resolved, size_t i, const c10::IValue& value) {
  append_static(key, value, resolved.value_free[i]);
  if (resolved.value_free[i]) append_class(key, value, resolved.divisor[i]);
}

CacheKey make_key(const OpInfo& info, const OpInfo::Resolved& resolved, const Inputs& in,
                  c10::ArrayRef<c10::IValue> args) {
  CacheKey key;
  begin_key(key, info, resolved, in.context);
  for (size_t i = 0; i < args.size(); ++i) {
    const ArgSlot& slot = in.slots[i];
    if (slot.kind == ArgSlot::Kind::kStatic) {
      append_argument(key, resolved, i, args[i]);
      continue;
    }
    if (slot.kind == ArgSlot::Kind::kTensorList) key.push_back(slot.count);
    for (int k = slot.first; k < slot.first + slot.count; ++k) {
      key.push_back(in.tensors[k].defined() ? spec_of(in.tensors[k])->id() : 0);
    }
  }
  return key;
}

}  // namespace dtensor::internal
