// The host executor finds what is wrong with a plan, and its results do not depend on how it runs.
#include "model/host.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/error.h"
#include "model/host_dump.h"
#include "tests/model/host_case.h"

namespace plumb::test {
namespace {

namespace fs = std::filesystem;

/// An op with its rows and edges, to be changed before it is added again.
struct Draft {
  OpId id = 0;
  Op op;
  std::vector<Item> items;
  std::vector<int8_t> lanes;
  std::vector<Dep> deps;
};

/// The same plan with every op passed through `edit`; rows, bytes and messages follow the items, so that the
/// ledger fits the changed plan.
Plan edited(const Plan& plan, const std::function<void(Draft&)>& edit) {
  Plan out(plan.program(), plan.grouping());
  for (const Region& region : plan.regions()) out.add_region(region);
  for (const Phase& phase : plan.phases()) out.add_phase(phase);
  for (const Barrier& barrier : plan.barriers()) out.add_barrier(barrier);
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const Op& op = plan.ops()[static_cast<size_t>(id)];
    const auto items = plan.items(op);
    const auto lanes = plan.lanes(op);
    const auto deps = plan.deps(id);
    Draft draft{
        id, op, {items.begin(), items.end()}, {lanes.begin(), lanes.end()}, {deps.begin(), deps.end()}};
    edit(draft);
    draft.op.first_item = kNone;
    for (size_t i = 0; i < draft.items.size(); ++i) {
      const int32_t item = out.add_item(draft.items[i], draft.lanes[i]);
      if (i == 0) draft.op.first_item = item;
    }
    if (draft.items.size() != items.size()) {
      draft.op.rows = static_cast<int32_t>(draft.items.size());
      draft.op.bytes = draft.op.rows * plan.phases()[op.phase].row_bytes;
      if (op.kind != OpKind::reduce) draft.op.messages = std::min(draft.op.messages, draft.op.rows);
    }
    out.add(draft.op, draft.deps);
  }
  return out;
}

/// The message of the Error(mismatch) with which the run ends; "" when it succeeds.
std::string mismatch(const HostCase& c, const Plan& plan) {
  HostExecutor host = c.executor();
  try {
    host.run(plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::mismatch) << error.what();
    return error.what();
  }
  return "";
}

/// 2 ranks with one expert each on one node; both tokens of rank 0 go to both ranks. Direct, staged dispatch.
HostCase small_case(ProgramKind kind = ProgramKind::dispatch) {
  HostCase c;
  c.shape = uniform_shape(2, 2, 2, 2, 16);
  c.shape.tokens = {2, 0};
  c.scaleup = 2;
  c.table = {0, 1, 1, 0};
  c.program.kind = kind;
  return c;
}

bool is_in(const Plan& plan, const Draft& draft, std::string_view phase) {
  return plan.phases()[draft.op.phase].name == phase;
}

enum class Fault { drop, repeat, wrong_source, swap };

/// Applies a fault to the rows of one op. Returns false when the op has too few rows for it.
bool inject(Fault fault, Draft& draft, Dice& dice) {
  const auto count = static_cast<int32_t>(draft.items.size());
  if (count < 2) return false;
  const auto i = static_cast<size_t>(dice.below(count));
  const size_t j = (i + 1 + static_cast<size_t>(dice.below(count - 1))) % draft.items.size();
  switch (fault) {
    case Fault::drop:
      draft.items.erase(draft.items.begin() + static_cast<ptrdiff_t>(i));
      draft.lanes.erase(draft.lanes.begin() + static_cast<ptrdiff_t>(i));
      return true;
    case Fault::repeat:
      draft.items.push_back(draft.items[i]);
      draft.lanes.push_back(draft.lanes[i]);
      return true;
    case Fault::wrong_source:
      if (draft.items[i].src_slot == draft.items[j].src_slot) return false;  // one row sent twice, zeros
      draft.items[i].src_slot = draft.items[j].src_slot;
      return true;
    case Fault::swap:
      if (draft.items[i].src_slot == draft.items[j].src_slot) return false;
      if (draft.items[i].dst_slot == draft.items[j].dst_slot) return false;  // order inside one sum
      std::swap(draft.items[i].src_slot, draft.items[j].src_slot);
      return true;
  }
  return false;
}

TEST(HostExecutor, FindsRandomFaultsInRows) {
  int32_t injected = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    const ProgramKind kind = std::array{ProgramKind::dispatch, ProgramKind::combine, ProgramKind::round_trip,
                                        ProgramKind::all_to_all}[seed % 4];
    const Fault fault =
        std::array{Fault::drop, Fault::repeat, Fault::wrong_source, Fault::swap}[seed / 4 % 4];
    HostCase c = random_case(kind, seed);
    const Plan plan = c.plan();
    Dice dice(seed);
    if (plan.ops().empty()) continue;
    const OpId victim = dice.below(static_cast<int32_t>(plan.ops().size()));
    bool done = false;
    std::string place;
    const Plan faulty = edited(plan, [&](Draft& draft) {
      // Counts of two pairs may be equal, so that exchanging them changes nothing.
      const std::string& phase = plan.phases()[draft.op.phase].name;
      if (done || draft.id < victim || phase.starts_with("notify") || phase == "offsets") return;
      done = inject(fault, draft, dice);
      place = phase;
    });
    if (!done) continue;
    ++injected;
    EXPECT_NE(mismatch(c, faulty), "") << "seed " << seed << " fault " << static_cast<int>(fault) << " in "
                                       << place << " of " << to_string(c.program);
  }
  EXPECT_GT(injected, 150);
}

