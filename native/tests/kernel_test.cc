// Runs the kernels of every level that this machine can run against the scalar
// ones, and against themselves: a row's bits must not depend on its company.
//
// usage: kernel_test [--level NAME] [--grid N] [--plants NAME]
// --level: one level alone. --grid: one of N cases of the large grid of attention,
// instead of the other cases. --plants: afterwards plants one fault after another, each of which
// the cases must notice at that level. Exits with 0 if all checks passed.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cases.h"
#include "forerun/isa.h"
#include "forerun/packed.h"

namespace forerun {

void Report::check(bool holds, const std::string& what) {
  ++(holds ? passed_ : failed_);
  if (!holds && !quiet_) std::printf("FAILED %s\n", what.c_str());
}

bool close(const float* a, const float* b, std::size_t n, float absolute, float relative) {
  for (std::size_t i = 0; i < n; ++i) {
    if (!(std::fabs(a[i] - b[i]) <= absolute + relative * std::fabs(b[i]))) return false;
  }
  return true;
}

std::vector<float> act_floats(const Kernels& kernels, const void* act, std::size_t n) {
  std::vector<float> floats(n);
  for (std::size_t i = 0; i < n; ++i) {
    floats[i] = kernels.act_bytes == 2 ? bf16_to_float(static_cast<const std::uint16_t*>(act)[i])
                                       : static_cast<const float*>(act)[i];
  }
  return floats;
}

namespace {

struct Options {
  std::string level;   // empty: all
  std::string plants;  // the level to plant faults at; empty: none
  int grid = 0;        // run one of so many cases of the grid, and nothing else; 0: the others
};

void run(const Level& level, int grid, Report& report) {
  level.kernels.thread_begin();
  if (grid > 0) {
    attention_grid(level, grid, report);
  } else {
    const bool all = level.plant == Plant::kNone;
    if (all || level.plant == Plant::kWeights) gemm_cases(level, report);
    if (all) shares_cases(level, report);
    if (all) panel_cases(level, report);
    if (all) elementwise_cases(level, report);
    if (level.plant != Plant::kWeights) attention_cases(level, report);
  }
  level.kernels.thread_end();
}

// Runs the levels with or without a fault; returns whether all is as it must be.
bool run_levels(const Options& options, Plant plant, const char* fault) {
  int passed = 0, failed = 0;
  bool good = true;
  for (const IsaLevel& isa : isa_levels(detect_cpu())) {
    const std::string& only = plant == Plant::kNone ? options.level : options.plants;
    if (!only.empty() && only != isa.name) continue;
    if (!isa.available) {
      if (plant == Plant::kNone)
        std::printf("%s: left out: %s\n", isa.name.c_str(), isa.reason.c_str());
      continue;
    }
    for (const bool bf16 : {true, false}) {
      const Level level{isa.name + (bf16 ? " bfloat16" : " float32"), bf16,
                        *kernels_for(isa.name, bf16), *kernels_scalar(bf16), plant};
      Report report(plant != Plant::kNone);
      run(level, options.grid, report);
      passed += report.passed();
      failed += report.failed();
      if (plant == Plant::kNone) {
        std::printf("%s: %d passed, %d failed\n", level.name.c_str(), report.passed(),
                    report.failed());
        good &= report.failed() == 0;
      } else if (report.failed() == 0) {
        std::printf("FAILED %s: %s went unnoticed\n", level.name.c_str(), fault);
        good = false;
      }
      std::fflush(stdout);
    }
  }
  if (plant == Plant::kNone) {
    std::printf("%d passed, %d failed\n", passed, failed);
  } else {
    std::printf("planted %s: noticed by %d checks\n", fault, failed);
  }
  return good && passed + failed > 0;
}

int run_all(const Options& options) {
  // An emulator may offer tiles without the system call that asks for them.
  setenv("FORERUN_AMX_ASSUME_PERMISSION", "1", 1);
  bool good = run_levels(options, Plant::kNone, "");
  if (!options.plants.empty()) {
    good &= run_levels(options, Plant::kWeights, "swap of a pair of weights");
    good &= run_levels(options, Plant::kKeys, "swap of a pair of a key");
    good &= run_levels(options, Plant::kValues, "swap of two tokens' values");
    good &= run_levels(options, Plant::kPrefix, "prefix that is one token short");
  }
  return good ? 0 : 1;
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--grid" && i + 1 < argc) {
      options.grid = std::atoi(argv[++i]);
      if (options.grid < 1) return false;
    } else if (name == "--level" && i + 1 < argc) {
      options.level = argv[++i];
    } else if (name == "--plants" && i + 1 < argc) {
      options.plants = argv[++i];
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace forerun

int main(int argc, char** argv) {
  forerun::Options options;
  if (forerun::parse(argc, argv, options)) return forerun::run_all(options);
  std::fprintf(stderr, "usage: kernel_test [--level NAME] [--grid N] [--plants NAME]\n");
  return 2;
}
