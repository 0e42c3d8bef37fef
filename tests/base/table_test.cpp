#include "ovq/base/table.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace ovq {
namespace {

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  Table table = Table::of_named_rows({"case", "best", "x"});
  table.add({"a long name", "1", "2.50"});
  table.add({"b", "12345", ""});
  EXPECT_EQ(table.text(),
            "case          best     x\n"
            "a long name      1  2.50\n"
            "b            12345      \n");
}

TEST(Table, WidthsAreLeastWidths) {
  Table table({{.title = "n", .width = 4, .gap = 0},
               {.title = "m", .width = 2},
               {.title = "note", .align = Align::left, .gap = 2}});
  table.add({"1", "123456", "x"});
  table.add({"2", "3", ""});
  EXPECT_EQ(table.lines(), (std::vector<std::string>{"   n      m  note\n", "   1 123456  x\n", "   2      3  \n"}));
}

TEST(Table, RefusesRowsOfAnotherSize) {
  Table table = Table::of_named_rows({"a", "b"});
  EXPECT_THROW(table.add({"1"}), std::invalid_argument);
  EXPECT_THROW(table.add({"1", "2", "3"}), std::invalid_argument);
}

}  // namespace
}  // namespace ovq