TEST(HostExecutor, NamesTheRowThatNothingWrote) {
  const HostCase c = small_case();
  const Plan plan = c.plan();
  const std::string message = mismatch(c, edited(plan, [&](Draft& draft) {
                                         if (!is_in(plan, draft, "dispatch") || draft.op.dst != 1) return;
                                         draft.items.pop_back();
                                         draft.lanes.pop_back();
                                       }));
  EXPECT_NE(
      message.find("(copy, phase 'copy', rank 1 -> 1): reads slot 1 of 'receive' on rank 1, which nothing "
                   "has written"),
      std::string::npos)
      << message;
}

TEST(HostExecutor, NamesTheRowWrittenTwice) {
  const HostCase c = small_case();
  const Plan plan = c.plan();
  const std::string message = mismatch(c, edited(plan, [&](Draft& draft) {
                                         if (is_in(plan, draft, "dispatch") && draft.op.dst == 1)
                                           draft.items[1].dst_slot = 0;
                                       }));
  EXPECT_NE(message.find("writes slot 0 of 'receive' on rank 1, which op"), std::string::npos) << message;
}

TEST(HostExecutor, NamesASlotOutsideItsRegion) {
  const HostCase c = small_case();
  const Plan plan = c.plan();
  const std::string message = mismatch(c, edited(plan, [&](Draft& draft) {
                                         if (is_in(plan, draft, "dispatch") && draft.op.dst == 1)
                                           draft.items[1].dst_slot = 2;
                                       }));
  EXPECT_NE(message.find("writes slot 2 of 'receive' on rank 1, which has slots 0 .. 1"), std::string::npos)
      << message;
}

TEST(HostExecutor, FindsAMissingEdge) {
  // Executed in order of ids, the copy still reads what has arrived; only the edges say that it need not
  // have.
  const HostCase c = small_case();
  const Plan plan = c.plan();
  const std::string message = mismatch(c, edited(plan, [&](Draft& draft) {
                                         if (is_in(plan, draft, "copy")) draft.deps.clear();
                                       }));
  EXPECT_NE(message.find("but no edge makes it wait for op"), std::string::npos) << message;
}

TEST(HostExecutor, FindsABarrierThatSomebodyNeverJoins) {
  const HostCase c = small_case();
  const Plan plan = c.plan();
  Plan lonely(plan.program(), plan.grouping());
  const PhaseId phase = lonely.add_phase({.name = "enter"});
  const int32_t barrier = lonely.add_barrier({.members = 2});
  lonely.add({.kind = OpKind::barrier, .phase = phase, .src = 0, .dst = 0, .rows = barrier});
  EXPECT_EQ(mismatch(c, lonely), "barrier 0 was joined by 1 of 2 members");
  lonely.add({.kind = OpKind::wait, .phase = phase, .src = 0, .dst = 0}, {{0, On::arrived}});
  EXPECT_EQ(mismatch(c, lonely),
            "op 1 (phase 'enter', rank 0) waits for barrier 0, which 1 of 2 members have joined");
}

