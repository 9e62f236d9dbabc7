// A call of XLA's as its C interface hands it over, which every jaxlib brings along (xla/ffi/api/c_api.h). Its C++
// interface says the same in templates, and compiling those takes longer than everything else here.

#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "xla/ffi/api/c_api.h"

namespace detente {

// An operand or a result. One that is not there has a count that nothing fits.
struct Buffer {
  XLA_FFI_DataType dtype = XLA_FFI_DataType_INVALID;
  void* data = nullptr;
  int64_t count = -1;

  Buffer() = default;
  explicit Buffer(const void* handed) {
    const auto* buffer = static_cast<const XLA_FFI_Buffer*>(handed);
    dtype = buffer->dtype, data = buffer->data, count = 1;
    for (int64_t d = 0; d < buffer->rank; ++d) count *= buffer->dims[d];
  }

  template <typename Number = float>
  Number* as() const {
    return static_cast<Number*>(data);
  }

  // 0 of a kind that no kernel of ours is given.
  int64_t bytes() const {
    switch (dtype) {
      case XLA_FFI_DataType_PRED:
      case XLA_FFI_DataType_S8:
      case XLA_FFI_DataType_U8:
        return count;
      case XLA_FFI_DataType_S16:
      case XLA_FFI_DataType_U16:
      case XLA_FFI_DataType_F16:
      case XLA_FFI_DataType_BF16:
        return 2 * count;
      case XLA_FFI_DataType_S32:
      case XLA_FFI_DataType_U32:
      case XLA_FFI_DataType_F32:
        return 4 * count;
      case XLA_FFI_DataType_S64:
      case XLA_FFI_DataType_U64:
      case XLA_FFI_DataType_F64:
        return 8 * count;
      default:
        return 0;
    }
  }
};

// The threads that XLA computes with.
class Pool {
 public:
  Pool(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context) : api_(api), context_(context) {}

  int64_t threads() const {
    int64_t found = 1;
    XLA_FFI_ThreadPool_NumThreads_Args asked{};
    asked.struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE;
    asked.ctx = context_;
    asked.num_threads = &found;
    return forget(api_->XLA_FFI_ThreadPool_NumThreads(&asked)) ? found : 1;
  }

  // Where there is no pool the task is done here.
  template <typename Task>
  void schedule(Task task) const {
    auto* held = new Task(std::move(task));
    XLA_FFI_ThreadPool_Schedule_Args asked{};
    asked.struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE;
    asked.ctx = context_;
    asked.task = &run<Task>;
    asked.data = held;
    if (!forget(api_->XLA_FFI_ThreadPool_Schedule(&asked))) run<Task>(held);
  }

 private:
  const XLA_FFI_Api* api_;
  XLA_FFI_ExecutionContext* context_;

  template <typename Task>
  static void run(void* held) {
    auto* task = static_cast<Task*>(held);
    (*task)();
    delete task;
  }

  // Whether there was none.
  bool forget(XLA_FFI_Error* error) const {
    if (error == nullptr) return true;
    XLA_FFI_Error_Destroy_Args asked{};
    asked.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
    asked.error = error;
    api_->XLA_FFI_Error_Destroy(&asked);
    return false;
  }
};

class Call {
 public:
  explicit Call(const XLA_FFI_CallFrame* frame) : frame_(frame) {}

  int64_t operands() const { return frame_->args.size; }
  int64_t results() const { return frame_->rets.size; }
  Buffer operand(int64_t i) const { return i < operands() ? Buffer(frame_->args.args[i]) : Buffer(); }
  Buffer result(int64_t i) const { return i < results() ? Buffer(frame_->rets.rets[i]) : Buffer(); }
  Pool pool() const { return Pool(frame_->api, frame_->ctx); }

  // What the call says of itself, by name; 0 where it does not, which is no size that anybody takes.
  template <typename Number = int64_t>
  Number of(std::string_view name) const {
    static_assert(std::is_same_v<Number, int64_t> || std::is_same_v<Number, bool> || std::is_same_v<Number, float>);
    constexpr XLA_FFI_DataType kind = std::is_same_v<Number, int64_t> ? XLA_FFI_DataType_S64
                                      : std::is_same_v<Number, bool>  ? XLA_FFI_DataType_PRED
                                                                      : XLA_FFI_DataType_F32;
    const XLA_FFI_Attrs& said = frame_->attrs;
    for (int64_t i = 0; i < said.size; ++i) {
      if (said.types[i] != XLA_FFI_AttrType_SCALAR || name != std::string_view(said.names[i]->ptr, said.names[i]->len)) {
        continue;
      }
      const auto* scalar = static_cast<const XLA_FFI_Scalar*>(said.attrs[i]);
      return scalar->dtype == kind ? *static_cast<const Number*>(scalar->value) : Number{};
    }
    return Number{};
  }

 private:
  const XLA_FFI_CallFrame* frame_;
};

// What is wrong, or nothing.
using Body = std::string (*)(const Call&);

// XLA asks once, before any call, what interface a handler was made for.
inline XLA_FFI_Error* handled(XLA_FFI_CallFrame* frame, Body body) {
  for (auto* asked = frame->extension_start; asked != nullptr; asked = asked->next) {
    if (asked->type != XLA_FFI_Extension_Metadata) continue;
    XLA_FFI_Metadata* told = reinterpret_cast<XLA_FFI_Metadata_Extension*>(asked)->metadata;
    told->api_version.major_version = XLA_FFI_API_MAJOR;
    told->api_version.minor_version = XLA_FFI_API_MINOR;
    told->traits = 0;
    return nullptr;
  }
  std::string wrong;
  try {
    wrong = body(Call(frame));
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  if (wrong.empty()) return nullptr;
  XLA_FFI_Error_Create_Args made{};
  made.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  made.message = wrong.c_str();
  made.errc = XLA_FFI_Error_Code_INTERNAL;
  return frame->api->XLA_FFI_Error_Create(&made);
}

}  // namespace detente

// `name` is how a program calls `body`.
#define DETENTE_HANDLER(name, body) \
  extern "C" XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) { return detente::handled(frame, body); }
