// The tests of the kernels. With --print-isa prints only the instruction set that this process uses.
#include <gtest/gtest.h>

#include <iostream>
#include <stdexcept>
#include <string_view>

#include "ovq/core/isa.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--print-isa") {
    try {
      std::cout << ovq::kernels::isa() << "\n";
      return 0;
    } catch (const std::invalid_argument& error) {
      std::cout << error.what() << "\n";
      return 1;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