TEST(HostExecutor, FindsBytesThatTheLedgerDoesNotHave) {
  const HostCase c = small_case();
  const Plan plan = c.plan();
  const std::string message = mismatch(c, edited(plan, [&](Draft& draft) {
                                         if (is_in(plan, draft, "dispatch")) draft.op.bytes += 1;
                                       }));
  EXPECT_NE(message.find("the rows moved are not those that the plan accounts for"), std::string::npos);
  EXPECT_NE(message.find("'dispatch' 0 -> 1"), std::string::npos) << message;
}

TEST(HostExecutor, FindsABiasAddedToAnotherToken) {
  HostCase c = small_case(ProgramKind::combine);
  c.program.num_biases = 1;
  const Plan plan = c.plan();
  const std::string message = mismatch(c, edited(plan, [&](Draft& draft) {
                                         if (!is_in(plan, draft, "combine_reduce") || draft.items.empty())
                                           return;
                                         // Items: bias, rank 0, rank 1 of token 0, then the same of token 1.
                                         std::swap(draft.items[0].src_slot, draft.items[3].src_slot);
                                       }));
  EXPECT_NE(message.find("adds bias row 1 to token 0, which is not its own"), std::string::npos) << message;
}

TEST(HostExecutor, RefusesPlansThatItCannotRun) {
  HostCase c = small_case();
  HostExecutor host = c.executor();
  const Routing routing = c.routing();
  const Grouping grouping{2, 2};
  const auto refusal = [&](const Plan& plan) -> std::string {
    try {
      host.run(plan);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal(build_plan({c.shape, routing, c.program, grouping, false})).find("build it with items"),
            std::string::npos);
  HostCase longer = c;
  longer.shape.hidden = 32;
  EXPECT_NE(refusal(longer.plan()).find("pass the shape that the plan was built from"), std::string::npos);
  EXPECT_THROW(host.result(), LogicError);
}

TEST(HostExecutor, RefusesOptionsOutOfRange) {
  HostCase c = small_case();
  c.options.threads = 0;
  EXPECT_THROW(c.executor(), Error);
  c.options = {.window_bytes = -1};
  EXPECT_THROW(c.executor(), Error);
}

TEST(HostExecutor, NamesNeedAndLimitOfMemory) {
  HostCase c = small_case();
  c.options.memory_limit = 1000;
  HostExecutor host = c.executor();
  try {
    host.run(c.plan());
    FAIL() << "ran in 1000 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("the limit is 1000 bytes; set a window"), std::string::npos)
        << error.what();
  }
}

std::vector<std::byte> all_bytes(const HostResult& result) {
  std::vector<std::byte> out;
  for (const Region& region : result.plan().regions())
    for (Rank r = 0; r < result.plan().grouping().ranks; ++r)
      for (int64_t slot = 0; slot < result.rows(region.name, r); ++slot) {
        const auto row = result.row(region.name, r, slot);
        out.insert(out.end(), row.begin(), row.end());
      }
  return out;
}

TEST(HostExecutor, TwoRunsAreEqualAndSeedsDiffer) {
  HostCase c = random_case(ProgramKind::round_trip, 5);
  const Plan plan = c.plan();
  HostExecutor first = c.executor();
  const Trace trace = first.run(plan);
  const auto bytes = all_bytes(first.result());
  EXPECT_EQ(first.run(plan).spans, trace.spans);
  EXPECT_EQ(all_bytes(first.result()), bytes);
  c.seed += 1;
  HostExecutor second = c.executor();
  second.run(plan);
  EXPECT_NE(all_bytes(second.result()), bytes);
}

TEST(HostExecutor, ThreadsDoNotChangeBytes) {
  // 64 tokens of 14 KiB to up to 4 ranks: ops above the 1 MiB from which a second thread is started.
  HostCase c;
  c.shape = uniform_shape(4, 8, 4, 64, 7168);
  c.shape.dispatch_type = DType::bf16;
  c.scaleup = 2;
  c.expert = ExpertFunction::weighted;
  Dice dice(1);
  c.table = random_table(c.shape, 0, dice);
  c.program = {.kind = ProgramKind::round_trip, .mode = Mode::hybrid, .expand = true, .num_biases = 1};
  const Plan plan = c.plan();
  HostExecutor one = c.executor();
  one.run(plan);
  c.options.threads = 3;
  HostExecutor three = c.executor();
  three.run(plan);
  EXPECT_TRUE(all_bytes(one.result()) == all_bytes(three.result()));
}

TEST(HostExecutor, AWindowKeepsTheFirstBytesAndAllMetadata) {
  for (const DType type : {DType::bf16, DType::fp8_e4m3}) {
    HostCase c;
    c.shape = uniform_shape(4, 8, 3, 6, 512);
    c.shape.dispatch_type = type;
    c.scaleup = 2;
    c.expert = ExpertFunction::scaled;
    Dice dice(9);
    c.table = random_table(c.shape, 10, dice);
    c.program = {.kind = ProgramKind::round_trip, .mode = Mode::hybrid};
    const Plan plan = c.plan();
    HostExecutor whole = c.executor();
    const Trace trace = whole.run(plan);
    c.options.window_bytes = 50;  // rounded up to 64
    HostExecutor window = c.executor();
    EXPECT_EQ(window.run(plan).ledger, trace.ledger);  // of whole rows all the same
    EXPECT_EQ(window.result().format("received").hidden_bytes, 64);
    for (Rank r = 0; r < 4; ++r) {
      const Received all = whole.result().received(r);
      const Received some = window.result().received(r);
      EXPECT_EQ(some.source, all.source);
      EXPECT_EQ(some.topk_idx, all.topk_idx);
      EXPECT_EQ(some.weights, all.weights);
      // 64 elements lie in the first of 4 blocks, whose scale stands for all.
      ASSERT_EQ(some.scales.size(), all.scales.size());
      for (size_t i = 0; i < some.scales.size(); ++i)
        EXPECT_EQ(some.scales[i], all.scales[i / 16 * 16 + i % 4]);
      const size_t row_bytes = static_cast<size_t>(c.shape.dispatch_row_bytes());
      for (size_t i = 0; i < static_cast<size_t>(all.rows); ++i)
        EXPECT_TRUE(std::equal(some.x.begin() + static_cast<ptrdiff_t>(64 * i),
                               some.x.begin() + static_cast<ptrdiff_t>(64 * i + 64),
                               all.x.begin() + static_cast<ptrdiff_t>(row_bytes * i)));
      const Combined sums = whole.result().combined(r);
      const Combined first = window.result().combined(r);
      EXPECT_EQ(first.weights, sums.weights);
      ASSERT_EQ(first.x.size(), 6u * 32);
      for (size_t t = 0; t < 6; ++t)
        for (size_t h = 0; h < 32; ++h) EXPECT_EQ(first.x[t * 32 + h], sums.x[t * 512 + h]);
    }
  }
}

TEST(HostExecutor, TraceCountsMessagesAndBytesPerRankAndPhase) {
  const HostCase c = small_case();
  const Plan plan = c.plan();
  HostExecutor host = c.executor();
  const Trace trace = host.run(plan);
  EXPECT_EQ(trace.header.executor, "host");
  EXPECT_EQ(trace.header.plan, plan.digest());
  EXPECT_EQ(trace.ledger, account(plan));
  EXPECT_EQ(trace.total.value, 0);
  const int64_t record = c.shape.dispatch_layout().record_bytes;
  const Span* found = nullptr;
  for (const Span& span : trace.spans)
    if (span.rank == 0 && trace.header.phases[static_cast<size_t>(span.phase)] == "dispatch") found = &span;
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->messages, 2);        // two rows to rank 1
  EXPECT_EQ(found->bytes, 4 * record);  // and two to itself
  EXPECT_EQ(found->op, -1);
}

