// One wrapper per PTX instruction; section numbers are those of the PTX ISA 9.0 manual. Device only.
#pragma once

#include <cstdint>

namespace plumb::kernels::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- mbarrier, 9.7.13.15 ---

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
/// Makes initialised barriers visible to the async proxy.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool mbarrier_try_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// --- bulk copies, 9.7.9.25 ---

/// Global to shared; bytes a multiple of 16, both addresses 16-byte aligned; completes on the barrier.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
/// Shared to global, in the issuing thread's current bulk group.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until the sources of all groups of this thread but the last kPending have been read.
template <int32_t kPending = 0>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Until all groups of this thread but the last kPending are complete and visible to it.
template <int32_t kPending = 0>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
/// Orders generic and async accesses of this thread, 9.7.13.4.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }

// --- 64-bit words between GPUs, 9.7.9.8 and 9.7.9.11 ---

__device__ __forceinline__ void store_relaxed_sys(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ void store_release_sys(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t load_relaxed_sys(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ uint64_t load_acquire_sys(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
/// Returns the value before. Release only: who uses the value to read what others released fences first.
__device__ __forceinline__ uint32_t add_release_gpu(uint32_t* word, uint32_t value) {
  uint32_t before;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(word), "r"(value)
               : "memory");
  return before;
}
/// Returns the value before; orders this block's earlier accesses before those that follow on any SM that
/// sees the sum.
__device__ __forceinline__ uint32_t add_acq_rel_gpu(uint32_t* word, uint32_t value) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(word), "r"(value)
               : "memory");
  return before;
}

// --- 32-bit words between warps of a block, in shared memory, 9.7.13.5; they return the value before ---

__device__ __forceinline__ uint32_t swap_acquire_cta(uint32_t* shared, uint32_t value) {
  uint32_t before;
  asm volatile("atom.acquire.cta.shared.exch.b32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(shared_address(shared)), "r"(value)
               : "memory");
  return before;
}
/// Only where the word is `expected`.
__device__ __forceinline__ uint32_t swap_if_release_cta(uint32_t* shared, uint32_t expected, uint32_t value) {
  uint32_t before;
  asm volatile("atom.release.cta.shared.cas.b32 %0, [%1], %2, %3;"
               : "=r"(before)
               : "r"(shared_address(shared)), "r"(expected), "r"(value)
               : "memory");
  return before;
}

// --- rows, 9.7.9.8 ---

/// 16 bytes that are used once, past the L1 cache.
__device__ __forceinline__ uint4 load_once(const void* global) {
  return __ldcg(static_cast<const uint4*>(global));
}
__device__ __forceinline__ void store_once(void* global, uint4 v) { __stcg(static_cast<uint4*>(global), v); }

/// Until the kernels that this one depends on are complete and their writes are visible, 9.7.13.16. Nothing
/// when the launch has no such dependency.
__device__ __forceinline__ void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// Nanoseconds of the GPU's global timer, 10.27; its tick is coarser than 1 ns.
__device__ __forceinline__ uint64_t global_timer() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
  return t;
}

}  // namespace plumb::kernels::ptx
