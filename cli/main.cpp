#include <CLI/CLI.hpp>

#include "cli/program.h"

int main(int argc, char** argv) { return ovq::cli::run(*ovq::cli::make_program(), argc, argv); }
