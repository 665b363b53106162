// Runs the kernels of every level that this machine can run against the scalar
// ones, and against themselves: a row's bits must not depend on its company.
//
// usage: kernel_test [--plant swap|prefix]
// Exits with 0 if all checks passed. With a planted fault, exits with 0 if every
// level's checks noticed it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

void run(const Level& level, Report& report) {
  level.kernels.thread_begin();
  if (level.plant != Plant::kPrefix) gemm_cases(level, report);
  if (level.plant == Plant::kNone) {
    panel_cases(level, report);
    elementwise_cases(level, report);
  }
  if (level.plant != Plant::kSwap) attention_cases(level, report);
  level.kernels.thread_end();
}

int run_all(Plant plant) {
  // An emulator may offer tiles without the system call that asks for them.
  setenv("FORERUN_AMX_ASSUME_PERMISSION", "1", 1);
  int passed = 0, failed = 0;
  bool unnoticed = false;
  for (const IsaLevel& isa : isa_levels(detect_cpu())) {
    if (!isa.available) {
      std::printf("%s: left out: %s\n", isa.name.c_str(), isa.reason.c_str());
      continue;
    }
    for (const bool bf16 : {true, false}) {
      const Level level{isa.name + (bf16 ? " bfloat16" : " float32"), bf16,
                        *kernels_for(isa.name, bf16), *kernels_scalar(bf16), plant};
      Report report(plant != Plant::kNone);
      run(level, report);
      std::printf("%s: %d passed, %d failed\n", level.name.c_str(), report.passed(),
                  report.failed());
      std::fflush(stdout);
      passed += report.passed();
      failed += report.failed();
      unnoticed |= report.failed() == 0;
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return plant == Plant::kNone ? failed != 0 : unnoticed;
}

}  // namespace
}  // namespace forerun

int main(int argc, char** argv) {
  using forerun::Plant;
  const bool named = argc == 3 && std::strcmp(argv[1], "--plant") == 0;
  if (argc == 1) return forerun::run_all(Plant::kNone);
  if (named && std::strcmp(argv[2], "swap") == 0) return forerun::run_all(Plant::kSwap);
  if (named && std::strcmp(argv[2], "prefix") == 0) return forerun::run_all(Plant::kPrefix);
  std::fprintf(stderr, "usage: kernel_test [--plant swap|prefix]\n");
  return 2;
}
