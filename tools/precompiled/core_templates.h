// Virtual functions of class templates, instantiated while a header is precompiled. clang would do so at the end of
// every source, for whatever class has its virtual table there: 0.2 s for ATen's, 2 s for those of torch/nn.h. g++
// instantiates nothing while it precompiles.
#pragma once

#ifdef __clang__

#include <ATen/core/jit_type.h>

#include <iostream>

namespace dtensor::internal::precompiled {

// A call instantiates what it calls. It is compiled, but in no program.
template <typename Class>
void call_virtual_functions(Class& object, std::ostream& stream) {
  if constexpr (requires { object.Class::clone(); }) object.Class::clone();
  if constexpr (requires { object.Class::reset(); }) object.Class::reset();
  if constexpr (requires { object.Class::pretty_print(stream); }) object.Class::pretty_print(stream);
  if constexpr (requires { object.Class::containedTypes(); }) {
    object.Class::equals(object);
    object.Class::containedTypes();
    object.Class::hasFreeVariables();
  }
}

template <typename... Class>
void instantiate(Class*... objects) {
  (call_virtual_functions(*objects, std::cout), ...);
}

template <c10::TypeKind kind, typename Type>
using Element = c10::SingleElementType<kind, Type>;

inline void instantiate_core_templates(Element<c10::TypeKind::ListType, c10::ListType>* list,
                                       Element<c10::TypeKind::FutureType, c10::FutureType>* future,
                                       Element<c10::TypeKind::AwaitType, c10::AwaitType>* awaited,
                                       Element<c10::TypeKind::RRefType, c10::RRefType>* rref) {
  instantiate(list, future, awaited, rref);
}

}  // namespace dtensor::internal::precompiled

#endif  // __clang__
