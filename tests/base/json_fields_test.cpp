// Options in JSON that an earlier version wrote.
#include "ovq/base/json_fields.h"

#include <gtest/gtest.h>

namespace ovq::test {
namespace {

struct Oven {
  int64_t degrees = 180;
  bool fan = false;
};

template <class Fields>
void list_fields(Fields& field, Oven& o) {
  field("degrees", o.degrees, "temperature", at_least(1));
  field("fan", o.fan, "moves the air");
}

constexpr auto retired_fields(const Oven&) {
  return std::to_array<RetiredField>({{.name = "heat", .now = "degrees"},
                                      {.name = "colour", .value = "3"},
                                      {.name = "fuel", .value = "\"gas\"", .had_effect = true}});
}

Oven read(const json& object) {
  Oven oven;
  FieldReader reader(object, FieldContext{.op = "oven"});
  reader.read(oven);
  reader.finish();
  return oven;
}

std::string error_of(const json& object) {
  try {
    read(object);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(RetiredFields, AreReadUnderTheirPresentNameOrIgnored) {
  EXPECT_EQ(read({{"heat", 200}, {"fan", true}}).degrees, 200);
  EXPECT_TRUE(read({{"heat", 200}, {"fan", true}}).fan);
  EXPECT_EQ(read({{"heat", nullptr}}).degrees, 180);
  EXPECT_EQ(read({{"degrees", 90}, {"colour", 7}, {"fuel", "gas"}}).degrees, 90);
  EXPECT_EQ(read({{"fuel", nullptr}}).degrees, 180);
}

TEST(RetiredFields, AreRefusedWhereTheirValueWouldBeLost) {
  EXPECT_EQ(error_of({{"fuel", "coal"}}),
            "[oven] fuel is \"coal\"; must be \"gas\" or absent: this option was removed");
  EXPECT_EQ(error_of({{"heat", 200}, {"degrees", 90}}), "[oven] heat is 200; must be absent where degrees is given");
  EXPECT_EQ(error_of({{"heat", 0}}), "[oven] degrees is 0; must be an integer of at least 1");
}

// Nobody should start using them.
TEST(RetiredFields, AreNoSuggestion) {
  EXPECT_EQ(error_of({{"fuell", "gas"}}), "[oven] unknown field \"fuell\"; expected one of degrees, fan");
}

TEST(RetiredFields, MakeNoDifferenceOnceUpdated) {
  json object = {{"heat", 200}, {"colour", 7}, {"fuel", "gas"}, {"lamp", 1}};
  update_retired_fields(object, Oven());
  EXPECT_EQ(object, (json{{"degrees", 200}, {"lamp", 1}}));
  json kept = {{"heat", 200}, {"degrees", 90}, {"fuel", "coal"}};
  const json before = kept;
  update_retired_fields(kept, Oven());
  EXPECT_EQ(kept, before) << "what is refused stays";
}

TEST(RetiredFields, CanBeWrittenAsTheyWere) {
  json object = fields_to_json(Oven());
  EXPECT_EQ(object, (json{{"degrees", 180}, {"fan", false}}));
  add_retired_fields(object, Oven());
  EXPECT_EQ(object, (json{{"degrees", 180}, {"fan", false}, {"colour", 3}, {"fuel", "gas"}}));
}

}  // namespace
}  // namespace ovq::test
