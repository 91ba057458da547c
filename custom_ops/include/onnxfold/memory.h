// Memory without the C++ runtime, so that the libraries need nothing but libc, and an old one will do.
#ifndef ONNXFOLD_MEMORY_H_
#define ONNXFOLD_MEMORY_H_

#include <stddef.h>
#include <stdlib.h>

#include <new>
#include <type_traits>

namespace onnxfold {

// A copy on the heap, null where there is no memory; `free` ends it.
template <typename T>
T* copy_to_heap(const T& value) {
  static_assert(std::is_trivially_destructible<T>::value, "free calls no destructor");
  static_assert(alignof(T) <= alignof(max_align_t), "malloc aligns no further");
  void* memory = malloc(sizeof(T));
  return memory == nullptr ? nullptr : new (memory) T(value);
}

}  // namespace onnxfold

#endif  // ONNXFOLD_MEMORY_H_
