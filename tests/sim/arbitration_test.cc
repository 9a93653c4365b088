// VL arbitration: shares follow the weights exactly, whatever the packet size.
#include "sim/arbitration.h"

#include <array>
#include <cstdlib>

#include <gtest/gtest.h>

namespace plumb::sim {
namespace {

/// Serves lanes that always have packets of the given sizes; returns the bytes of each.
std::array<int64_t, 4> serve(const Lanes& lanes, std::array<int32_t, 4> packet_bytes, uint32_t ready,
                             int packets) {
  const Arbitration arbitration(lanes);
  ArbitrationState state = arbitration.initial();
  std::array<LaneDebt, 4> debts{};
  std::array<int64_t, 4> bytes{};
  for (int i = 0; i < packets; ++i) {
    const int32_t lane = arbitration.pick(state, debts, ready);
    if (lane < 0) break;
    arbitration.charge(state, packet_bytes[lane]);
    bytes[lane] += packet_bytes[lane];
  }
  return bytes;
}

Lanes table(std::vector<LaneWeight> high, std::vector<LaneWeight> low, int32_t limit = 255) {
  Lanes lanes;
  lanes.count = 4;
  lanes.high = std::move(high);
  lanes.low = std::move(low);
  lanes.high_limit = limit;
  return lanes;
}

TEST(Arbitration, WeightsAreExactToAPacket) {
  // 192 : 96 : 32 units are 6 : 3 : 1, also with packets of 65 units, of which a turn holds no whole number.
  const Lanes lanes = table({}, {{0, 192}, {1, 96}, {2, 32}});
  const int32_t packet = 4160;  // 65 units
  const auto bytes = serve(lanes, {packet, packet, packet, packet}, 7, 10000);
  EXPECT_LE(std::abs(bytes[0] - 6000 * packet), 3 * packet);  // a turn of lane 0 is at most three packets
  EXPECT_LE(std::abs(bytes[1] - 3000 * packet), 2 * packet);
  EXPECT_LE(std::abs(bytes[2] - 1000 * packet), 2 * packet);
}

TEST(Arbitration, SharesAreOfBytesNotOfPackets) {
  // Equal weights, packets of 4160 and 640 bytes: equal bytes.
  const auto bytes = serve(table({}, {{0, 64}, {1, 64}}), {4160, 640, 0, 0}, 3, 20000);
  EXPECT_LE(std::abs(bytes[0] - bytes[1]), 2 * 4160);
}

TEST(Arbitration, PacketsOfManyWeightsStillShareByWeight) {
  // 1 MiB packets against weights of 1 and 3 units: thousands of rounds of debt per packet.
  const auto bytes = serve(table({}, {{0, 1}, {1, 3}}), {1 << 20, 1 << 20, 0, 0}, 3, 4000);
  EXPECT_LE(std::abs(bytes[0] - 1000 * (int64_t{1} << 20)), 2 * (int64_t{1} << 20));
}

TEST(Arbitration, HighTableGoesFirst) {
  const Lanes lanes = table({{3, 64}}, {{0, 64}});
  EXPECT_EQ(serve(lanes, {4096, 0, 0, 4096}, 0b1001, 100)[0], 0);
  EXPECT_EQ(serve(lanes, {4096, 0, 0, 4096}, 0b0001, 100)[0], 100 * 4096);
}

TEST(Arbitration, HighLimitLetsOneLowPacketThrough) {
  // Limit 4 = 16384 bytes = four packets of 4096, then one of the low table: 4 : 1.
  const auto bytes = serve(table({{3, 64}}, {{0, 64}}, 4), {4096, 0, 0, 4096}, 0b1001, 1000);
  EXPECT_EQ(bytes[3], 800 * 4096);
  EXPECT_EQ(bytes[0], 200 * 4096);
}

TEST(Arbitration, HighLimitZeroAlternatesPackets) {
  const auto bytes = serve(table({{3, 64}}, {{0, 64}}, 0), {4096, 0, 0, 256}, 0b1001, 1000);
  EXPECT_EQ(bytes[3], 500 * 256);
  EXPECT_EQ(bytes[0], 500 * 4096);
}

TEST(Arbitration, OpenSmTablesGiveLaneZeroHalfOfThePackets) {
  // OpenSM ships high limit 0, high "0:4", low "1..14:4": lane 0 gets every other packet against all others
  // together.
  std::vector<LaneWeight> low;
  for (int32_t lane = 1; lane < 4; ++lane) low.push_back({lane, 4});
  const auto bytes = serve(table({{0, 4}}, low, 0), {4096, 4096, 4096, 4096}, 0b1111, 6000);
  EXPECT_EQ(bytes[0], 3000 * 4096);
  for (int lane = 1; lane < 4; ++lane) EXPECT_LE(std::abs(bytes[lane] - 1000 * 4096), 4096);
}

TEST(Arbitration, LaneInNoTableNeverSends) {
  EXPECT_EQ(serve(table({}, {{0, 64}}), {4096, 4096, 0, 0}, 0b10, 10)[1], 0);
}

TEST(Arbitration, EmptyTablesGiveEqualShares) {
  const auto bytes = serve(table({}, {}), {4096, 4096, 4096, 4096}, 0b1111, 4000);
  for (int64_t b : bytes) EXPECT_EQ(b, 1000 * 4096);
}

}  // namespace
}  // namespace plumb::sim
