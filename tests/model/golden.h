// The golden numbers of DeepEP V2 (deepep_golden.json), computed by an independent program from its formulas.
#pragma once

#include <cmath>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/error.h"

namespace plumb {

/// The section of that name; throws when the file or the section is missing.
inline const nlohmann::json& golden(const std::string& section) {
  static const nlohmann::json all = [] {
    std::ifstream file(PLUMB_SOURCE_DIR "/tests/model/deepep_golden.json");
    return nlohmann::json::parse(file);
  }();
  return section.empty() ? all : all.at(section);
}

/// Floats of the file carry 12 significant digits (5 to 6 where `relative` says so); integers are compared
/// exactly.
inline void expect_close(double actual, double expected, double relative = 1e-9) {
  EXPECT_NEAR(actual, expected, std::abs(expected) * relative);
}
inline constexpr double kSixDigits = 5e-6;  // half a unit of the sixth digit, relative to a leading 1
inline constexpr double kFiveDigits = 5e-5;

/// The message of the Error that `call` throws.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

}  // namespace plumb