TEST(HostExecutor, EmptyPlanDoesNothing) {
  const HostCase c = small_case();
  HostExecutor host = c.executor();
  const Trace trace = host.run(Plan(c.program, {2, 2}));
  EXPECT_TRUE(trace.spans.empty());
  EXPECT_TRUE(trace.ledger.entries().empty());
}

TEST(HostResult, NamesWhatDoesNotExist) {
  const HostCase c = small_case();
  HostExecutor host = c.executor();
  host.run(c.plan());
  const auto refusal = [](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal([&] { host.result().row("inputs", 0, 0); }).find("it has: input, "), std::string::npos);
  EXPECT_NE(refusal([&] { host.result().row("input", 2, 0); }).find("allowed: 0 .. 1"), std::string::npos);
  EXPECT_NE(refusal([&] { host.result().row("input", 0, 2); }).find("it has 2 slots"), std::string::npos);
  EXPECT_NE(refusal([&] { host.result().combined(0); }).find("no region 'combined'"), std::string::npos);
}

/// A directory of this test, removed at the end.
class DumpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("plumb_dump_" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directory(root_);
  }
  void TearDown() override {
    fs::permissions(root_, fs::perms::owner_all);
    fs::remove_all(root_);
  }
  std::string refusal(const fs::path& path) const {
    try {
      check_dump_directory(path.string());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::environment);
      return error.what();
    }
    return "";
  }

  fs::path root_;
};

