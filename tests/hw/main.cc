// More hardware queues than the default 8: ranks on streams of their own must all run at once.
#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // before the driver starts
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
