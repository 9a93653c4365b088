// Parsing and printing of quantities.
#include "model/units.h"

#include <gtest/gtest.h>

#include <clocale>
#include <limits>

namespace plumb {
namespace {

TEST(FieldCases, B52_SameRateInAnyUnitIsEqual) {
  // 400e9 bit / 8 = 50e9 byte; all three products are exact in double.
  const BytesPerSecond expected{50e9};
  for (const char* text :
       {"400Gbps", "400 Gbit/s", "400 Gb/s", "50GBps", "50 GB/s", "50000MBps", "0.05 TB/s"})
    EXPECT_EQ(parse_rate(text), expected) << text;
  // 46.566 is 50e9 / 2^30 = 46.56613 rounded to five digits: at most 0.0005 / 46.566 = 1.1e-5 off.
  ASSERT_TRUE(parse_rate("46.566GiBps"));
  EXPECT_NEAR(parse_rate("46.566GiBps")->value / 50e9, 1.0, 1.1e-5);
  EXPECT_EQ(parse_rate("46.566 GiB/s"), parse_rate("46.566GiBps"));
}

TEST(FieldCases, B52_NumberWithoutUnitIsRefused) {
  EXPECT_FALSE(parse_rate("400"));
  EXPECT_FALSE(parse_rate("400 "));
  EXPECT_FALSE(parse_bytes("400"));
  EXPECT_FALSE(parse_seconds("400"));
  EXPECT_FALSE(parse_per_second("400"));
  EXPECT_FALSE(parse_percent("400"));
}

TEST(Units, LowerCaseBIsABitAndUpperCaseAByte) {
  EXPECT_EQ(parse_rate("8 Gb/s")->value * 8, parse_rate("8 GB/s")->value);
  EXPECT_EQ(parse_rate("8 bit/s"), BytesPerSecond{1});
  EXPECT_EQ(parse_rate("8 Kibit/s"), BytesPerSecond{1024});
}

TEST(Units, RefusesWhatIsNotNumberAndUnit) {
  for (const char* text :
       {"",         " ",         "GB/s",     "-50 GB/s", "+50 GB/s",   " 50 GB/s",   "50 GB/s ",
        "50  GB/s", "50\tGB/s",  "nan GB/s", "inf GB/s", "0x10 GB/s",  "1_000 GB/s", "1,5 GB/s",
        "50 gb/s",  "50 GB",     "50 KB/s",  "50 GB/S",  "50 Gbyte/s", "1e400 GB/s", "1e308 PB/s",
        ".5 GB/s",  "50 GB/s/s", "50 ps",    "50 GHz"})
    EXPECT_FALSE(parse_rate(text)) << text;
}

TEST(Units, IgnoresTheLocale) {
  // Under a locale with a decimal comma, strtod would read "1.5" as 1. Without such a locale the test is
  // plain.
  const char* const name = std::setlocale(LC_ALL, "de_DE.UTF-8");
  EXPECT_EQ(parse_rate("1.5 GB/s"), BytesPerSecond{1.5e9});
  EXPECT_EQ(to_string(BytesPerSecond{1.5e9}), "1.500 GB/s");
  if (name != nullptr) std::setlocale(LC_ALL, "C");
}

TEST(Units, BytesAreExactWholeNumbers) {
  EXPECT_EQ(parse_bytes("512 B"), Bytes{512});
  EXPECT_EQ(parse_bytes("64 KiB"), Bytes{65536});
  EXPECT_EQ(parse_bytes("1.5MB"), Bytes{1500000});
  EXPECT_EQ(parse_bytes("0.5 KiB"), Bytes{512});
  EXPECT_EQ(parse_bytes("1.10 kB"), Bytes{1100});
  EXPECT_EQ(parse_bytes("25e-1 kB"), Bytes{2500});
  EXPECT_EQ(parse_bytes("2E+3 B"), Bytes{2000});
  EXPECT_EQ(parse_bytes("0 B"), Bytes{0});
  EXPECT_EQ(parse_bytes("9223372036854775807 B"), Bytes{std::numeric_limits<int64_t>::max()});
  EXPECT_FALSE(parse_bytes("9223372036854775808 B"));  // 2^63
  EXPECT_FALSE(parse_bytes("8192 PiB"));               // 2^13 * 2^50 = 2^63
  EXPECT_FALSE(parse_bytes("99999999999999999999999999999999999999999 B"));
  EXPECT_FALSE(parse_bytes("1e300 B"));
  EXPECT_FALSE(parse_bytes("0.1 B"));
  EXPECT_FALSE(parse_bytes("0.0001 KiB"));
  EXPECT_FALSE(parse_bytes("8 Kibit"));
}

TEST(Units, ParsesTimes) {
  EXPECT_EQ(parse_seconds("150 ns"), Seconds{150e-9});
  EXPECT_EQ(parse_seconds("1.2us"), Seconds{1.2e-6});
  EXPECT_EQ(parse_seconds("3 ms"), Seconds{3e-3});
  EXPECT_EQ(parse_seconds("2 s"), Seconds{2});
  EXPECT_EQ(parse_seconds("700 ps"), Seconds{700e-12});
  EXPECT_FALSE(parse_seconds("2 min"));
  EXPECT_FALSE(parse_seconds("2 S"));
}

TEST(Units, ParsesEventRatesAndPercentages) {
  EXPECT_EQ(parse_per_second("200 M/s"), PerSecond{200e6});
  EXPECT_EQ(parse_per_second("5e6/s"), PerSecond{5e6});
  EXPECT_FALSE(parse_per_second("200 MB/s"));
  EXPECT_EQ(parse_percent("15 %"), 0.15);
  EXPECT_EQ(parse_percent("100%"), 1.0);
  EXPECT_FALSE(parse_percent("15 percent"));
}

TEST(Units, PrintsFourSignificantDigits) {
  EXPECT_EQ(to_string(BytesPerSecond{50e9}), "50.00 GB/s");
  EXPECT_EQ(to_string(BytesPerSecond{450e9}), "450.0 GB/s");
  EXPECT_EQ(to_string(BytesPerSecond{1e3}), "1.000 kB/s");
  EXPECT_EQ(to_string(BytesPerSecond{0}), "0 B/s");
  EXPECT_EQ(to_string(Bytes{65536}), "64.00 KiB");
  EXPECT_EQ(to_string(Bytes{1023}), "1023 B");
  EXPECT_EQ(to_string(Bytes{-2048}), "-2.000 KiB");
  EXPECT_EQ(to_string(microseconds(1.25)), "1.250 us");
  EXPECT_EQ(to_string(Seconds{12.5}), "12.50 s");
  EXPECT_EQ(to_string(Seconds{5e-10}), "0.500 ns");
  EXPECT_EQ(to_string(PerSecond{200e6}), "200.0 M/s");
}

TEST(Units, RoundingMovesToTheNextUnit) {
  // 999.96 MB/s has the four digits 1000: printed in GB/s, not as "1000.0 MB/s".
  EXPECT_EQ(to_string(BytesPerSecond{999.96e6}), "1.000 GB/s");
  EXPECT_EQ(to_string(BytesPerSecond{999.94e6}), "999.9 MB/s");
  EXPECT_EQ(to_string(BytesPerSecond{9.9996e9}), "10.00 GB/s");
  // 2^20 - 1 bytes are 1023.999 KiB; the last byte is below the four digits.
  EXPECT_EQ(to_string(Bytes{(1 << 20) - 1}), "1.000 MiB");
  EXPECT_EQ(to_string(Bytes{1000 << 10}), "1000 KiB");
}

TEST(Units, ArithmeticKeepsDimensions) {
  EXPECT_EQ(Bytes{100} / BytesPerSecond{50}, Seconds{2});
  EXPECT_EQ(Bytes{100} / Seconds{2}, BytesPerSecond{50});
  EXPECT_EQ(Seconds{3} / Seconds{2}, 1.5);
}

}  // namespace
}  // namespace plumb