TEST_F(DumpTest, B53_UnusableDirectoriesAreNamedBeforeTheRun) {
  EXPECT_NE(refusal(root_ / "a" / "b").find((root_ / "a").string() + "' is no directory"), std::string::npos);
  std::ofstream(root_ / "file") << "x";
  EXPECT_NE(refusal(root_ / "file").find("exists and is not a directory"), std::string::npos);
  EXPECT_NE(refusal(""), "");
  EXPECT_EQ(refusal(root_ / "new"), "");
  EXPECT_TRUE(fs::is_directory(root_ / "new"));
  EXPECT_EQ(refusal(root_ / "new" / ""), "");
  EXPECT_TRUE(fs::is_empty(root_ / "new"));
}

TEST_F(DumpTest, B53_ReadOnlyDirectoryIsNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write into read-only directories";
  fs::permissions(root_, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_NE(refusal(root_).find("cannot be written"), std::string::npos);
  EXPECT_NE(refusal(root_ / "new").find("cannot be created"), std::string::npos);
}

TEST_F(DumpTest, FilesHoldTheTensorsThatTheIndexDescribes) {
  HostCase c = random_case(ProgramKind::round_trip, 8);
  HostExecutor host = c.executor();
  host.run(c.plan());
  dump(host.result(), root_.string());
  std::ifstream file(root_ / "index.json");
  const auto index = nlohmann::json::parse(file);
  EXPECT_TRUE(index.at("complete").get<bool>());
  EXPECT_EQ(index.at("plan"), to_string(host.result().plan().digest()));
  const std::map<std::string, int64_t> sizes = {{"bf16", 2},  {"fp8_e4m3", 1}, {"fp32", 4},
                                                {"int32", 4}, {"ue8m0", 1},    {"uint8", 1}};
  std::set<std::string> names;
  for (const auto& tensor : index.at("tensors")) {
    int64_t bytes = sizes.at(tensor.at("dtype"));
    for (const auto& dimension : tensor.at("shape")) bytes *= dimension.get<int64_t>();
    EXPECT_EQ(static_cast<int64_t>(fs::file_size(root_ / tensor.at("file").get<std::string>())), bytes)
        << tensor;
    names.insert(tensor.at("name"));
  }
  for (const char* name :
       {"input_x", "topk_idx", "topk_weights", "received_x", "received_source", "received_weights",
        "psum_per_expert", "expert_out_x", "combined", "combined_weights"})
    EXPECT_TRUE(names.contains(name)) << name;
  const Received received = host.result().received(0);
  std::ifstream source(root_ / "rank0_received_source.bin", std::ios::binary);
  std::vector<int32_t> read(received.source.size());
  source.read(reinterpret_cast<char*>(read.data()), static_cast<std::streamsize>(read.size() * 4));
  EXPECT_EQ(read, received.source);
  for (const auto& entry : fs::directory_iterator(root_)) EXPECT_NE(entry.path().extension(), ".tmp");
}

TEST_F(DumpTest, AFailedDumpLeavesNoIndex) {
  const HostCase c = small_case();
  HostExecutor host = c.executor();
  host.run(c.plan());
  dump(host.result(), root_.string());
  fs::create_directory(root_ / "rank1_received_x.bin.tmp");  // in the way of a temporary file
  EXPECT_THROW(dump(host.result(), root_.string()), Error);
  EXPECT_FALSE(fs::exists(root_ / "index.json"));
}

}  // namespace
}  // namespace plumb::test
