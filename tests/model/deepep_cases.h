// The golden cases of DeepEP's SM model as inputs, shared by the tests of both models.
#pragma once

#include <stdexcept>
#include <string>

#include "model/deepep_model.h"
#include "tests/model/golden.h"

namespace plumb {

inline DeepepSmInput golden_input(const nlohmann::json& in) {
  return {.experts = in.at("E"),
          .topk = in.at("K"),
          .scaleout = in.at("scaleout"),
          .scaleup = in.at("scaleup"),
          .nvlink_ranks = in.at("nvlink_ranks"),
          .rdma_gbs = in.at("rdma_gbs"),
          .nvlink_gbs = in.at("nvlink_gbs"),
          .sm_read_gbs = in.at("sm_read_gbs"),
          .sm_write_gbs = in.at("sm_write_gbs"),
          .device_sms = in.at("device_sms"),
          .prefers_overlap = in.at("prefer_overlap"),
          .allows_hybrid = in.at("allow_hybrid"),
          .allocated_qps = in.at("allocated_qps")};
}

inline DeepepSmInput golden_case(const std::string& id) {
  for (const auto& c : golden("sm_model").at("cases"))
    if (c.at("id") == id) return golden_input(c.at("inputs"));
  throw std::runtime_error("no case " + id);
}

}  // namespace plumb
