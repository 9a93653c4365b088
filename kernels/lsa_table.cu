// The table of peers' windows of the NVLink world: NCCL 2.28 tells load/store addresses only to device code.
#include <nccl.h>
#include <nccl_device.h>

#include "kernels/lsa_table.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 7),
              "the device API with windows needs NCCL 2.28.7 or newer");

namespace plumb::kernels {
namespace {

__global__ void fill_table(ncclWindow_t window, int32_t ranks, char** table) {
  const int32_t rank = static_cast<int32_t>(threadIdx.x);
  if (rank < ranks) table[rank] = static_cast<char*>(ncclGetLsaPointer(window, 0, rank));
}

}  // namespace

cudaError_t launch_lsa_table(void* window, int32_t ranks, char** table, cudaStream_t stream) {
  if (ranks > kMaxRanks) return cudaErrorInvalidValue;
  fill_table<<<1, kMaxRanks, 0, stream>>>(static_cast<ncclWindow_t>(window), ranks, table);
  return cudaGetLastError();
}

}  // namespace plumb::kernels
